"""A program: what is to be lowered, as plain data.

One eager operator is a program of one node; a compiled graph is a program of many. The user's
process writes programs, the lowering server reads them, and their canonical text is part of the
cache key. So nothing here imports torch or jax.

Parameters are device buffers. A tensor argument is a ``Read``: a strided view of a parameter.
A number that must not enter the key is a ``Number``: a 0-d parameter. Results of a node are
``Result``. A mutated argument becomes a ``Write``: a new buffer for a parameter's storage.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

# A node of this name holds a function that another front end lowers (``frontend``): a ``Subgraph``
# and the numbers of its nodes in errors, or later the text of a StableHLO module; then its inputs.
FOREIGN = "frontend::module"

# torch dtype name (without "torch.") is the name of a dtype everywhere in this package.
FLOAT_DTYPES = frozenset(
    {
        "float64",
        "float32",
        "bfloat16",
        "float16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
COMPLEX_DTYPES = frozenset({"complex32", "complex64", "complex128"})
INTEGER_DTYPES = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)
ITEM_SIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclasses.dataclass(frozen=True)
class Array:
    """Dtype and shape of a buffer or of a value."""

    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor over a buffer: sizes and strides count elements of ``dtype``.

    ``offset`` is the storage offset in elements, or None when parameter ``offset_param`` (0-d
    int64) holds it. ``box`` says that the view is a box of the buffer's own dimensions, so that a
    dynamic slice of the buffer as it is shaped reads it.
    """

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int | None = 0
    offset_param: int | None = None
    box: bool = False


@dataclasses.dataclass(frozen=True)
class Read:
    """A tensor argument: ``view`` of parameter ``param``."""

    param: int
    view: View
    zero_dim: bool = False  # a 0-d tensor yields to dimensioned ones in type promotion


@dataclasses.dataclass(frozen=True)
class Number:
    """A Python number passed as 0-d parameter ``param``; ``weak`` as in type promotion."""

    param: int
    weak: bool = True


@dataclasses.dataclass(frozen=True)
class Result:
    """Output ``output`` (flattened) of node ``node``."""

    node: int
    output: int = 0


@dataclasses.dataclass(frozen=True)
class Constant:
    """A static argument: None, bool, int, float, complex, str, or a dtype name tagged as such."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Input:
    """Input ``index`` of the subgraph in which the reference stands."""

    index: int


@dataclasses.dataclass(frozen=True)
class Subgraph:
    """A function that an operator of control flow takes: a branch, or a loop's body.

    References in ``nodes`` and ``results`` are its own: ``Input``, ``Constant``, and ``Result`` of
    its own nodes.
    """

    nodes: tuple[Node, ...]
    results: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Node:
    """One operator. ``args`` follow the schema's order, defaults filled in.

    ``outputs`` are dtype and shape of the rule's results as PyTorch's meta kernel gives them
    (for mutated arguments: of the argument).
    """

    op: str
    args: tuple[Any, ...]  # Read | Number | Result | Constant | Input | Subgraph | list of those
    outputs: tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Output:
    """A fresh tensor: ``value`` stored with dimensions permuted by ``perm`` (outermost first)."""

    value: Any
    perm: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Write:
    """A new buffer for parameter ``param`` whose ``view`` holds ``value`` (cast to its dtype)."""

    param: int
    view: View
    value: Any


@dataclasses.dataclass(frozen=True)
class Program:
    """Parameters, nodes, fresh outputs and writes.

    ``uses_rng``: the first two parameters after ``params`` are the Philox seed and offset
    (0-d uint64). ``exact_float64``: compute float64 as float64. ``e4m3_max``: the largest value
    that a conversion to float8_e4m3fn gives (both decision D6).
    """

    params: tuple[Array, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...] = ()
    writes: tuple[Write, ...] = ()
    uses_rng: bool = False
    exact_float64: bool = False
    e4m3_max: int = 448

    def to_json(self) -> str:
        """Canonical text: equal programs give equal text."""
        return json.dumps(encode(self), separators=(",", ":"), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Program:
        """Inverse of ``to_json``."""
        program = decode(json.loads(text))
        if not isinstance(program, Program):
            raise TypeError(f"expected a program, got {type(program).__name__}")
        return program


@dataclasses.dataclass(frozen=True)
class Step:
    """Program ``program`` of a ``Sequence``, run on ``inputs``, one for each of its parameters.

    An input is (step, index): a result of an earlier step (outputs, then writes), or parameter
    ``index`` of the sequence where ``step`` is -1. Seed and offset follow if the program wants
    them.
    """

    program: int
    inputs: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Sequence:
    """Programs run one after the other as one executable, each with the bits it gives alone.

    ``outputs`` are (step, result) of the buffers that leave it; ``writes`` are (parameter, step,
    result): a new buffer for a parameter's storage. ``donated`` are parameters that nobody needs
    afterwards. One more parameter follows ``params``: a 0-d int32 that is zero, for
    ``lowering.exact``.
    """

    programs: tuple[Program, ...]
    steps: tuple[Step, ...]
    params: tuple[Array, ...]
    outputs: tuple[tuple[int, int], ...] = ()
    writes: tuple[tuple[int, int, int], ...] = ()
    donated: tuple[int, ...] = ()
    fuse_reductions: bool = False  # and the like: faster, and no longer bit for bit

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The operators of all steps, in order."""
        return tuple(n for s in self.steps for n in self.programs[s.program].nodes)

    def to_json(self) -> str:
        """Canonical text: equal sequences give equal text."""
        return json.dumps(encode(self), separators=(",", ":"), sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Text:
    """A program in its canonical text, to be read only where it is lowered."""

    text: str
    nodes: tuple[Node, ...] = ()  # for reports

    def to_json(self) -> str:
        return self.text


AnyProgram = Program | Sequence | Text


def from_json(text: str) -> Program | Sequence:
    """Inverse of ``to_json`` of either."""
    program = decode(json.loads(text))
    if not isinstance(program, (Program, Sequence)):
        raise TypeError(f"expected a program, got {type(program).__name__}")
    return program


_CLASSES: dict[str, type] = {
    c.__name__: c
    for c in (
        Array,
        View,
        Read,
        Number,
        Result,
        Constant,
        Input,
        Subgraph,
        Node,
        Output,
        Write,
        Program,
        Step,
        Sequence,
    )
}


def encode(x: Any) -> Any:
    """Data of a program as what JSON holds."""
    if dataclasses.is_dataclass(x):
        fields = [encode(getattr(x, f.name)) for f in dataclasses.fields(x)]
        return {"": type(x).__name__, "v": fields}
    if isinstance(x, (list, tuple)):
        return [encode(y) for y in x]
    if isinstance(x, complex):
        return {"": "complex", "v": [repr(x.real), repr(x.imag)]}
    if isinstance(x, float):
        return {"": "float", "v": repr(x)}
    if x is None or isinstance(x, (bool, int, str)):
        return x
    raise TypeError(f"a program cannot hold {type(x).__name__}: {x!r}")


def decode(x: Any) -> Any:
    """Inverse of ``encode``."""
    if isinstance(x, list):
        return tuple(decode(y) for y in x)
    if not isinstance(x, dict):
        return x
    name, value = x[""], x["v"]
    if name == "complex":
        return complex(float(value[0]), float(value[1]))
    if name == "float":
        return float(value)
    return _CLASSES[name](*[decode(y) for y in value])
