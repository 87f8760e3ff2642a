"""torch.linalg.lstsq by every driver, natively, with gradients and CPU's errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support import assert_same, no_fallback, to_device

DRIVERS = [None, "gels", "gelsy", "gelsd", "gelss"]


def problem(
    *shape: int, right: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """A matrix (*, m, n) and right-hand sides (*, m, 2)."""
    torch.default_generator.manual_seed(0)
    matrix = torch.randn(shape, dtype=dtype)
    return [matrix, torch.randn(right or (*shape[:-1], 2), dtype=dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("driver", DRIVERS)
def test_all_four_results(driver: str | None, dtype: torch.dtype) -> None:
    for inputs in (
        problem(5, 3, dtype=dtype),
        problem(3, 5, dtype=dtype),
        problem(2, 5, 3, dtype=dtype),
        problem(2, 5, 3, right=(1, 5, 2), dtype=dtype),
        problem(2, 4, 4, right=(2, 4), dtype=dtype),
        problem(0, 2, right=(0, 3), dtype=dtype),
    ):
        with no_fallback():
            actual = torch.linalg.lstsq(*to_device(inputs), driver=driver)
        expected = torch.linalg.lstsq(*inputs, driver=driver)
        assert_same(tuple(actual), tuple(expected), strides=False, scale=5)


def test_a_deficient_matrix_has_the_solution_of_least_norm() -> None:
    matrix, right = problem(5, 3)
    matrix[:, 2] = matrix[:, 1]
    for driver in ("gelsy", "gelsd", "gelss"):
        actual = torch.linalg.lstsq(*to_device([matrix, right]), driver=driver)
        expected = torch.linalg.lstsq(matrix, right, driver=driver)
        assert actual.rank.item() == expected.rank.item() == 2
        assert actual.residuals.shape == expected.residuals.shape == (0,)
        assert_same(actual.solution, expected.solution, strides=False, scale=5)
    small = torch.diag(torch.tensor([1.0, 0.5, 1e-3]))
    ranks = [torch.linalg.lstsq(small.to(d), small.to(d), rcond=1e-2).rank.item()
             for d in ("cpu", "neuron")]  # fmt: skip
    assert ranks == [2, 2]


def test_gradients() -> None:
    answers = []
    for device in ("cpu", "neuron"):
        inputs = [x.to(device, copy=True).requires_grad_() for x in problem(5, 3)]
        solution = torch.linalg.lstsq(*inputs).solution
        weights = torch.arange(6.0).reshape(3, 2).to(device)
        answers.append(list(torch.autograd.grad((solution * weights).sum(), inputs)))
    assert_same(answers[1], answers[0], strides=False, scale=5)


REFUSED: dict[str, tuple[list[torch.Tensor], dict[str, Any]]] = {
    "no matrix": ([torch.ones(3), torch.ones(3)], {}),
    "no right-hand side": ([torch.ones(3, 2), torch.ones(())], {}),
    "rows": ([torch.ones(3, 2), torch.ones(4, 2)], {}),
    "dimensions": ([torch.ones(3, 2), torch.ones(2, 3, 2)], {}),
    "batches": ([torch.ones(2, 3, 2), torch.ones(3, 3, 2)], {}),
    "dtypes": ([torch.ones(3, 2), torch.ones(3, 2).double()], {}),
    "driver": ([torch.ones(3, 2), torch.ones(3, 2)], {"driver": "gauss"}),
    "rank": ([torch.eye(4, 3) * torch.tensor([1.0, 0, 1]), torch.ones(4, 1)], {"driver": "gels"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_cpus_words(name: str) -> None:
    inputs, given = REFUSED[name]
    raised = []
    for values in (inputs, to_device(inputs)):
        with pytest.raises(RuntimeError) as caught:
            torch.linalg.lstsq(*values, **given)
        raised.append(caught.value)
    assert type(raised[1]) is type(raised[0])
    assert str(raised[1]) == str(raised[0])


def test_out() -> None:
    inputs = problem(5, 3)
    expected = torch.linalg.lstsq(*inputs)
    out = tuple(torch.empty(0, dtype=x.dtype, device="neuron") for x in expected)
    torch.linalg.lstsq(*to_device(inputs), out=out)
    assert_same(out, tuple(expected), strides=False, scale=5)
    with pytest.raises(RuntimeError, match="device"):
        torch.linalg.lstsq(*to_device(inputs), out=tuple(x.cpu() for x in out))
