"""NaN wins in minima and maxima, as on CPU, whatever the plugin's quicker instructions do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from support import assert_same

NAN, INF = float("nan"), float("inf")
X = torch.tensor([[1.0, NAN, 2.0], [NAN, -INF, 3.0], [4.0, 5.0, INF]])
Y = torch.tensor([[NAN, 1.0, 1.0], [0.0, NAN, 9.0], [4.0, -5.0, NAN]])

CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "max": lambda x, y: x.max(),
    "min": lambda x, y: x.min(),
    "max_dim": lambda x, y: tuple(x.max(1)),
    "amax": lambda x, y: x.amax(0),
    "amin": lambda x, y: x.amin((0, 1)),
    "aminmax": lambda x, y: tuple(torch.aminmax(x)),
    "clamp": lambda x, y: x.clamp(0, 3),
    "clamp_tensor": lambda x, y: x.clamp(min=y),
    "relu": lambda x, y: x.relu(),
    "hypot": torch.hypot,
    "norm_inf": lambda x, y: x.norm(INF),
    "scatter_reduce": lambda x, y: x.scatter_reduce(
        1, torch.zeros(3, 3, dtype=torch.long, device=x.device), y, "amax"
    ),
    "cummax": lambda x, y: x.cummax(0).values,
    "max_pool": lambda x, y: torch.nn.functional.max_pool2d(x[None], 2, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_nan_in_minima_and_maxima(name: str, dtype: torch.dtype) -> None:
    x, y = X.to(dtype), Y.to(dtype)
    assert_same(CASES[name](x.to("neuron"), y.to("neuron")), CASES[name](x, y))


def test_compiled_maximum_keeps_nan() -> None:
    compiled = torch.compile(lambda x: x.max(), backend="neuron", fullgraph=True)
    assert compiled(X.to("neuron")).isnan().item()


def test_clipping_refuses_a_nan_gradient() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, device="neuron"))
    parameter.grad = torch.tensor([1.0, NAN], device="neuron")
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_([parameter], 1.0, norm_type=INF, error_if_nonfinite=True)


@pytest.mark.parametrize("x", [X, torch.stack([X.nan_to_num(0, 0, 0), X])], ids=["one", "batch"])
def test_singular_values_of_what_is_not_finite_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        torch.linalg.svd(x)
    with pytest.raises(torch.linalg.LinAlgError) as got:
        torch.linalg.svd(x.to("neuron"))[1].cpu()
    assert str(got.value).startswith(str(expected.value))


def test_solutions_of_a_system_with_nan_are_nan() -> None:
    a = torch.eye(3)
    a[1, 1] = NAN
    expected = torch.linalg.solve(a, torch.ones(3)), torch.linalg.inv(a)
    a = a.to("neuron")
    assert_same((torch.linalg.solve(a, torch.ones(3, device="neuron")), a.inverse()), expected)
