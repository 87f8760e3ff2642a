"""Lightning: its Trainer and Fabric, with the accelerators and strategies of the integrations; the
same Trainer of pytorch_lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clients.common import library, numbers
from support import no_fallback

CLIENTS = ("lightning", "pytorch-lightning", "torchmetrics")
pytestmark = pytest.mark.clients


def lightning() -> Any:
    pl = library("lightning.pytorch")
    library("torch_neuronx.integrations.lightning")
    return pl


def module(dropout: float = 0.0, optimizer: str = "AdamW") -> Any:
    pl, metrics = lightning(), library("torchmetrics")

    class Classifier(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(8, 32),
                torch.nn.BatchNorm1d(32),
                torch.nn.ReLU(),
                torch.nn.Dropout(dropout),
                torch.nn.Linear(32, 3),
            )
            self.accuracy = metrics.classification.MulticlassAccuracy(num_classes=3)
            self.seen: list[float] = []
            self.dtypes: set[torch.dtype] = set()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            out = self.net(x)
            self.dtypes.add(out.dtype)
            loss = torch.nn.functional.cross_entropy(out, y)
            self.log("loss", loss)
            self.seen.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            self.accuracy(self.net(x), y)
            self.log("accuracy", self.accuracy, on_epoch=True)

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            made = getattr(torch.optim, optimizer)(self.parameters(), lr=1e-2)
            scheduler = torch.optim.lr_scheduler.StepLR(made, step_size=1, gamma=0.5)
            return {"optimizer": made, "lr_scheduler": scheduler}

    return Classifier()


def loader() -> Any:
    x = numbers(32, 8)
    data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
    return torch.utils.data.DataLoader(data, batch_size=8)


def trainer(folder: Path, **options: Any) -> Any:
    chosen = {"accelerator": "neuron", "strategy": "neuron"}
    return lightning().Trainer(
        **{
            **chosen,
            "max_epochs": 2,
            "default_root_dir": str(folder),
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": False,
            "gradient_clip_val": 1.0,
            **options,
        }
    )


def test_fit_follows_cpu(tmp_path: Path) -> None:
    on_device, on_cpu = module(), module()
    run = trainer(tmp_path)
    with no_fallback():
        run.fit(on_device, loader(), loader())
    reference = trainer(tmp_path, accelerator="cpu", strategy="auto")
    reference.fit(on_cpu, loader(), loader())
    assert run.strategy.root_device == torch.device("neuron", 0)
    assert on_device.seen == pytest.approx(on_cpu.seen, rel=1e-4)
    accuracy = run.callback_metrics["accuracy"].item()
    assert accuracy == pytest.approx(reference.callback_metrics["accuracy"].item())


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16-mixed", torch.bfloat16),
        ("16-mixed", torch.float16),
        ("bf16-true", torch.bfloat16),
    ],
)
def test_precisions(precision: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = module(dropout=0.1)
    run = trainer(tmp_path, precision=precision, max_epochs=4)
    with no_fallback():
        run.fit(model, loader())
    assert model.dtypes == {dtype}
    assert sum(model.seen[-4:]) < sum(model.seen[:4])
    if precision == "16-mixed":
        scale = run.precision_plugin.scaler._scale
        assert scale.device.type == "neuron"


def test_checkpoints_resume_and_load(tmp_path: Path) -> None:
    straight = module()
    trainer(tmp_path, max_epochs=3).fit(straight, loader())
    first = module()
    run = trainer(tmp_path, max_epochs=2, enable_checkpointing=True)
    run.fit(first, loader())
    path = next(tmp_path.rglob("*.ckpt"))
    resumed = module()
    trainer(tmp_path, max_epochs=3).fit(resumed, loader(), ckpt_path=path)
    assert resumed.seen == straight.seen[-4:]
    result = trainer(tmp_path).test(resumed, loader(), verbose=False)
    assert 0.0 <= result[0]["accuracy"] <= 1.0


def test_compiled(tmp_path: Path) -> None:
    plain, compiled = module(), module()
    trainer(tmp_path, max_epochs=1, accelerator="cpu", strategy="auto").fit(plain, loader())
    compiled.net = torch.compile(compiled.net, backend="neuron")
    with no_fallback():
        trainer(tmp_path, max_epochs=1).fit(compiled, loader())
    assert compiled.seen == pytest.approx(plain.seen, rel=1e-4)


def test_device_stats() -> None:
    lightning()
    accelerator = library("torch_neuronx.integrations.lightning").NeuronAccelerator()
    kept = torch.ones(1 << 20, device="neuron")
    stats = accelerator.get_device_stats(torch.device("neuron", 0))
    assert stats["allocated_bytes.all.current"] >= kept.nbytes


def test_an_accelerator_without_its_strategy_is_refused(tmp_path: Path) -> None:
    exception = library("lightning.pytorch.utilities.exceptions").MisconfigurationException
    run = trainer(tmp_path, strategy="auto")
    with pytest.raises(exception, match="strategy='neuron'"):
        run.fit(module(), loader())


@pytest.mark.parametrize("devices", [[0, 7], "9", 0])
def test_devices_that_are_not_there(devices: Any, tmp_path: Path) -> None:
    exception = library("lightning.pytorch.utilities.exceptions").MisconfigurationException
    with pytest.raises(exception):
        trainer(tmp_path, devices=devices)


def fabric(**options: Any) -> Any:
    """A Fabric on the device, or with ``accelerator="cpu"`` there."""
    library("torch_neuronx.integrations.lightning")
    chosen = {"accelerator": "neuron", "strategy": "neuron"}
    return library("lightning.fabric").Fabric(**{**chosen, **options})


def fabric_losses(run: Any, *, compiled: bool = False) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    if compiled:
        net = torch.compile(net, backend="neuron")  # type: ignore[assignment]
    model, optimizer = run.setup(net, optimizer)
    batches = run.setup_dataloaders(loader())
    losses = []
    for _ in range(2):
        for x, y in batches:
            assert x.device == run.device
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            run.backward(loss)
            run.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_fabric_follows_cpu(compiled: bool, tmp_path: Path) -> None:
    run = fabric()
    with no_fallback():
        got, model = fabric_losses(run, compiled=compiled)
    assert run.device == torch.device("neuron", 0)
    expected, _ = fabric_losses(fabric(accelerator="cpu", strategy="auto"))
    assert got == pytest.approx(expected, rel=1e-4)
    run.save(tmp_path / "state.ckpt", {"model": model})
    _, again = fabric_losses(run, compiled=compiled)
    run.load(tmp_path / "state.ckpt", {"model": again})
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_fabric_precisions(precision: str) -> None:
    run = fabric(precision=precision)
    run.seed_everything(1, verbose=False)
    with no_fallback(), run.autocast():
        x = torch.ones(2, 2, device=run.device)
        reduced = torch.float16 if precision.startswith("16") else torch.bfloat16
        if precision.endswith("mixed"):
            assert (x @ x).dtype == reduced
    with no_fallback():
        losses, _ = fabric_losses(run)
    assert sum(losses[-4:]) < sum(losses[:4])


def test_fabric_without_its_strategy_is_refused() -> None:
    exception = library("lightning.fabric.utilities.exceptions").MisconfigurationException
    with pytest.raises(exception, match="strategy='neuron'"):
        fabric(strategy="auto").launch()


def test_the_trainer_of_pytorch_lightning(tmp_path: Path) -> None:
    pl = library("pytorch_lightning")
    library("torch_neuronx.integrations.pytorch_lightning")

    class Regression(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net, self.seen = torch.nn.Linear(8, 3), []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.seen.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(**options: Any) -> Regression:
        made = Regression()
        quiet = dict.fromkeys(
            ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
        )
        run = pl.Trainer(max_epochs=2, default_root_dir=str(tmp_path), **quiet, **options)
        run.fit(made, loader())
        return made

    with no_fallback():
        on_device = fit(accelerator="neuron", strategy="neuron", precision="bf16-mixed")
        exact = fit(accelerator="neuron", strategy="neuron")
    expected = fit(accelerator="cpu").seen
    assert exact.seen == pytest.approx(expected, rel=1e-4)
    assert on_device.seen == pytest.approx(expected, rel=5e-2)
    exception = library("pytorch_lightning.utilities.exceptions").MisconfigurationException
    with pytest.raises(exception, match="strategy='neuron'"):
        fit(accelerator="neuron")
