"""arange and range: one key, many sizes."""

from __future__ import annotations

import pytest
import torch

ENDS = (0, 5, 3, 0, 7, 5, 1)


@pytest.mark.parametrize("dtype", [None, torch.int32, torch.float32, torch.bfloat16], ids=str)
def test_sizes_follow_the_numbers(dtype: torch.dtype | None) -> None:
    for end in ENDS:
        for arguments in ((end,), (0, end), (-1, end, 2), (float(end), -1, -2)):
            got = torch.arange(*arguments, dtype=dtype, device="neuron")
            assert torch.equal(got.cpu(), torch.arange(*arguments, dtype=dtype)), arguments


@pytest.mark.filterwarnings("ignore")  # range is deprecated; out= of another size is warned of
def test_out_is_resized_and_keeps_another_shape_of_the_same_size() -> None:
    answers = []
    for device in ("cpu", "neuron"):
        out = torch.zeros(0, device=device)
        seen = []
        for end in ENDS:
            torch.arange(0, end, out=out)
            seen.append(out.cpu().clone())
            seen.append(torch.range(0, end, device=device).cpu())
        table = torch.zeros(3, 2, device=device)
        torch.arange(6, out=table)
        seen.append(table.cpu())
        columns = torch.zeros(2, 3, device=device).mT
        torch.arange(6, out=columns)
        seen.append(columns.cpu())
        answers.append(seen)
    for got, want in zip(answers[1], answers[0], strict=True):
        assert torch.equal(got, want)
