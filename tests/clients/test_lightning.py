"""Lightning with the accelerator and strategy of ``torch_neuronx.integrations.lightning``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clients.common import library, numbers
from support import no_fallback

CLIENTS = ("lightning", "torchmetrics")
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
