"""Rules of loss.py against CPU PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.lowering.errors import check_error
from tests.lowering.gradients import check_gradients
from tests.lowering.harness import check, check_both

REDUCTIONS = ("none", "mean", "sum")


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(reduction, weighted):
    weight = torch.rand(5) if weighted else None
    target = torch.tensor([0, 4, 2, 3, 2, 1])
    for ignore in (-100, 2):
        options = {"weight": weight, "reduction": reduction, "ignore_index": ignore}
        both = ("aten::nll_loss_forward", "aten::nll_loss_backward")
        check_gradients(
            lambda x, o=options: F.nll_loss(x, target, **o), torch.randn(6, 5), reach=both
        )
        check_gradients(
            lambda x, o=options: F.nll_loss(x, target[1], **o), torch.randn(5), reach=both
        )
        check_gradients(
            lambda x, o=options: F.nll_loss(x, target.reshape(1, 2, 3), **o),
            torch.randn(1, 5, 2, 3),
            reach=("aten::nll_loss2d_forward", "aten::nll_loss2d_backward"),
        )


def test_nll_loss_edges():
    x = torch.randn(3, 4)
    nothing = torch.full((3,), -100)
    for reduction in (0, 1, 2):
        check("aten::nll_loss_forward", x, nothing, None, reduction, -100)
        check("aten::nll_loss_forward", x[:0], nothing[:0], None, reduction, -100)
    hidden = torch.tensor([[-math.inf, 0.0], [1.0, 2.0]])
    check("aten::nll_loss_forward", hidden, torch.tensor([0, 1]), None, 1, 0)
    for dtype in (torch.bfloat16, torch.float16):
        check("aten::nll_loss_forward", x.to(dtype), torch.tensor([1, 0, 3]), None, 1, -100)


@pytest.mark.parametrize("bad", [7, -1])
def test_targets_out_of_bounds(bad):
    x, target = torch.randn(3, 5), torch.tensor([0, bad, 1])
    for reduction in (0, 1):
        check_error("aten::nll_loss_forward", x, target, None, reduction, -100)
        check_error(
            "aten::nll_loss2d_forward",
            x.reshape(1, 5, 1, 3),
            target.reshape(1, 1, 3),
            None,
            reduction,
            -100,
        )
    (grad,) = check_error(
        "aten::nll_loss_backward", torch.tensor(1.0), x, target, None, 1, -100, torch.tensor(3.0)
    )
    assert (grad[1] == 0).all() and grad[0, 0] == pytest.approx(-1 / 3)
    check_error("aten::multi_margin_loss", x, target)


ELEMENTWISE = [
    ("mse_loss", F.mse_loss, {}),
    ("smooth_l1_loss", F.smooth_l1_loss, {"beta": 0.7}),
    ("huber_loss", F.huber_loss, {"delta": 0.7}),
    ("soft_margin_loss", F.soft_margin_loss, {}),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "function", "options"), ELEMENTWISE)
def test_elementwise(name, function, options, reduction):
    target = torch.randn(3, 4)
    check_gradients(
        lambda x: function(x, target, reduction=reduction, **options),
        torch.randn(3, 4) * 2,
        reach=(f"aten::{name}", f"aten::{name}_backward"),
    )
    for dtype in (torch.bfloat16, torch.float16):
        x, t = torch.randn(3, 4).to(dtype), torch.randn(3, 4).to(dtype)
        check_both(f"aten::{name}", x, t, REDUCTIONS.index(reduction))
    check_both(f"aten::{name}", torch.zeros(0), torch.zeros(0), REDUCTIONS.index(reduction))


def test_kinks():
    d = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
    for name in ("smooth_l1_loss", "huber_loss"):
        check_both(f"aten::{name}", d, torch.zeros(5), 0, 0.5)
        check_both(f"aten::{name}_backward", torch.ones(5), d, torch.zeros(5), 0, 0.5)
    check_both("aten::smooth_l1_loss", d, torch.zeros(5), 0, 0.0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(reduction, weighted):
    weight = torch.rand(4) if weighted else None
    target = torch.rand(3, 4)
    check_gradients(
        lambda x: F.binary_cross_entropy(x, target, weight, reduction=reduction),
        torch.rand(3, 4),
        reach=("aten::binary_cross_entropy", "aten::binary_cross_entropy_backward"),
    )
    check_both(
        "aten::binary_cross_entropy_with_logits",
        torch.randn(3, 4) * 5,
        target,
        weight,
        torch.rand(4) if weighted else None,
        REDUCTIONS.index(reduction),
    )


def test_binary_cross_entropy_edges():
    x = torch.tensor([0.0, 1.0, 0.0, 1.0])
    check("aten::binary_cross_entropy", x, x.flip(0), None, 0)
    check("aten::binary_cross_entropy_backward", torch.ones(4), x, x.flip(0), None, 0)
    check_error("aten::binary_cross_entropy", x * 2, x)
    check_error("aten::binary_cross_entropy", x, x - 0.5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(reduction, p):
    weight = torch.rand(5)
    reach = ("aten::multi_margin_loss", "aten::multi_margin_loss_backward")
    for w in (None, weight):
        check_gradients(
            lambda x, w=w: F.multi_margin_loss(
                x, torch.tensor([0, 4, 2]), p, 0.8, w, reduction=reduction
            ),
            torch.randn(3, 5),
            reach=reach,
        )
    check_gradients(
        lambda x: F.multi_margin_loss(x, torch.tensor(1), p, reduction=reduction),
        torch.randn(5),
        reach=reach,
    )


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_multilabel_margin(reduction):
    torch.manual_seed(0)
    rows, labels = torch.randn(3, 4), torch.tensor([[0, 3, -1, 1], [1, 1, 2, 0], [-1, 2, 0, 0]])
    name = "aten::multilabel_margin_loss"
    for x, t in ((rows, labels), (rows[0], labels[0]), (torch.tensor(0.5), torch.tensor(0))):
        check(f"{name}_forward", x, t, reduction)
        loss, marks = torch.ops.aten.multilabel_margin_loss_forward(x, t, reduction)
        check(f"{name}_backward", torch.randn_like(loss), x, t, reduction, marks)


def test_multilabel_margin_target_out_of_range():
    for bad in (4, -2):
        t = torch.tensor([[0, bad, -1, 1], [0, -1, 2, 1]])
        check_error("aten::multilabel_margin_loss_forward", torch.randn(2, 4), t, 1)
