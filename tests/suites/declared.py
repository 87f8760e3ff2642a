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
    f"test_{kind}_nn_MultiLabelMarginLoss": _MARGIN for kind in ("eager", "compiled")
}
OPTIMIZERS: dict[str, str] = {}
FOREACH: dict[str, str] = {
    "_foreach_pow_functional_bool": (
        "PyTorch's meta kernel of pow says int64 for bools to the power of True, where its CPU "
        "kernel gives bools"
    )
}
_REFUSED = "PyTorch's function refuses devices that it does not know; the device's is "
_BOTH = ("eager", "compiled")
HIGHER_ORDER: dict[str, str] = {
    **dict.fromkeys(
        (f"flex_attention_simple_{form}" for form in _BOTH),
        _REFUSED + "torch_neuronx.integrations.flex_attention (tests/integrations)",
    ),
    **dict.fromkeys(
        (f"inline_asm_elementwise_simple_{form}" for form in _BOTH),
        "assembler of NVIDIA's GPUs, which the operator itself refuses elsewhere",
    ),
    "auto_functionalize_simple_compiled": (
        "a custom operator is a Python kernel, which no executable holds: it runs between them, "
        "and here nothing else is left of the graph"
    ),
    "while_loop_stack_output_simple_compiled": (
        "the result has as many rows as the loop makes turns, which only its data tell: one "
        "executable counts them, the number is read, and another makes them"
    ),
}


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
