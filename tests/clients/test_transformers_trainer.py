"""Hugging Face ``Trainer``: fine-tuning, evaluation, checkpoints, resuming; compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torch_neuronx


def library() -> Any:
    """transformers, imported by the tests that run and not when they are collected."""
    pytest.importorskip("accelerate")
    return pytest.importorskip("transformers")


CLIENTS = ("transformers", "accelerate", "safetensors")
pytestmark = [
    pytest.mark.clients,
    # Libraries' own deprecations are not this device's.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("HF_HUB_OFFLINE", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        monkeypatch.setenv(name, value)


def tiny_llama(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return library().LlamaForCausalLM(
        library().LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            attention_dropout=dropout,
        )
    )


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 128, (2, 16), generator=generator)
    return [{"input_ids": ids[i % 2], "labels": ids[i % 2]} for i in range(count)]


def trainer(folder: Path, model: Any, **options: Any) -> Any:
    arguments = library().TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        learning_rate=5e-3,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        seed=7,
        data_seed=7,
        **{"max_steps": 6, "save_strategy": "no", **options},
    )
    return library().Trainer(
        model=model, args=arguments, train_dataset=rows(16), eval_dataset=rows(4)
    )


def losses(t: Any) -> list[float]:
    return [entry["loss"] for entry in t.state.log_history if "loss" in entry]


def test_fine_tune_and_evaluate(tmp_path: Path) -> None:
    torch_neuronx.clear_op_tracking()
    t = trainer(tmp_path, tiny_llama())
    assert t.args.device.type == "neuron"
    before = t.evaluate()["eval_loss"]
    t.train()
    curve = losses(t)
    assert len(curve) == 6 and curve[-1] < 0.7 * curve[0]
    assert t.evaluate()["eval_loss"] < before
    assert next(t.model.parameters()).device.type == "neuron"
    assert torch_neuronx.get_fallback_ops() == []
    assert any("_fused_adamw_" in name for name in torch_neuronx.get_executed_ops())


def test_the_loss_curve_is_cpus(tmp_path: Path) -> None:
    on_device = trainer(tmp_path / "a", tiny_llama(), max_steps=3)
    on_device.train()
    on_cpu = trainer(tmp_path / "b", tiny_llama(), max_steps=3, use_cpu=True)
    on_cpu.train()
    assert on_cpu.args.device.type == "cpu"
    assert losses(on_device) == pytest.approx(losses(on_cpu), rel=1e-3)


def test_the_compiled_loss_curve_is_cpus(tmp_path: Path) -> None:
    torch_neuronx.clear_op_tracking()
    options = {"torch_compile": True, "torch_compile_backend": "neuron"}
    on_device = trainer(tmp_path / "a", tiny_llama(), max_steps=3, **options)
    on_device.train()
    assert torch_neuronx.get_fallback_ops() == []
    on_cpu = trainer(tmp_path / "b", tiny_llama(), max_steps=3, use_cpu=True)
    on_cpu.train()
    assert losses(on_device) == pytest.approx(losses(on_cpu), rel=1e-3)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_bf16_with_dropout_and_activation_checkpointing(
    tmp_path: Path, checkpointing: bool
) -> None:
    t = trainer(
        tmp_path,
        tiny_llama(dropout=0.1),
        bf16=True,
        gradient_checkpointing=checkpointing,
        gradient_accumulation_steps=2,
        max_steps=4,
    )
    t.train()
    curve = losses(t)
    assert all(loss == loss for loss in curve) and curve[-1] < curve[0]


def test_resuming_continues_the_run(tmp_path: Path) -> None:
    straight = trainer(tmp_path / "a", tiny_llama(), max_steps=6)
    straight.train()
    first = trainer(tmp_path / "b", tiny_llama(), max_steps=6, save_strategy="steps", save_steps=3)
    first.train()
    assert (tmp_path / "b" / "checkpoint-3" / "optimizer.pt").is_file()
    resumed = trainer(tmp_path / "c", tiny_llama(), max_steps=6)
    resumed.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-3"))
    assert resumed.state.global_step == 6
    assert losses(resumed)[-3:] == losses(straight)[-3:]
    for a, b in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_saved_model_loads_on_the_device(tmp_path: Path) -> None:
    model = tiny_llama().to("neuron").eval()
    model.save_pretrained(tmp_path)
    loaded = library().LlamaForCausalLM.from_pretrained(tmp_path, device_map="neuron").eval()
    assert loaded.device.type == "neuron"
    ids = torch.arange(10, device="neuron")[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
