"""What the tests of client libraries share: tiny models, a tokenizer, and CPU's results beside the
device's, eager and compiled."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, no_fallback, to_device

VOCABULARY = 128


def library(name: str) -> Any:
    """A library, imported by the tests that run and not when they are collected; they are skipped
    where it is not installed (extra ``clients``)."""
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install .[clients]")


def tiny_llama(**options: Any) -> Any:
    """A Llama of two layers. Weights are large, so that no two tokens are nearly as likely."""
    transformers = library("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "initializer_range": 0.3,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 2,
            **options,
        }
    )
    return transformers.LlamaForCausalLM(config).eval()


def word_tokenizer() -> Any:
    """A tokenizer of the words w3 to w127, made in memory."""
    tokenizers = importlib.import_module("tokenizers")
    words = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "[UNK]": 3}
    words.update({f"w{i}": i for i in range(4, VOCABULARY)})
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return library("transformers").PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="[UNK]",
    )


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    """Normal numbers that do not depend on what ran before."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def token_ids(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def same_as_cpu(
    model: nn.Module,
    *inputs: Any,
    run: Callable[..., torch.Tensor] | None = None,
    train: bool = False,
    scale: float = 1.0,
    **options: Any,
) -> None:
    """Eager and compiled, a model gives what it gives on the CPU, with no operator falling back.

    ``run(model, *inputs, **options)`` gives a tensor, by default the model's call; ``train``: its
    mean square is differentiated, and every gradient compared. ``scale`` multiplies the tolerances.
    """
    run = run or (lambda m, *a, **k: m(*a, **k))
    expected = _result(model, run, inputs, options, train)
    for compiled in (False, True):
        moved = copy.deepcopy(model)
        moved.zero_grad()
        moved.to("neuron")
        callee: Any = torch.compile(moved, backend="neuron") if compiled else moved
        with no_fallback():
            actual = _result(callee, run, to_device(inputs), to_device(options), train)
        where = "compiled" if compiled else "eager"
        assert_same(actual[0], expected[0], strides=False, scale=scale, where=where)
        actual_grads = {n.removeprefix("_orig_mod."): g for n, g in actual[1].items()}
        assert list(actual_grads) == list(expected[1])
        for name, grad in expected[1].items():
            size = max(1.0, float(grad.abs().max()))
            assert_same(
                actual_grads[name] / size,
                grad / size,
                strides=False,
                scale=scale,
                where=f"{where}, gradient of {name}",
            )


def _result(
    model: nn.Module,
    run: Callable[..., torch.Tensor],
    inputs: Any,
    options: dict[str, Any],
    train: bool,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    with torch.set_grad_enabled(train):
        out = run(model, *inputs, **options)
        if train:
            out.float().square().mean().backward()
    return out.detach(), gradients(model)
