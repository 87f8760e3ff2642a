"""Rules of norm.py against CPU PyTorch."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.lowering.gradients import check_gradients
from tests.lowering.harness import check, check_both

from torch_neuronx.lowering import table
from torch_neuronx.lowering.program import Array

MASKS = [[True, True, True], [True, False, False], [False, True, True]]


@pytest.fixture(autouse=True)
def seeded():
    torch.default_generator.manual_seed(0)


@pytest.mark.parametrize("shape", [[6], [4, 6]])
def test_layer_norm(shape):
    x, w, b = torch.randn(3, 4, 6) * 3 + 1, torch.randn(shape), torch.randn(shape)
    for weight, bias in ((w, b), (w, None), (None, None)):
        check_both("aten::native_layer_norm", x, shape, weight, bias, 1e-5)
    check("aten::native_layer_norm", x.bfloat16(), shape, w.bfloat16(), b.bfloat16(), 1e-5)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, shape, w, b, 1e-5)
    grad = torch.randn_like(x)
    for mask in MASKS:
        check("aten::native_layer_norm_backward", grad, x, shape, mean, rstd, w, b, mask)
    check(
        "aten::native_layer_norm_backward",
        grad,
        x,
        shape,
        mean,
        rstd,
        None,
        None,
        [True, False, False],
    )


def test_layer_norm_of_nothing():
    check("aten::native_layer_norm", torch.zeros(0, 4), [4], torch.ones(4), None, 1e-5)


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm(eps):
    x, w = torch.randn(3, 4, 6), torch.randn(6)
    check_both("aten::_fused_rms_norm", x, [6], w, eps)
    check_both("aten::_fused_rms_norm", x, [6], None, eps)
    check_both("aten::_fused_rms_norm", x, [4, 6], None, eps)


def test_rms_norm_backward():
    """CPU has no kernel for it; autograd of the formula is the reference."""
    x = torch.randn(3, 4, 6, requires_grad=True)
    w = torch.randn(6, requires_grad=True)
    grad = torch.randn(3, 4, 6)
    expected = torch.autograd.grad(F.rms_norm(x, [6], w, 1e-5), (x, w), grad)
    rstd = torch.rsqrt(x.detach().square().mean(-1, keepdim=True) + 1e-5)
    rule = table.load_rules()["aten::_fused_rms_norm_backward"].function
    arrays = [a.detach().numpy() for a in (grad, x, rstd, w)]
    got = rule(arrays[0], arrays[1], (6,), arrays[2], arrays[3], (True, True))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("group", [1, 2, 6])
def test_group_norm(group):
    x, w, b = torch.randn(2, 6, 3, 4) * 2 + 1, torch.randn(6), torch.randn(6)
    sizes = (2, 6, 12, group)
    for weight, bias in ((w, b), (w, None), (None, None)):
        check_both("aten::native_group_norm", x, weight, bias, *sizes, 1e-5)
    _, mean, rstd = torch.ops.aten.native_group_norm(x, w, b, *sizes, 1e-5)
    for mask in MASKS:
        check(
            "aten::native_group_norm_backward", torch.randn_like(x), x, mean, rstd, w, *sizes, mask
        )


BATCH_SHAPES = [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)]


def statistics():
    return torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5


@pytest.mark.parametrize("shape", BATCH_SHAPES)
def test_batch_norm_in_evaluation(shape):
    x = torch.randn(shape) * 2 + 1
    w, b, mean, var = statistics()
    check_both("aten::native_batch_norm", x, w, b, mean, var, False, 0.1, 1e-5)
    check("aten::native_batch_norm", x.bfloat16(), w, b, mean, var, False, 0.1, 1e-5)
    check_both("aten::_native_batch_norm_legit_no_training", x, w, b, mean, var, 0.1, 1e-5)
    check_both("aten::_batch_norm_no_update", x, None, None, mean, var, 0.1, 1e-5)


@pytest.mark.parametrize("shape", BATCH_SHAPES)
def test_batch_norm_in_training(shape):
    x = torch.randn(shape) * 2 + 1
    w, b, mean, var = statistics()
    check_both("aten::native_batch_norm", x, w, b, None, None, True, 0.1, 1e-5)
    check_both("aten::_native_batch_norm_legit.no_stats", x, w, None, True, 0.1, 1e-5)
    for training in (True, False):
        check_both(
            "aten::_native_batch_norm_legit_functional", x, w, b, mean, var, training, 0.3, 1e-5
        )
    check("aten::_batch_norm_with_update_functional", x, w, b, mean, var, 0.3, 1e-5)
    check("aten::batch_norm_update_stats", x, None, None, 0.1)


def test_batch_norm_mutates_its_running_statistics():
    """The schema of native_batch_norm does not say so; the rule's extra results do."""
    x = torch.randn(4, 3, 5)
    w, b, mean, var = statistics()
    rule = table.load_rules()["aten::native_batch_norm"]
    assert rule.mutates == ("running_mean", "running_var")
    arrays = [jnp.asarray(a.numpy()) for a in (x, w, b, mean, var)]
    spec = tuple(Array("float32", s) for s in ((4, 3, 5), (3,), (3,)))
    got = rule.function(*arrays, True, 0.1, 1e-5, out=spec)
    new_mean, new_var = mean.clone(), var.clone()
    expected = torch.ops.aten.native_batch_norm(x, w, b, new_mean, new_var, True, 0.1, 1e-5)
    for a, e in zip(got, (*expected, new_mean, new_var), strict=True):
        np.testing.assert_allclose(a, e.numpy(), rtol=2e-5, atol=2e-5)
    assert len(rule.function(*arrays, False, 0.1, 1e-5, out=spec)) == 3


