"""Every module of torch.nn with PyTorch's own inputs (``module_db``): outputs, gradients of inputs
and parameters, and buffers are CPU's, eager and compiled, with no operator falling back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.parameter import UninitializedTensorMixin
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import ModuleInfo, module_db, modules
from torch.testing._internal.common_utils import TestCase
from torch.utils import _pytree as pytree

from suites.declared import MODULES, declared
from support import TOLERANCES, assert_same, no_fallback, to_device

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]

# Layers whose training draws random numbers: the device's are not CPU's (README, Limits), so that
# shapes and dtypes are compared, and values in evaluation only.
RANDOM = "Dropout RReLU FractionalMaxPool"
# Weights, logits and sums of some twenty products of order one.
SCALE = 10.0

# The database names float32 and float64 for most, since it compares gradients with differences.
REDUCED = [copy.copy(info) for info in module_db]
for _info in REDUCED:
    _info.dtypes = (torch.bfloat16,)


class TestModules(TestCase):
    @modules(module_db, allowed_dtypes=[torch.float32])
    def test_eager(self, device: str, dtype: Any, module_info: ModuleInfo, training: bool) -> None:
        _run(self, module_info, dtype, training, compiled=False)

    @modules(module_db, allowed_dtypes=[torch.float32])
    def test_compiled(
        self, device: str, dtype: Any, module_info: ModuleInfo, training: bool
    ) -> None:
        torch._dynamo.reset()
        _run(self, module_info, dtype, training, compiled=True)

    @modules(REDUCED)
    def test_reduced(
        self, device: str, dtype: Any, module_info: ModuleInfo, training: bool
    ) -> None:
        _run(self, module_info, dtype, training, compiled=False)


def _run(case: TestCase, info: ModuleInfo, dtype: Any, training: bool, compiled: bool) -> None:
    name = case._testMethodName.partition("_neuron")[0].partition("_privateuse1")[0]
    with declared(MODULES, name):
        count = 0
        torch.manual_seed(0)
        for given in info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        ):
            if given.forward_input is None:
                continue
            count += 1
            _compare(info, given, dtype, training, compiled)
        assert count > 0


def _compare(info: ModuleInfo, given: Any, dtype: Any, training: bool, compiled: bool) -> None:
    """One input of a module; the CPU's failure to run it is no case."""
    built = given.constructor_input
    arguments = _leaves((list(given.forward_input.args), dict(given.forward_input.kwargs)))
    torch.manual_seed(0)
    on_cpu = info.module_cls(*built.args, **built.kwargs).to(dtype).train(training)
    if any(isinstance(p, UninitializedTensorMixin) for p in on_cpu.parameters()):
        with torch.no_grad():  # weights that are drawn at the first call are drawn once
            on_cpu(*arguments[0], **arguments[1])
    random = training and (any(word in info.name for word in RANDOM.split()) or _drops(on_cpu))
    moved = copy.deepcopy(on_cpu).to("neuron")
    exact = copy.deepcopy(on_cpu).float()
    on_device_arguments = to_device(arguments)
    exact_arguments = _leaves(pytree.tree_map_only(torch.Tensor, _widened, arguments))
    try:
        expected = _call(on_cpu, *arguments)
    except (RuntimeError, NotImplementedError) as error:
        if "not implemented for" in str(error):
            return  # CPU has no kernel for this dtype
        raise
    callee: Any = torch.compile(moved, backend="neuron") if compiled else moved
    with no_fallback():
        actual = _call(callee, *on_device_arguments)
    if random:
        _compare_kinds(actual, expected)
        return
    if dtype == torch.bfloat16:
        _compare_errors(actual, expected, _call(exact, *exact_arguments))
        return
    for part, want in expected.items():
        assert_same(actual[part], want, strides=False, scale=SCALE, where=part)
    for key, value in on_cpu.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert_same(moved.state_dict()[key], value, strides=False, scale=SCALE, where=key)


def _leaves(value: Any) -> Any:
    """The same inputs as leaves: some are made by an operation, and would keep no gradient."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), value
    )


def _widened(t: torch.Tensor) -> torch.Tensor:
    wide = t.detach().float() if t.dtype == torch.bfloat16 else t.detach()
    return wide.requires_grad_(t.requires_grad)


def _compare_errors(
    actual: dict[str, Any], expected: dict[str, Any], exact: dict[str, Any]
) -> None:
    """Against float32 the device errs no more than twice as much as the CPU, whose own rounding of
    sums (a gradient of an embedding stalls at 256 ones) makes it no reference."""
    _compare_kinds(actual, expected)
    for part, want in expected.items():
        for got, cpu, true in zip(actual[part], want, exact[part], strict=True):
            rtol, atol = TOLERANCES[torch.bfloat16]
            if not true.is_floating_point():
                assert torch.equal(got.cpu(), cpu), part
                continue
            own, reference = cpu.float(), true.float()
            limit = 2 * _distance(own, reference) + atol
            finite = reference[reference.isfinite()]
            limit += rtol * float(finite.abs().max()) if finite.numel() else 0.0
            assert _distance(got.cpu().float(), reference) <= limit, part


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; that of one NaN or infinity to another is none."""
    same = (a == b) | (a.isnan() & b.isnan())
    return float(torch.where(same, 0.0, (a - b).abs()).max()) if a.numel() else 0.0


def _drops(module: torch.nn.Module) -> bool:
    """Whether a part of it drops elements when it trains."""
    rates = [getattr(m, "dropout", 0.0) for m in module.modules()]
    rates += [m.p for m in module.modules() if isinstance(m, torch.nn.Dropout)]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _call(module: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Outputs, and gradients of inputs and parameters by name."""
    out = module(*args, **kwargs)
    leaves = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
    roots = [t for t in leaves if t.requires_grad]
    if roots:
        # Another weight for each element: a plain sum hides what is swapped.
        weights = [
            torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.dtype).to(t.device)
            for t in roots
        ]
        torch.autograd.backward(roots, weights)
    inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    plain = getattr(module, "_orig_mod", module)
    return {
        "output": [t.detach() for t in leaves],
        "gradients of inputs": [t.grad for t in inputs if t.grad is not None],
        "gradients of parameters": [p.grad for p in plain.parameters() if p.grad is not None],
    }


def _compare_kinds(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    for part, want in expected.items():
        got = actual[part]
        assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in want], part
        assert all(t.device.type == "neuron" for t in got)


instantiate_device_type_tests(TestModules, globals(), only_for=("privateuse1",))
