"""PEFT: adapters trained, saved, loaded and merged on the device."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.common import library, tiny_llama, token_ids
from support import no_fallback

CLIENTS = ("peft",)
pytestmark = pytest.mark.clients

TARGETS = ["q_proj", "v_proj"]


def adapted(**options: Any) -> Any:
    peft = library("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, **{"lora_alpha": 8, "target_modules": TARGETS, **options}
    )
    return peft.get_peft_model(tiny_llama(initializer_range=0.05), config)


def fit(model: Any, callee: Any = None, steps: int = 3) -> list[float]:
    """Losses of a few steps on one batch."""
    callee = model if callee is None else callee
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    ids = token_ids(2, 12).to(model.device)
    losses = []
    model.train()
    for _ in range(steps):
        loss = callee(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return losses


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(token_ids(1, 9, seed=3).to(model.device)).logits.cpu()
    return result


KINDS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "rsLoRA with biases": {"use_rslora": True, "bias": "lora_only"},
    "DoRA": {"use_dora": True},
    "embedding": {"target_modules": [*TARGETS, "embed_tokens"]},
    "PiSSA": {"init_lora_weights": "pissa"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_follows_cpu(kind: str) -> None:
    on_cpu = adapted(**KINDS[kind])
    on_device = copy.deepcopy(on_cpu).to("neuron")
    frozen = {n: p.clone() for n, p in on_device.named_parameters() if not p.requires_grad}
    expected = fit(on_cpu)
    with no_fallback():
        got = fit(on_device)
    assert got == pytest.approx(expected, rel=2e-4)
    assert got[-1] < got[0]
    for name, parameter in on_device.named_parameters():
        assert parameter.device.type == "neuron"
        if name in frozen:
            assert torch.equal(parameter, frozen[name])
    torch.testing.assert_close(logits(on_device), logits(on_cpu), rtol=2e-3, atol=2e-3)


def test_adapters_are_made_on_the_device() -> None:
    """Principal singular values of weights that lie there already."""
    peft = library("peft")
    base = tiny_llama(initializer_range=0.05)
    expected = logits(base)
    config = peft.LoraConfig(r=4, target_modules=TARGETS, init_lora_weights="pissa")
    with no_fallback():
        model = peft.get_peft_model(base.to("neuron"), config)
        assert all(p.device.type == "neuron" for p in model.parameters())
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)


def test_compiled() -> None:
    on_cpu = adapted()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    expected = fit(on_cpu)
    with no_fallback():
        got = fit(on_device, torch.compile(on_device, backend="neuron"))
    assert got == pytest.approx(expected, rel=2e-4)


def test_bf16_base_with_float32_adapters() -> None:
    peft = library("peft")
    base = tiny_llama(initializer_range=0.05).to(torch.bfloat16).to("neuron")
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=TARGETS))
    adapters = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in adapters} == {torch.float32}
    with no_fallback():
        losses = fit(model, steps=6)
    assert losses[-1] < losses[0]


def test_saved_loaded_and_merged(tmp_path: Path) -> None:
    peft = library("peft")
    model = adapted().to("neuron")
    fit(model)
    expected = logits(model)
    model.save_pretrained(tmp_path)
    base = tiny_llama(initializer_range=0.05).to("neuron")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert all(p.device.type == "neuron" for p in loaded.parameters())
    assert torch.equal(logits(loaded), expected)
    with no_fallback():
        merged = loaded.merge_and_unload()
    assert not isinstance(merged, peft.PeftModel)
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)
