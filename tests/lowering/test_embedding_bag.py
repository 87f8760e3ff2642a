"""Bags of embedding rows: modes, weights, padding, empty bags, gradients."""

import pytest
import torch
from tests.lowering.errors import check_error
from tests.lowering.harness import check, compare, full_arguments, make_case, overload_of, run

MODES = {"sum": 0, "mean": 1, "max": 2}
INDICES = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 4])


def _weight() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(10, 3)


def _check_output(*args: object, **kwargs: object) -> None:
    """CPU lays out the other results by which of its loops ran."""
    name = "aten::_embedding_bag"
    case = make_case(name, full_arguments(overload_of(name), args, kwargs))
    got = run(case)
    compare(got[0], case.expected[0])
    if kwargs.get("mode") == MODES["max"]:
        compare(got[3], case.expected[3])


@pytest.mark.parametrize("padding_idx", [-1, 4])
@pytest.mark.parametrize("offsets", [[0, 4], [0, 0, 5], [0, 3, 9], [0, 2, 2, 2, 8]], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str, offsets: list[int], padding_idx: int) -> None:
    _check_output(
        _weight(), INDICES, torch.tensor(offsets), mode=MODES[mode], padding_idx=padding_idx
    )


def test_last_offset_int32_and_weights() -> None:
    offsets = torch.tensor([0, 4, 6, 9])
    _check_output(_weight(), INDICES, offsets, mode=0, include_last_offset=True)
    _check_output(_weight(), INDICES.int(), offsets[:3].int(), mode=1)
    weights = torch.randn(9)
    _check_output(_weight(), INDICES, offsets[:3], mode=0, per_sample_weights=weights)
    _check_output(_weight().bfloat16(), INDICES, offsets[:3], mode=1)


@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_the_table(mode: str) -> None:
    weight, offsets = _weight(), torch.tensor([0, 4, 4, 6])
    results = torch.ops.aten._embedding_bag(
        weight, INDICES, offsets, False, MODES[mode], False, None, False, 4
    )
    bag = results[1] if results[1].numel() else torch.tensor([0, 0, 0, 0, 2, 2, 3, 3, 3])
    check(
        "aten::_embedding_bag_dense_backward",
        torch.randn(4, 3), INDICES, bag, results[2], results[3], 10, False, MODES[mode], None, 4,
    )  # fmt: skip


def test_gradient_scaled_by_frequency() -> None:
    """CPU divides by the count of another index (it looks counts up by position), so the
    expectation is PyTorch's documentation."""
    bag = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
    grad = torch.randn(3, 3)
    name = "aten::_embedding_bag_dense_backward"
    args = [grad, INDICES, bag, torch.tensor([4, 2, 3]), torch.tensor([]), 10, True, 0, None, -1]
    (got,) = run(make_case(name, args))
    want = torch.zeros(10, 3)
    for place, owner in zip(INDICES.tolist(), bag.tolist(), strict=True):
        want[place] += grad[owner] / INDICES.eq(place).sum()
    compare(got, want)


def test_gradient_of_the_weights() -> None:
    offsets = torch.tensor([0, 4, 6])
    bag = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
    grad = torch.randn(3, 3)
    name = "aten::_embedding_bag_per_sample_weights_backward"
    check(name, grad, _weight(), INDICES, offsets, bag, 0, -1)
    check(name, grad, _weight(), INDICES, offsets, bag, 0, 4)


def test_index_out_of_range() -> None:
    bad = torch.tensor([0, 3, 12, 1])
    check_error("aten::_embedding_bag", _weight(), bad, torch.tensor([0, 2]), mode=2)


@pytest.mark.parametrize("offsets", [[0, 10], [1, 2], [2, 1]])
@pytest.mark.parametrize("mode", MODES.values())
def test_offsets_out_of_range(mode: int, offsets: list[int]) -> None:
    bags = torch.tensor(offsets)
    check_error("aten::_embedding_bag_forward_only", _weight(), INDICES, bags, mode=mode)
    check_error(
        "aten::_embedding_bag", _weight(), INDICES, bags, mode=mode, include_last_offset=True
    )
