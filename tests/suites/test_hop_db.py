"""Every higher-order operator with PyTorch's own inputs (``hop_db``): results and gradients are
CPU's, eager and compiled, with no operator falling back and each graph one executable."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_device_type import (
    OpDTypes,
    instantiate_device_type_tests,
    ops,
)
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.hop_db import hop_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from suites.declared import HIGHER_ORDER, declared
from support import assert_same, no_fallback, to_device

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]


# The database registers a kernel of its operator for each device that it knows.
@torch.library.impl("testlib::mutating_custom_op", "neuron")
def _mutating(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.add_(5)
    z.add_(5)
    return x.clone(), z.clone(), x + z


class TestHigherOrder(TestCase):
    # Without dtypes: those that are for CUDA only are run, too, all in float32.
    @ops(hop_db, dtypes=OpDTypes.none)
    def test_eager(self, device: str, op: OpInfo) -> None:
        _run(op, compiled=False)

    @ops(hop_db, dtypes=OpDTypes.none)
    def test_compiled(self, device: str, op: OpInfo) -> None:
        _run(op, compiled=True)


def _run(info: OpInfo, *, compiled: bool) -> None:
    form = "compiled" if compiled else "eager"
    torch._dynamo.reset()
    with declared(HIGHER_ORDER, f"{info.name}_{info.variant_test_name}_{form}"):
        torch.manual_seed(0)
        samples = list(info.sample_inputs_func(info, "cpu", torch.float32, _trains(info)))
        assert samples
        for sample in samples:
            _compare(info, sample, compiled)


def _trains(info: OpInfo) -> bool:
    # PyTorch has no backward of flex_attention on the CPU; tests/integrations has its definition's.
    return info.name != "flex_attention"


def _compare(info: OpInfo, sample: Any, compiled: bool) -> None:
    arguments = pytree.tree_map_only(
        torch.Tensor,
        lambda t: t.detach().clone().requires_grad_(t.requires_grad),
        (sample.input, *sample.args),
    )
    moved = to_device(arguments)
    want = pytree.tree_leaves(info.op(*arguments, **sample.kwargs))
    callee: Any = torch.compile(info.op, backend="neuron") if compiled else info.op
    with no_fallback(), _one_executable() if compiled else contextlib.nullcontext():
        got = pytree.tree_leaves(callee(*moved, **sample.kwargs))
        _backward(got)
    _backward(want)
    where = f"{info.name}.{info.variant_test_name}"
    assert_same(_tensors(got), _tensors(want), strides=False, where=where)
    assert_same(_tensors(moved), _tensors(arguments), strides=False, where=f"{where}: arguments")
    gradients = [[t.grad for t in _tensors(v) if t.grad is not None] for v in (moved, arguments)]
    assert_same(*gradients, strides=False, where=f"{where}: gradients")


@contextlib.contextmanager
def _one_executable() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*operator by operator")
        yield


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _backward(results: Any) -> None:
    roots = [t for t in _tensors(results) if t.requires_grad]
    if roots:
        # Another weight for each element: a plain sum hides what is swapped.
        torch.autograd.backward(
            roots,
            [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t) for t in roots],
        )


instantiate_device_type_tests(TestHigherOrder, globals(), only_for=("privateuse1",))
