"""unique, counting, linear algebra and transforms through the dispatcher, natively."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import assert_same, no_fallback, to_device

torch.manual_seed(0)
A, B = torch.randn(4, 4), torch.randn(2, 4, 4)
P = B @ B.mT + torch.eye(4)
ALL = {"return_inverse": True, "return_counts": True}
ones, stack, eye = torch.ones, torch.stack, torch.eye


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[3, 1, 3], [2, 1, 7]]), torch.tensor(5), torch.empty(0),
        torch.tensor([math.nan, 1.0, math.nan, 1.0]), torch.tensor([True, False, True]),
        torch.tensor([3, 1, 3], dtype=torch.uint8), torch.randint(0, 5, (4, 6)).t()[1:],
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)  # fmt: skip
def test_unique(x: torch.Tensor) -> None:
    moved = to_device(x)
    with no_fallback():
        assert_same(torch.unique(moved), torch.unique(x))
        assert_same(torch.unique(moved, **ALL), torch.unique(x, **ALL))
        assert_same(torch.unique_consecutive(moved, **ALL), torch.unique_consecutive(x, **ALL))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_slices(dim: int) -> None:
    x = torch.randint(0, 2, (6, 3, 2))
    moved = to_device(x)
    with no_fallback():
        assert_same(torch.unique(moved, dim=dim, **ALL), torch.unique(x, dim=dim, **ALL))
        got = torch.unique_consecutive(moved, dim=dim, **ALL)
        assert_same(got, torch.unique_consecutive(x, dim=dim, **ALL))
        empty = torch.empty(0, 3)
        assert_same(torch.unique(empty.to("neuron"), dim=0), torch.unique(empty, dim=0))


def test_bincount() -> None:
    x, weights = torch.tensor([3, 1, 3, 2, 0, 7]), torch.rand(6)
    with no_fallback():
        assert_same(torch.bincount(x.to("neuron")), torch.bincount(x))
        got = torch.bincount(*to_device([x, weights]), minlength=10)
        assert_same(got, torch.bincount(x, weights, minlength=10))
        assert_same(torch.bincount(x[:0].to("neuron"), minlength=2), torch.zeros(2).long())


def _fresh_statistics(x: torch.Tensor) -> list[torch.Tensor]:
    on = torch.ones(1, dtype=torch.int64, device=x.device)
    states = [torch.empty(0, device=x.device) for _ in range(3)]
    states.append(torch.empty(0, dtype=torch.int32, device=x.device))
    op = torch.ops.aten._fused_moving_avg_obs_fq_helper
    return [*op(x, on, on, *states, 0.1, 0, 15, 0, True, False), *states]


# name -> (call, tensors); the floating ones get gradients where the result has one.
CALLS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "det": (torch.det, [A]),
    "det, transposed": (lambda a: torch.det(a.T), [A]),
    "slogdet": (lambda a: torch.slogdet(a)[1], [B]),
    "inverse": (torch.inverse, [P]),
    "solve": (torch.linalg.solve, [P, torch.randn(2, 4, 3)]),
    "solve, vectors": (torch.linalg.solve, [P, torch.randn(2, 4)]),
    "solve, transposed": (lambda a, b: torch.linalg.solve(a.mT, b), [P, torch.randn(2, 4, 3)]),
    "solve, right": (
        lambda a, b: torch.linalg.solve(a, b, left=False), [P, torch.randn(2, 3, 4)],
    ),
    "cholesky": (torch.linalg.cholesky, [P]),
    "cholesky_solve": (
        lambda b, a: torch.cholesky_solve(b, torch.linalg.cholesky(a)), [torch.randn(2, 4, 3), P],
    ),
    "qr": (lambda a: torch.linalg.qr(a)[1], [B]),
    "lu": (lambda a: torch.linalg.lu(a)[2], [B]),
    "triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), [P, torch.randn(2, 4, 3)],
    ),
    "eigvalsh": (torch.linalg.eigvalsh, [P]),
    "svdvals": (torch.linalg.svdvals, [B]),
    "pinv": (torch.linalg.pinv, [A]),
    "matrix_exp": (torch.matrix_exp, [A]),
    "fft": (lambda x: torch.fft.fft(x).abs(), [A]),
    "irfft": (lambda x: torch.fft.irfft(torch.complex(x, x * 2), norm="ortho"), [A]),
    "stft": (
        lambda x: torch.stft(x, 8, return_complex=True, window=x[:8].detach()).abs(),
        [torch.rand(32)],
    ),
    "polynomial": (lambda x: torch.special.laguerre_polynomial_l(x.detach(), 3), [A]),
    "bessel": (lambda x: torch.special.bessel_j0(x.detach()), [A]),
    "fake_quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -5, 5), [A]),
    "observer": (_fresh_statistics, [torch.rand(3, 4)]),
    "zero tensor": (lambda x: torch.ops.aten._efficientzerotensor([4], device=x.device) + x, [A]),
    "jvp": (lambda x: torch.func.jvp(lambda a, b: a * 2 + b.detach(), (x, x), (x, x))[1], [A]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_like_cpu(name: str) -> None:
    call, tensors = CALLS[name]
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    moved = [t.detach().to("neuron").requires_grad_(t.requires_grad) for t in leaves]
    want = call(*leaves)
    with no_fallback():
        got = call(*moved)
        # Systems are solved to float32's accuracy times their condition.
        assert_same(got, want, strides="solve" not in name, scale=50)
        if isinstance(want, torch.Tensor) and want.requires_grad:
            expected = torch.autograd.grad(want.sum(), leaves)
            assert_same(torch.autograd.grad(got.sum(), moved), expected, strides=False, scale=100)


@pytest.mark.parametrize(
    ("call", "tensors"),
    [
        (torch.inverse, [ones(3, 3)]),
        (torch.inverse, [stack([eye(3), ones(3, 3)])]),
        (torch.linalg.solve, [ones(3, 3), ones(3)]),
        (torch.linalg.solve, [ones(3, 2), ones(3)]),
        (torch.linalg.cholesky, [torch.zeros(2, 2)]),
        (torch.det, [ones(2, 3)]),
        (torch.bincount, [torch.tensor([-1, 2])]),
        (torch.bincount, [torch.tensor([[1]])]),
        (torch.bincount, [torch.tensor([1.0])]),
        (lambda x: torch.unique(x, dim=0), [torch.empty(2, 0)]),
        (torch.unique, [torch.ones(2, dtype=torch.complex64)]),
    ],
)
def test_refusals(call: Callable[..., Any], tensors: list[torch.Tensor]) -> None:
    with pytest.raises(Exception) as expected:
        call(*tensors)
    with no_fallback(), pytest.raises(type(expected.value)) as raised:
        call(*to_device(tensors))
    assert str(raised.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_assertion_is_raised_at_the_next_synchronisation() -> None:
    flag = torch.zeros(1, device="neuron")
    torch._assert_async(flag == 0, "holds")
    torch._assert_async(flag, "no flag")
    with pytest.raises(RuntimeError, match="no flag"):
        torch.neuron.synchronize()


def test_gammas_repeat_eager_and_compiled() -> None:
    def draw() -> list[torch.Tensor]:
        alpha = torch.full((7,), 0.5, device="neuron")
        return [torch._standard_gamma(alpha), torch.poisson(alpha), torch.rand(3, device="neuron")]

    state = torch.get_rng_state()
    results = []
    for call in (draw, draw, torch.compile(draw, backend="neuron")):
        torch.neuron.manual_seed(5)
        results.append([x.cpu() for x in call()])
    assert all(torch.equal(x, y) for x, y in zip(results[0], results[1], strict=True))
    # Compiled code may round the logarithms in a gamma differently.
    torch.testing.assert_close(results[2], results[0])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("function", "matrix"),
    [
        (torch.linalg.inv_ex, torch.zeros(2, 2)),
        (torch.linalg.inv_ex, torch.zeros(3, 2, 2)),
        (torch.linalg.cholesky_ex, -torch.eye(3)),
        (torch.linalg.lu_factor_ex, torch.zeros(2, 2)),
        (torch.linalg.ldl_factor_ex, torch.zeros(2, 2)),
    ],
)
def test_check_errors_raises_what_cpu_raises(
    function: Callable[..., Any], matrix: torch.Tensor
) -> None:
    with pytest.raises(RuntimeError) as on_cpu:
        function(matrix, check_errors=True)
    with pytest.raises(type(on_cpu.value)) as on_device:
        function(matrix.to("neuron"), check_errors=True)
    assert (
        str(on_device.value).split("report a bug")[-1]
        == str(on_cpu.value).split("report a bug")[-1]
    )
    assert function(matrix.to("neuron"))[-1].any()  # unless asked, info says it
