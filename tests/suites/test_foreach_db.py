"""Every foreach function with PyTorch's own inputs (``foreach_*_op_db``): lists of tensors of many
shapes, with numbers, lists of numbers and tensors; functional and in-place; results, gradients and
refusals are CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations as infos
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.opinfo.core import ForeachFuncInfo
from torch.utils import _pytree as pytree

from suites.declared import FOREACH, declared
from support import assert_same, no_fallback, to_device

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]

DATABASE: list[ForeachFuncInfo] = [
    *infos.foreach_unary_op_db,
    *infos.foreach_binary_op_db,
    *infos.foreach_pointwise_op_db,
    *infos.foreach_reduce_op_db,
    *infos.foreach_other_op_db,
]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
# Upstream's 20 are as many shapes to compile; a list needs 4 for its mixed numbers.
TENSORS = 5
SCALE = 5.0  # powers of some units


class TestForeach(TestCase):
    @ops(DATABASE, allowed_dtypes=DTYPES)
    def test_functional(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        if op.method_variant is None or not op.supports_out:
            pytest.skip(f"{op.name} has no functional form")
        _run(op, dtype, op.method_variant, "functional")

    @ops(DATABASE, allowed_dtypes=DTYPES)
    def test_in_place(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        if op.inplace_variant is None:
            pytest.skip(f"{op.name} has no in-place form")
        _run(op, dtype, op.inplace_variant, "in_place")

    @ops([o for o in DATABASE if o.supports_autograd], allowed_dtypes=(torch.float32,))
    def test_gradients(self, device: str, dtype: torch.dtype, op: ForeachFuncInfo) -> None:
        if not op.supports_out:
            pytest.skip(f"{op.name} has no functional form")
        _run(op, dtype, op.method_variant, "gradients", trains=True)


def _samples(info: ForeachFuncInfo, dtype: torch.dtype, trains: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    # For "cpu" the database leaves out lists with empty tensors in between.
    yield from info.sample_inputs_func(info, "neuron", dtype, trains, num_input_tensors=[TENSORS])


def _run(
    info: ForeachFuncInfo,
    dtype: torch.dtype,
    function: Callable[..., Any],
    form: str,
    trains: bool = False,
) -> None:
    short = str(dtype).removeprefix("torch.")
    with declared(FOREACH, f"{info.name}_{form}_{short}"):
        count = 0
        for sample in _samples(info, dtype, trains):
            options = {k: v for k, v in sample.kwargs.items() if k != "disable_fastpath"}
            _compare(function, (sample.input, *sample.args), options, trains)
            count += 1
        assert count > 0


def _on_cpu(value: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().cpu().requires_grad_(t.requires_grad), value
    )


def _compare(
    function: Callable[..., Any], given: Any, options: dict[str, Any], trains: bool
) -> None:
    on_cpu, numbers = _on_cpu(given), _on_cpu(options)
    moved, named = to_device(on_cpu), to_device(numbers)
    try:
        want = _call(function, on_cpu, numbers, trains)
    except (RuntimeError, IndexError, NotImplementedError) as error:
        if "not implemented for" in str(error):
            return  # CPU has no kernel for this dtype
        with pytest.raises(type(error)):
            _call(function, moved, named, trains)
        assert_same(list(moved[0]), list(on_cpu[0]), where="the list of a refused call")
        return
    with no_fallback():
        got = _call(function, moved, named, trains)
    for part, expected in want.items():
        assert_same(got[part], expected, strides=part == "list", scale=SCALE, where=part)


def _call(
    function: Callable[..., Any], given: Any, options: dict[str, Any], trains: bool
) -> dict[str, list[torch.Tensor]]:
    """Results, gradients of all inputs, and the list itself after the call."""
    results = [] if (out := function(*given, **options)) is None else list(out)
    roots = [t for t in results if t.requires_grad]
    if trains:
        # Another weight for each element: a plain sum hides what is swapped.
        weights = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t) for t in roots]
        torch.autograd.backward(roots, weights)
    inputs = [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]
    return {
        "results": results,
        "gradients": [t.grad for t in inputs if t.grad is not None],
        "list": list(given[0]),
    }


instantiate_device_type_tests(TestForeach, globals(), only_for=("privateuse1",))
