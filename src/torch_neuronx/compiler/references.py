"""A call's values as a program's references, in the order in which C++ walked them."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx.lowering import program as ir

# Say where and how to store; a program has its own way.
PLUMBING = frozenset({"Device", "Layout", "MemoryFormat", "Generator", "Stream"})


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype)[len("torch.") :]


_SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
    23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
    27: "uint16", 28: "uint32", 29: "uint64", 44: "float8_e8m0fnu",
}  # fmt: skip  # c10::ScalarType


def scalar_type(dtype: torch.dtype) -> int:
    """c10's number of a dtype: how a call's dtype arguments come."""
    name = dtype_name(dtype)
    return next(number for number, n in _SCALAR_TYPES.items() if n == name)


class Writer:
    """Turns a call's values into references, in the order in which C++ walked them."""

    def __init__(self, call: dict[str, Any]) -> None:
        self.params = tuple(ir.Array(d, tuple(s)) for d, s, _ in call["parameters"])
        self._leaves = iter(call["leaves"])

    def argument(self, value: Any, kind: str) -> Any:
        if isinstance(value, (list, tuple)):
            if kind in ("List[int]", "List[SymInt]"):
                next(self._leaves)
                return ir.Constant(tuple(value))
            return tuple(self.argument(v, "") for v in value)
        leaf = next(self._leaves)
        if leaf[0] == "tensor":
            return ir.Read(leaf[1], self.view(value, leaf), zero_dim=value.dim() == 0)
        if leaf[0] == "number":
            return ir.Number(leaf[1], weak=leaf[2])
        if value is None or kind in PLUMBING:
            return ir.Constant(None)
        if kind == "ScalarType":
            return ir.Constant(_SCALAR_TYPES[int(value)])
        return ir.Constant(value)

    @staticmethod
    def view(tensor: torch.Tensor, leaf: tuple[Any, ...]) -> ir.View:
        _, _, offset_param, box = leaf
        static = offset_param < 0
        return ir.View(
            dtype_name(tensor.dtype),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            0 if static else None,
            None if static else offset_param,
            box,
        )


def memory_order(t: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions from outermost to innermost of a dense tensor that is not contiguous.

    None: contiguous, or not dense (then the result is made contiguous). csrc/torch/layout.cc
    decides the same way.
    """
    if t.is_contiguous():
        return None
    sizes, strides = t.shape, t.stride()
    order = sorted(
        range(t.dim()), key=lambda i: (sizes[i] == 1, -strides[i] if sizes[i] != 1 else 0)
    )
    expected = 1
    for i in reversed(order):
        if sizes[i] == 1:
            continue
        if strides[i] != expected:
            return None
        expected *= sizes[i]
    return tuple(order)
