"""Cases that are known not to give what the CPU gives, each with the reason.

A declared case still runs, and must fail: one that passes fails the run, so the list stays true.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

# Test name without the suffix of device and dtype: reason.
_MARGIN = (
    "PyTorch's meta kernel of multilabel_margin_loss_forward says (1,) for one row without "
    "reduction, where its CPU kernel gives a scalar"
)
MODULES: dict[str, str] = {
    f"test_{kind}_nn_MultiLabelMarginLoss": _MARGIN for kind in ("eager", "compiled", "reduced")
}
OPTIMIZERS: dict[str, str] = {}
FOREACH: dict[str, str] = {}
HIGHER_ORDER: dict[str, str] = {}


@contextlib.contextmanager
def declared(reasons: dict[str, str], name: str) -> Iterator[None]:
    """The body of a case, expected to fail where its name has a reason."""
    reason = reasons.get(name)
    if reason is None:
        yield
        return
    try:
        yield
    except Exception:
        pytest.xfail(reason)
    pytest.fail(f"{name} passes: remove it from tests/suites/declared.py ({reason})")
