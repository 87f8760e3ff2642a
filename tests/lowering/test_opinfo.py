"""PyTorch's own operator samples: every ``aten`` call they reach that has a rule is compared.

The forward of each OpInfo runs on CPU; ``harness.sweep`` intercepts the calls below autograd and
checks each against its rule, in eager and graph form in turn, and lowers each overload once for a
platform without custom handlers.
"""

import pytest
import torch
from tests.lowering.harness import sweep
from torch.testing._internal.common_methods_invocations import op_db

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
FAST_DTYPES = [torch.float32, torch.int64]  # a sweep takes about a minute and a half a dtype
PARTS = 4
# Calls that the fast tier checked in the smallest part when this was written, less a margin; fewer
# means that samples or rules were lost.
FLOORS: dict[torch.dtype, int] = {
    torch.float32: 230,
    torch.bfloat16: 210,
    torch.int64: 180,
    torch.bool: 110,
    torch.complex64: 150,
}
# (rtol, atol) of overloads whose float32 algorithms differ from CPU's, or whose sums cancel.
LOOSE = {
    "aten::polygamma": (1e-4, 1e-4),  # CPU's trigamma reflects negative operands
    "aten::convolution": (2e-5, 2e-4),  # terms of 200 that cancel
    "aten::linalg_matrix_exp": (1e-4, 2e-2),  # results of 10^4 beside small ones
}
# Results that cannot be compared with CPU's; each has a test of its own of all that is promised.
SKIPPED = frozenset(
    {
        "aten::_embedding_bag_forward_only",  # CPU leaves bag sizes that nobody reads at zero
        "aten::_ctc_loss",  # CPU's alphas beyond a target's length are whatever the buffer held
        "aten::_linalg_eigh",  # signs of vectors are free
        "aten::_linalg_svd",  # likewise
        "aten::linalg_eig",  # likewise, and the order of values
        "aten::_linalg_eigvals",  # likewise
    }
)


def part(index: int) -> list[object]:
    """Every PARTS-th OpInfo."""
    return sorted(op_db, key=lambda o: (o.name, o.variant_test_name))[index::PARTS]


@pytest.mark.parametrize("index", range(PARTS))
@pytest.mark.parametrize("dtype", FAST_DTYPES, ids=str)
def test_samples(dtype: torch.dtype, index: int) -> None:
    report = sweep(part(index), dtype, samples=2, limit=2, loose=LOOSE, skip=SKIPPED)
    assert not report.failures, "\n\n".join(report.failures)
    assert sum(report.checked.values()) >= FLOORS[dtype]


@pytest.mark.full
@pytest.mark.parametrize("index", range(PARTS))
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.int32, torch.uint8], ids=str)
def test_more_samples(dtype: torch.dtype, index: int) -> None:
    report = sweep(part(index), dtype, samples=20, limit=20, loose=LOOSE, skip=SKIPPED)
    assert not report.failures, "\n\n".join(report.failures)
    assert sum(report.checked.values()) >= FLOORS.get(dtype, 100)
