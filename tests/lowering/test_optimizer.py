"""Rules of optimizer.py against CPU PyTorch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.lowering.harness import check_both, full_arguments, make_case, overload_of, run

SHAPES = ((3, 4), (5,), ())


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


def lists(count: int, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    """``count`` lists of tensors; all but the first two hold non-negative state."""
    result = [[torch.randn(s).to(dtype) for s in SHAPES] for _ in range(count)]
    return [[x.abs() if i > 1 else x for x in row] for i, row in enumerate(result)]


def steps(n: int) -> list[torch.Tensor]:
    return [torch.tensor(float(n)) for _ in SHAPES]


def scaling(name: str) -> dict[str, torch.Tensor | None]:
    if name == "none":
        return {}
    found = torch.tensor(1.0 if name == "overflow" else 0.0)
    return {"grad_scale": torch.tensor(8.0), "found_inf": found}


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("scale", ["none", "scaled", "overflow"])
def test_adam(name, scale):
    for step, amsgrad, maximize in ((1, False, False), (1000, True, True)):
        p, g, m, v, top = lists(5)
        options = {
            "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8,
            "amsgrad": amsgrad, "maximize": maximize, **scaling(scale),
        }  # fmt: skip
        args = (p, g, m, v, top if amsgrad else [], steps(step))
        check_both(f"aten::{name}", *args, lr=1e-2, **options)
        check_both(f"aten::{name}.tensor_lr", *args, lr=torch.tensor(1e-2), **options)


def test_adam_beta_of_small_weight():
    """lerp takes its other form when 1 - beta1 >= 1/2."""
    p, g, m, v = lists(4)
    options = {"weight_decay": 0.0, "eps": 1e-8, "amsgrad": False, "maximize": False}
    check_both(
        "aten::_fused_adamw", p, g, m, v, [], steps(2), lr=1e-3, beta1=0.3, beta2=0.5, **options
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_adam_dtypes(dtype):
    p, g, m, v = lists(4, dtype)
    check_both(
        "aten::_fused_adamw",
        p,
        g,
        m,
        v,
        [],
        steps(3),
        lr=1e-2,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def test_adam_first_step_is_exact():
    """1 - beta2 is computed in float64: with an update of lr, five digits would be missing."""
    options = {"lr": 1.0, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 0.0,
               "amsgrad": False, "maximize": False}  # fmt: skip
    zeros = [torch.zeros(4)]
    args = ([torch.zeros(4)], [torch.tensor([1.0, -2.0, 1e-3, 40.0])], zeros, zeros, [],
            [torch.tensor(1.0)])  # fmt: skip
    name = "aten::_fused_adamw"
    filled = full_arguments(overload_of(name), args, options)
    for form in ("eager", "graph"):
        param = run(make_case(name, filled, form))[0]
        np.testing.assert_allclose(param, [-1, 1, -1, -1], rtol=4e-7)


@pytest.mark.parametrize("scale", ["none", "scaled", "overflow"])
def test_sgd(scale):
    for momentum, nesterov, first, decay in itertools.product(
        (0.0, 0.9), (False, True), (False, True), (0.0, 0.1)
    ):
        if momentum == 0 and (nesterov or first):
            continue
        p, g, buffers = lists(3)
        options = {
            "weight_decay": decay, "momentum": momentum,
            "dampening": 0.0 if nesterov else 0.2,
            "nesterov": nesterov, "maximize": first, "is_first_step": first, **scaling(scale),
        }  # fmt: skip
        args = (p, g, buffers if momentum else [])
        check_both("aten::_fused_sgd", *args, lr=0.1, **options)
    check_both("aten::_fused_sgd.tensor_lr", *args, lr=torch.tensor(0.1), **options)


def test_sgd_without_decay_keeps_infinite_parameters():
    p, g = [torch.tensor([np.inf, 1.0])], [torch.ones(2)]
    check_both(
        "aten::_fused_sgd",
        p,
        g,
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


@pytest.mark.parametrize("scale", ["none", "scaled", "overflow"])
def test_adagrad(scale):
    p, g, sums = lists(3)
    options = {"lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-10, "maximize": True,
               **scaling(scale)}  # fmt: skip
    check_both("aten::_fused_adagrad", p, g, sums, steps(4), lr=0.1, **options)
    check_both(
        "aten::_fused_adagrad.tensor_lr", p, g, sums, steps(4), lr=torch.tensor(0.1), **options
    )


@pytest.mark.parametrize("bad", [None, np.inf, np.nan])
def test_unscale(bad):
    (grads,) = lists(1)
    if bad is not None:
        grads[1][2] = bad
    name = "aten::_amp_foreach_non_finite_check_and_unscale"
    for before in (0.0, 1.0):
        check_both(name, grads, torch.tensor([before]), torch.tensor([0.25]))


@pytest.mark.parametrize(("found", "tracker"), [(0.0, 1), (0.0, 2), (1.0, 2)])
def test_update_scale(found, tracker):
    for scale in (64.0, 3e38):
        check_both(
            "aten::_amp_update_scale",
            torch.tensor([scale]),
            torch.tensor([tracker], dtype=torch.int32),
            torch.tensor([found]),
            2.0,
            0.5,
            3,
        )
