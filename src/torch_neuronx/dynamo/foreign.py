"""``options={"frontend": "torch-mlir"}``: forward graphs lowered by Torch-MLIR (decision D2).

A graph's program is divided: operators in a row become one node that ``frontend`` has lowered, in a
process of its own. What Torch-MLIR cannot know stays with our rules: reads and writes of views,
random numbers (decision D9), control flow, and the checks of indices and the like (decision D10),
for which a checked operator is there twice; XLA drops all of ours but the check.

Backward graphs are lowered by our rules, and the ledger says so.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from typing import Any

from torch_neuronx.compiler import overloads
from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.errors import LoweringError

NAMES = ("jax", "torch-mlir")

# What the policies of decision D6 compute in another way than Torch-MLIR does.
_OTHERWISE = {"float64", "complex128"}

# Operators that Torch-MLIR 20261001 lowers to something else than what they compute.
_WRONG = {"aten::logcumsumexp"}


def chosen(name: Any) -> str:
    """The front end of an option's value, with its version if it is not our own.

    Raises:
        ValueError: there is none of that name.
        ImportError: it is not installed.
    """
    if name not in NAMES:
        raise ValueError(
            f"options['frontend'] of torch.compile: expected 'jax' or 'torch-mlir', got {name!r}"
        )
    if name == "jax":
        return "jax"
    if importlib.util.find_spec("torch_mlir") is None:
        raise ImportError(
            "options['frontend'] of torch.compile: 'torch-mlir' needs the package torch-mlir, "
            "which is not installed. Install torchneuron[torch-mlir], or leave the option out"
        )
    return f"torch-mlir {importlib.metadata.version('torch-mlir')}"


def of_graph(frontend: str, kind: str) -> str:
    """What lowers a graph of this kind ("forward", "backward" or "inference")."""
    return "jax" if kind == "backward" else frontend


def divide(program: ir.Program, lines: list[str]) -> tuple[ir.Program, list[str], tuple[str, ...]]:
    """The program with its operators in parts for the front end, and the lines of its nodes.

    ``lines`` go by the numbers that errors name. Last, the overloads that stay with our rules.

    Raises:
        LoweringError: it computes in a dtype for which we have a policy of our own.
    """
    for i, node in enumerate(program.nodes):
        for array in node.outputs:
            other = array.dtype in _OTHERWISE and not program.exact_float64
            if other or array.dtype.startswith("float8"):
                raise LoweringError(
                    f"{node.op} computes in {array.dtype}, which the Torch-MLIR front end does not "
                    "do as this device does. Use float32 there, or for float64 set "
                    f"TORCH_NEURONX_FLOAT64=exact (node {i})"
                )
    division = _Division(program)
    nodes = division.run()
    outputs = tuple(
        dataclasses.replace(o, value=division.outside(o.value)) for o in program.outputs
    )
    writes = tuple(dataclasses.replace(w, value=division.outside(w.value)) for w in program.writes)
    divided = dataclasses.replace(program, nodes=nodes, outputs=outputs, writes=writes)
    own = tuple(sorted({n.op for n in program.nodes if _is_ours(n)}))
    return divided, [*(lines[i] if i >= 0 else "" for i in division.origin), *lines], own


def _is_ours(node: ir.Node) -> bool:
    """Whether an operator stays with our rules: it draws numbers, takes functions, is not ATen's,
    or comes out wrong."""
    row = overloads.table().get(node.op)
    return row is None or row.uses_rng or not node.op.startswith("aten::") or node.op in _WRONG


def _is_checked(node: ir.Node) -> bool:
    return overloads.table()[node.op].checks


class _Division:
    """One walk over a program: parts of foreign nodes, and ours between them."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.nodes: list[ir.Node] = []
        self.origin: list[int] = []  # of each new node: the old one's number, -1 for a part
        self.moved: dict[ir.Result, ir.Result] = {}  # old results that parts give or ours are
        self.numbers: dict[int, tuple[int, ...]] = {}  # of a part's node: its old nodes

    def run(self) -> tuple[ir.Node, ...]:
        part: list[int] = []
        for i, node in enumerate(self.program.nodes):
            if not _is_ours(node):
                part.append(i)
                continue
            self.close(part)
            part = []
            self.add(i, node)
            for k in range(len(node.outputs)):
                self.moved[ir.Result(i, k)] = ir.Result(len(self.nodes) - 1, k)
        self.close(part)
        # Errors name a part's nodes by numbers past those of the new nodes.
        for place, old in self.numbers.items():
            node = self.nodes[place]
            numbers = ir.Constant(tuple(len(self.nodes) + i for i in old))
            self.nodes[place] = dataclasses.replace(
                node, args=(node.args[0], numbers, *node.args[1:])
            )
        return tuple(self.nodes)

    def add(self, origin: int, node: ir.Node) -> None:
        self.nodes.append(dataclasses.replace(node, args=self.outside(node.args)))
        self.origin.append(origin)

    def close(self, part: list[int]) -> None:
        """Write a part: a function of its nodes, and the nodes again whose checks are ours."""
        if not part:
            return
        old = self.program.nodes
        inside = {n: k for k, n in enumerate(part)}
        inputs: dict[Any, int] = {}

        def read(ref: Any) -> Any:
            if isinstance(ref, tuple):
                return tuple(read(r) for r in ref)
            if isinstance(ref, ir.Constant):
                return ref
            if isinstance(ref, ir.Result) and ref.node in inside:
                return ir.Result(inside[ref.node], ref.output)
            return ir.Input(inputs.setdefault(self.outside(ref), len(inputs)))

        nodes = tuple(dataclasses.replace(old[n], args=read(old[n].args)) for n in part)
        checked = [n for n in part if _is_checked(old[n])]
        given = [r for r in self.wanted(part, checked) if r.node in inside]
        outputs = tuple(old[r.node].outputs[r.output] for r in given)
        function = ir.Subgraph(nodes, tuple(read(r) for r in given))
        place = len(self.nodes)
        self.nodes.append(ir.Node(ir.FOREIGN, (function, *inputs), outputs))
        self.origin.append(-1)
        self.numbers[place] = tuple(part)
        self.moved.update({r: ir.Result(place, k) for k, r in enumerate(given)})
        for n in checked:
            self.add(n, old[n])

    def wanted(self, part: list[int], checked: list[int]) -> list[ir.Result]:
        """Results that are read outside of a part, in order."""
        old = self.program.nodes
        readers: list[Any] = [old[n].args for n in checked]
        readers += [n.args for n in old[part[-1] + 1 :]]
        readers += [o.value for o in self.program.outputs]
        readers += [w.value for w in self.program.writes]
        return list(dict.fromkeys(_results(readers)))

    def outside(self, ref: Any) -> Any:
        """A reference of the old program as one of the new."""
        if isinstance(ref, tuple):
            return tuple(self.outside(r) for r in ref)
        return self.moved[ref] if isinstance(ref, ir.Result) else ref


def _results(refs: Any) -> list[ir.Result]:
    if isinstance(refs, ir.Result):
        return [refs]
    if isinstance(refs, (tuple, list)):
        return [r for ref in refs for r in _results(ref)]
    return []
