"""Every optimizer of torch.optim with PyTorch's own options (``optim_db``), in its for-loop,
foreach, fused and capturable forms: parameters and states after three steps are CPU's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db, optims
from torch.testing._internal.common_utils import TestCase, parametrize

from clients.common import numbers
from suites.declared import OPTIMIZERS, declared
from support import assert_same, no_fallback

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]

FORMS = ("forloop", "foreach", "fused")
SCALE = 20.0  # three steps, each with divisions and square roots of sums


class TestOptimizers(TestCase):
    @optims(optim_db, dtypes=[torch.float32])
    @parametrize("form", FORMS)
    def test_steps(self, device: str, dtype: Any, optim_info: OptimizerInfo, form: str) -> None:
        if form != "forloop" and form not in optim_info.supported_impls:
            pytest.skip(f"{optim_info.name} has no {form} form")
        with declared(OPTIMIZERS, f"{optim_info.name}_{form}"):
            # Asked for CUDA, the database adds the capturable options.
            for given in optim_info.optim_inputs_func(device="cuda"):
                _compare(optim_info, given.kwargs, form, given.desc)

    @optims([o for o in optim_db if not o.step_requires_closure], dtypes=[torch.float32])
    def test_compiled(self, device: str, dtype: Any, optim_info: OptimizerInfo) -> None:
        torch._dynamo.reset()
        with declared(OPTIMIZERS, f"{optim_info.name}_compiled"):
            _compare(optim_info, {}, "foreach", "compiled", compiled=True)

    @optims(optim_db, dtypes=[torch.float32])
    def test_errors(self, device: str, dtype: Any, optim_info: OptimizerInfo) -> None:
        with declared(OPTIMIZERS, f"{optim_info.name}_errors"):
            for error in optim_info.optim_error_inputs_func(device="cpu", dtype=dtype):
                given = error.optimizer_error_input
                if error.error_on.name != "CONSTRUCTION_ERROR":
                    continue
                params = _moved(given.params, {})
                expect = pytest.warns if issubclass(error.error_type, Warning) else pytest.raises
                with expect(error.error_type, match=error.error_regex):
                    optim_info.optim_cls(params, **given.kwargs)


def _moved(value: Any, seen: dict[int, Any]) -> Any:
    """Parameters on the device; one that is given twice stays one."""
    if isinstance(value, torch.Tensor):
        return seen.setdefault(id(value), value.detach().to("neuron"))
    if isinstance(value, list):
        return [_moved(v, seen) for v in value]
    if isinstance(value, dict):
        return {k: _moved(v, seen) for k, v in value.items()}
    return value


def _shapes(info: OptimizerInfo) -> list[tuple[int, ...]]:
    return [(4, 6), (3, 5)] if info.name == "Muon" else [(4, 6), (6,), (1,), ()]


def _gradient(shape: tuple[int, ...], step: int, sparse: bool) -> torch.Tensor:
    if not sparse:
        return numbers(*shape, seed=10 * step + len(shape)) + 0.5
    rows = torch.tensor([[step % shape[0], (step + 2) % shape[0]]])
    return torch.sparse_coo_tensor(rows, numbers(2, *shape[1:], seed=step), shape).coalesce()


def _compare(
    info: OptimizerInfo, options: dict[str, Any], form: str, about: str, *, compiled: bool = False
) -> None:
    options = {k: v for k, v in options.items() if k not in FORMS}
    capturable = options.get("capturable", False)
    if form == "foreach" and isinstance(options.get("lr"), torch.Tensor) and not capturable:
        return  # torch refuses a tensor for a rate there
    flags = {f: f == form for f in FORMS[1:] if f in info.supported_impls}
    # CPU has no capturable form: its plain one computes the same.
    plain = {k: v for k, v in options.items() if k != "capturable"}
    off = dict.fromkeys(flags, False)
    want = _train(info, "cpu", {**plain, **off})
    with no_fallback():
        got = _train(info, "neuron", {**options, **flags}, compiled)
    where = f"{info.name}, {form}, {about}"
    assert_same(got[0], want[0], scale=SCALE, where=f"{where}: parameters")
    for i, state in enumerate(want[1]):
        for key, value in state.items():
            actual = got[1][i][key]
            if not isinstance(value, torch.Tensor):
                continue
            if actual.device.type == "cpu":  # a step counter that stays on the host, as on CUDA
                torch.testing.assert_close(actual, value, check_dtype=False)
            else:
                assert_same(
                    actual, value.to(actual.dtype), strides=False, scale=SCALE,
                    where=f"{where}: state {key} of parameter {i}",
                )  # fmt: skip


def _train(
    info: OptimizerInfo, device: str, options: dict[str, Any], compiled: bool = False
) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """Parameters, and the state of each, after three steps."""
    sparse = info.only_supports_sparse_grads
    shapes = [(4, 6), (6,)] if sparse else _shapes(info)
    options = {k: _own(v, device, options) for k, v in options.items()}
    params = [torch.nn.Parameter(numbers(*shape, seed=len(shape)).to(device)) for shape in shapes]
    optimizer = info.optim_cls(params, **options)
    update: Any = torch.compile(optimizer.step, backend="neuron") if compiled else optimizer.step
    for step in range(3):
        for p in params:
            p.grad = _gradient(tuple(p.shape), step, sparse).to(device)
        if info.step_requires_closure:
            update(lambda: _loss(params))
        else:
            update()
    states = [optimizer.state.get(p, {}) for p in params]
    return [p.detach() for p in params], states


def _own(value: Any, device: str, options: dict[str, Any]) -> Any:
    """A copy of an option. Tensors of capturable forms must lie with the parameters."""
    if isinstance(value, torch.Tensor):
        return value.to(device) if options.get("capturable") else value.clone()
    return copy.deepcopy(value)


def _loss(params: list[torch.nn.Parameter]) -> torch.Tensor:
    for p in params:
        p.grad = None
    loss = torch.stack([(p - 0.3).square().sum() for p in params]).sum()
    loss.backward()
    return loss


instantiate_device_type_tests(TestOptimizers, globals(), only_for=("privateuse1",))
