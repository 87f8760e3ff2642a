"""How many bytes a StableHLO module moves, counted operation by operation."""

from __future__ import annotations

import math
import re
from typing import Any

# Operations that move nothing of their own: names for values, control, and what calls regions.
_FREE = frozenset(
    {
        "func.func",
        "func.return",
        "func.call",
        "stablehlo.constant",
        "stablehlo.return",
        "stablehlo.reshape",
        "stablehlo.tuple",
        "stablehlo.get_tuple_element",
        "stablehlo.optimization_barrier",
    }
)
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)>")


def bytes_accessed(module: Any) -> int:
    """Operands read and results written by every operation, each by itself: without fusion.

    An upper bound that only the graph decides. Bodies of loops count once, functions once for each
    call.
    """
    functions = {str(op.attributes["sym_name"]).strip('"'): op for op in module.body.operations}
    return _of_function(functions["main"], functions, {})


def _of_function(function: Any, functions: dict[str, Any], known: dict[str, int]) -> int:
    total = 0

    def visit(op: Any) -> None:
        nonlocal total
        name = op.operation.name
        if name == "func.call":
            callee = str(op.attributes["callee"]).lstrip("@").strip('"')
            if callee not in known:
                known[callee] = _of_function(functions[callee], functions, known)
            total += known[callee]
        elif name not in _FREE:
            values = [*op.operation.operands, *op.operation.results]
            total += sum(_bytes(str(value.type)) for value in values)
        for region in op.operation.regions:
            # The body of a reduction works on scalars, whose traffic is the operation's own.
            if name in ("func.func", "stablehlo.while", "stablehlo.case", "stablehlo.if"):
                for block in region.blocks:
                    for inner in block.operations:
                        visit(inner)

    visit(function)
    return total


def _bytes(text: str) -> int:
    found = _TENSOR.fullmatch(text)
    if not found:
        return 0  # a token
    count = math.prod(int(n) for n in found[1].split("x") if n)
    return count * _item_size(found[2])


def _item_size(dtype: str) -> int:
    if dtype.startswith("complex"):
        return 8
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1
