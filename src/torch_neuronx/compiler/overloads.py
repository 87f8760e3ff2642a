"""Which overloads the device has kernels for: read from the generated ``overloads.json``.

The file is made from the lowering table by ``tools/generate_overloads.py``, so that importing
torch imports no rule (rules import jax).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import torch

from torch_neuronx import _C

# Numbers of csrc/torch/dispatch/key.h's NumberPolicy.
POLICIES = {"static": 0, "operand": 1, "static_one": 2, "wide": 3}


@dataclasses.dataclass(frozen=True)
class Overload:
    """One row: an overload and the rule that serves it.

    ``base`` is the functional overload that names the rule. ``kind`` is "functional", "inplace",
    "out", or "graph": no kernel, the rule serves compiled graphs alone. ``policies``: what
    becomes of number arguments, by position, in eager; ``graph_policies``: in compiled graphs.
    ``internal`` ones are called by our own C++ kernels
    and not registered with the dispatcher. ``checks``: the rule refuses bad indices, singular
    matrices and the like. ``light``: several compile about as fast as one (element-wise operators
    and moves).
    """

    name: str
    base: str
    kind: str
    policies: tuple[str, ...]
    graph_policies: tuple[str, ...]
    uses_rng: bool
    exact: bool
    mutates: tuple[str, ...]
    internal: bool
    checks: bool
    light: bool


@functools.cache
def table() -> dict[str, Overload]:
    """All rows by overload."""
    rows = json.loads(Path(__file__).with_name("overloads.json").read_text())
    return {
        row["name"]: Overload(
            row["name"],
            row.get("base", row["name"]),
            row.get("kind", "functional"),
            tuple(row.get("policies", ())),
            tuple(row.get("graph_policies", row.get("policies", ()))),
            row.get("rng", False),
            row.get("exact", False),
            tuple(row.get("mutates", ())),
            row.get("internal", False),
            row.get("checks", False),
            row.get("light", False),
        )
        for row in rows
    }


@functools.cache
def rule_names() -> frozenset[str]:
    """Functional overloads that the lowering table has a rule of."""
    return frozenset(row.base for row in table().values())


def graph_operands(op: torch._ops.OpOverload, *, rule: bool = True) -> frozenset[int]:
    """Positions of the arguments that an overload takes as 0-d arrays in a compiled graph: tensors,
    and with ``rule`` the numbers that its rule need not know."""
    row = table().get(op.name())
    # Bounds of random numbers are checked where they are known.
    if row is None or row.uses_rng:
        return frozenset()
    policies = row.graph_policies if rule else ()
    return frozenset(
        i
        for i, a in enumerate(op._schema.arguments)
        if str(a.type) == "Tensor" or (i < len(policies) and policies[i] != "static")
    )


def register() -> None:
    """Register the boxed kernel for every row."""
    _C.register_overloads(
        [
            (row.name, [POLICIES[p] for p in row.policies], row.internal)
            for row in table().values()
            if row.kind != "graph"
        ]
    )
