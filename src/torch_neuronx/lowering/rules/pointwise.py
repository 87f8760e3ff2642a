"""Element-wise arithmetic on one dtype, with PyTorch's promotion."""

from __future__ import annotations

from typing import Any

from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.table import lowers


def _scaled(other: Any, alpha: Any, dtype: str) -> Any:
    other = cast(other, dtype)
    return other if isinstance(alpha, int) and alpha == 1 else other * cast(alpha, dtype)


@lowers("aten::add.Tensor", "aten::add.Scalar", static_one=("alpha",))
def add(self: Any, other: Any, alpha: Any = 1, *, out: Any) -> Any:
    """self + alpha * other."""
    if out.dtype == "bool":
        return cast(self, "bool") | (cast(other, "bool") & cast(alpha, "bool"))
    dtype = op_math(out.dtype)
    return cast(self, dtype) + _scaled(other, alpha, dtype)
