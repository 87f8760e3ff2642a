"""CTC loss: ragged lengths, both target layouts, repeated labels, impossible alignments."""

import pytest
import torch
from tests.lowering.harness import check, compare, full_arguments, make_case, overload_of, run

TIME, BATCH, CLASSES = 7, 4, 5
INPUT_LENGTHS = [7, 5, 6, 3]
TARGET_LENGTHS = [3, 2, 0, 3]
PADDED = torch.tensor([[1, 1, 3], [2, 4, 9], [9, 9, 9], [2, 2, 1]])  # 9 is never read


def _log_probs() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(TIME, BATCH, CLASSES).log_softmax(-1)


def _concatenated() -> torch.Tensor:
    return torch.cat([PADDED[i, :n] for i, n in enumerate(TARGET_LENGTHS)])


def _check(targets: torch.Tensor, zero_infinity: bool = False, blank: int = 0) -> None:
    log_probs = _log_probs()
    lengths = (INPUT_LENGTHS, TARGET_LENGTHS)
    args = [log_probs, targets, *lengths, blank, zero_infinity]
    case = make_case("aten::_ctc_loss", args)
    got = run(case)
    # CPU leaves alpha unwritten past a sequence's own length.
    compare(got[0], case.expected[0])
    loss, alpha = (torch.from_numpy(r.copy()) for r in got)
    name = "aten::_ctc_loss_backward"
    args = [torch.randn(BATCH), log_probs, targets, *lengths, loss, alpha, blank, zero_infinity]
    check(name, *full_arguments(overload_of(name), args, {}))


def test_padded_targets() -> None:
    _check(PADDED)


def test_concatenated_targets() -> None:
    _check(_concatenated())


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_impossible_alignment(zero_infinity: bool) -> None:
    # 2, blank, 2, 1 does not fit into three steps.
    losses = torch.ops.aten._ctc_loss(_log_probs(), PADDED, INPUT_LENGTHS, TARGET_LENGTHS)[0]
    assert losses[3].isinf()
    _check(PADDED, zero_infinity)


def test_other_blank() -> None:
    torch.manual_seed(1)
    targets = torch.tensor([[1, 0, 3], [2, 0, 0], [1, 1, 1], [3, 0, 1]])
    _check(targets, blank=4)


def test_only_empty_targets() -> None:
    log_probs = _log_probs()
    case = make_case(
        "aten::_ctc_loss", [log_probs, PADDED[:, :0], INPUT_LENGTHS, [0, 0, 0, 0], 0, False]
    )
    compare(run(case)[0], case.expected[0])
