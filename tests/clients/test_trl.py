"""TRL: supervised fine-tuning and preference optimisation of a tiny model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.common import library, tiny_llama, word_tokenizer
from support import no_fallback

CLIENTS = ("trl", "datasets")
pytestmark = pytest.mark.clients


@pytest.fixture(autouse=True)
def _not_on_the_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CI", "1")  # trl reports its use otherwise
    yield


def texts() -> Any:
    rows = [" ".join(f"w{4 + (3 * i + j) % 60}" for j in range(20)) for i in range(4)]
    return library("datasets").Dataset.from_dict({"text": rows * 4})


def trainer(folder: Path, model: Any, **options: Any) -> Any:
    trl = library("trl")
    peft_config = options.pop("peft_config", None)
    config = trl.SFTConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=4,
        learning_rate=5e-3,
        logging_steps=1,
        max_length=32,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=7,
        **options,
    )
    return trl.SFTTrainer(
        model=model,
        args=config,
        train_dataset=texts(),
        processing_class=word_tokenizer(),
        peft_config=peft_config,
    )


def losses(t: Any) -> list[float]:
    t.train()
    return [entry["loss"] for entry in t.state.log_history if "loss" in entry]


def model() -> Any:
    return tiny_llama(initializer_range=0.05)


def test_fine_tuning_follows_cpu(tmp_path: Path) -> None:
    on_device = trainer(tmp_path / "a", model(), bf16=False)
    assert on_device.args.device.type == "neuron"
    with no_fallback():
        got = losses(on_device)
    on_cpu = trainer(tmp_path / "b", model(), bf16=False, use_cpu=True)
    assert got == pytest.approx(losses(on_cpu), rel=2e-3)
    assert len(got) == 4 and got[-1] < got[0]


@pytest.mark.parametrize("case", ["bf16", "activations on the host", "adapters", "compiled"])
def test_options(tmp_path: Path, case: str) -> None:
    options: dict[str, Any] = {
        "bf16": {},
        "activations on the host": {"activation_offloading": True, "bf16": False},
        "adapters": {"bf16": False},
        "compiled": {"torch_compile": True, "bf16": False},
    }[case]
    if case == "adapters":
        peft = library("peft")
        options["peft_config"] = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    t = trainer(tmp_path, model(), **options)
    with no_fallback():
        got = losses(t)
    assert got[-1] < got[0]
    if case == "compiled":
        on_cpu = trainer(tmp_path / "cpu", model(), bf16=False, use_cpu=True)
        assert got == pytest.approx(losses(on_cpu), rel=2e-3)


def test_preferences(tmp_path: Path) -> None:
    trl = library("trl")
    rows = [
        {"prompt": f"w{i} w{i + 1}", "chosen": f" w{i + 2} w{i + 3}", "rejected": f" w{i + 9}"}
        for i in range(4, 12)
    ]

    def run(device: str) -> list[float]:
        config = trl.DPOConfig(
            output_dir=str(tmp_path / device),
            per_device_train_batch_size=2,
            max_steps=3,
            learning_rate=1e-3,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            bf16=False,
            seed=7,
            use_cpu=device == "cpu",
        )
        policy = model()
        t = trl.DPOTrainer(
            model=policy,
            ref_model=copy.deepcopy(policy),
            args=config,
            train_dataset=library("datasets").Dataset.from_list(rows),
            processing_class=word_tokenizer(),
        )
        assert t.args.device.type == device
        return losses(t)

    with no_fallback():
        got = run("neuron")
    assert got == pytest.approx(run("cpu"), rel=2e-3)
    assert torch.tensor(got).isfinite().all()