@pytest.mark.parametrize("shape", BATCH_SHAPES)
def test_batch_norm_backward(shape):
    x = torch.randn(shape) * 2 + 1
    w, b, mean, var = statistics()
    grad = torch.randn_like(x)
    for train, mask in itertools.product((True, False), MASKS[:2]):
        _, save_mean, save_invstd = torch.ops.aten.native_batch_norm(
            x, w, b, mean.clone(), var.clone(), train, 0.1, 1e-5
        )
        for weight in (w, None) if mask == MASKS[1] else (w,):
            check(
                "aten::native_batch_norm_backward",
                grad,
                x,
                weight,
                mean,
                var,
                save_mean,
                save_invstd,
                train,
                1e-5,
                mask,
                atol=5e-5,
            )


def test_batch_norm_backward_gives_the_gradient_of_the_input_in_any_case():
    """As PyTorch's meta kernel does, also where the mask does not ask for it."""
    x = torch.randn(4, 3, 5)
    w, b, mean, var = statistics()
    arguments = [torch.randn_like(x), x, w, mean, var, mean, var, True, 1e-5]
    meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments]
    of_meta = torch.ops.aten.native_batch_norm_backward(*meta, [False, True, True])
    assert of_meta[0].shape == x.shape
    rule = table.load_rules()["aten::native_batch_norm_backward"]
    arrays = [jnp.asarray(a.numpy()) if isinstance(a, torch.Tensor) else a for a in arguments]
    every, some = (rule.function(*arrays, mask) for mask in (MASKS[0], MASKS[2]))
    for a, b in zip(every, some, strict=True):
        np.testing.assert_array_equal(a, b)


def test_instance_norm_gradients():
    check_gradients(
        lambda x: F.instance_norm(x),
        torch.randn(2, 3, 8),
        reach=("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    )


@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_renorm(p):
    for dim in (0, 1, -1):
        check_both("aten::renorm", torch.randn(3, 4, 5), p, dim, 2.5)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim):
    v = torch.randn(3, 4, 5)
    g = torch.rand([n if a == dim else 1 for a, n in enumerate(v.shape)])
    check("aten::_weight_norm_interface", v, g, dim)
    w, norms = torch.ops.aten._weight_norm_interface(v, g, dim)
    check("aten::_weight_norm_interface_backward", torch.randn_like(w), v, g, norms, dim)


def test_large_means_do_not_cancel():
    """The variance is of the centred values: a mean of 1e4 must not cancel it."""
    x = torch.randn(2, 64) + 1e4
    rule = table.load_rules()["aten::native_layer_norm"].function
    spec = tuple(Array("float32", s) for s in ((2, 64), (2, 1), (2, 1)))
    with jax.enable_x64(True):
        y, _, _ = rule(jnp.asarray(x.numpy()), (64,), None, None, 1e-5, out=spec)
    expected = F.layer_norm(x.double(), [64]).float()
    np.testing.assert_allclose(y, expected.numpy(), atol=2e-3)
