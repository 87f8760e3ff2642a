"""Functions on the way to another front end: what is sent to its process. Neither torch nor jax."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from torch_neuronx.lowering import program as ir


@dataclasses.dataclass(frozen=True)
class Part:
    """A function of operators, for a front end.

    References in ``function`` are ``Input``, ``Constant`` and ``Result``. ``numbers`` are what its
    nodes are called in errors.
    """

    function: ir.Subgraph
    inputs: tuple[ir.Array, ...]
    numbers: tuple[int, ...]

    def to_json(self) -> str:
        """Its text, for the process of the front end."""
        return json.dumps([ir.encode(x) for x in (self.function, self.inputs, self.numbers)])

    @staticmethod
    def from_json(text: str) -> Part:
        """Inverse of ``to_json``."""
        return Part(*(ir.decode(x) for x in json.loads(text)))

    def alone(self, index: int) -> Part:
        """Node ``index`` by itself: what it reads are inputs."""
        node = self.function.nodes[index]
        inputs: list[ir.Array] = []

        def read(ref: Any) -> Any:
            if isinstance(ref, tuple):
                return tuple(read(r) for r in ref)
            if isinstance(ref, ir.Input):
                inputs.append(self.inputs[ref.index])
            elif isinstance(ref, ir.Result):
                inputs.append(self.function.nodes[ref.node].outputs[ref.output])
            else:
                return ref
            return ir.Input(len(inputs) - 1)

        args = tuple(read(a) for a in node.args)
        results = tuple(ir.Result(0, i) for i in range(len(node.outputs)))
        function = ir.Subgraph((dataclasses.replace(node, args=args),), results)
        return Part(function, tuple(inputs), (self.numbers[index],))


def of(program: ir.Program, node: ir.Node) -> Part:
    """The part that a node holds, with the dtypes and shapes of its inputs."""
    function, numbers, *refs = node.args
    return Part(function, tuple(_array(program, r) for r in refs), numbers.value)


def filled(node: ir.Node, text: str) -> ir.Node:
    """The node with a module's text in the place of its function."""
    return dataclasses.replace(node, args=(ir.Constant(text), *node.args[2:]))


def _array(program: ir.Program, ref: Any) -> ir.Array:
    if isinstance(ref, ir.Read):
        return ir.Array(ref.view.dtype, ref.view.sizes)
    if isinstance(ref, ir.Number):
        return program.params[ref.param]
    return program.nodes[ref.node].outputs[ref.output]
