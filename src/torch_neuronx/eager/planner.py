"""Plans one operator call: checks it with PyTorch's meta kernels and writes its program.

C++ asks here once for each new key. The disk may know the call already; then nothing is lowered
and no meta kernel runs.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from torch_neuronx import _C, config
from torch_neuronx.compiler import planning
from torch_neuronx.eager import meta, registration, schemas
from torch_neuronx.lowering import program as ir
from torch_neuronx.neuron import target

_PLUMBING = frozenset({"Device", "Layout", "MemoryFormat", "Generator", "Stream"})
_warned_float64 = False


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype)[len("torch.") :]


_SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
    23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz",
    27: "uint16", 28: "uint32", 29: "uint64", 44: "float8_e8m0fnu",
}  # fmt: skip  # c10::ScalarType


class _Writer:
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
        if value is None or kind in _PLUMBING:
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


def plan(name: str, call: dict[str, Any], values: list[Any]) -> Any:
    """The plan of one operator call; raises what CPU would raise for wrong arguments."""
    row = registration.table()[name]
    key = b"op\0" + name.encode() + b"\0" + call["words"]
    known = planning.from_disk(name, key)
    if known is not None:
        shape, made = known
        _warn_float64(name, shape)
        return made
    schema = schemas.schema(name)
    seen: dict[int, torch.Tensor] = {}
    metas = meta.to_meta(values, seen)
    resizes = _check(row, schema, values, metas)
    if resizes:
        return _C.make_plan(None, [], [], resizes, 0, False, False)
    program, shape = _write(row, schema, call, values, metas)
    _warn_float64(name, shape)
    return planning.compile(name, key, program, shape)


def _check(
    row: registration.Overload, schema: schemas.Schema, values: list[Any], metas: list[Any]
) -> list[tuple[int, list[int]]]:
    """Let PyTorch check an in-place or out= call; out= arguments that must be resized first."""
    if row.kind == "functional" or row.base.startswith(("aten::_foreach", "aten::_fused_")):
        return []
    before = [tuple(m.shape) if isinstance(m, torch.Tensor) else None for m in metas]
    # Meta kernels resize their out= arguments: work on copies, so that `metas` stay as they are.
    copies: dict[int, torch.Tensor] = {}
    checked = [
        copies.setdefault(id(m), torch.empty_strided(
            m.shape, m.stride(), dtype=m.dtype, device="meta"
        ))
        if isinstance(m, torch.Tensor) and m.device.type == "meta"
        else m
        for m in metas
    ]  # fmt: skip
    meta.run(schema, checked)
    return [
        (i, list(checked[i].shape))
        for i, a in enumerate(schema.arguments)
        if row.kind == "out" and a.written and isinstance(checked[i], torch.Tensor)
        and tuple(checked[i].shape) != before[i]
    ]  # fmt: skip


def _write(
    row: registration.Overload,
    schema: schemas.Schema,
    call: dict[str, Any],
    values: list[Any],
    metas: list[Any],
) -> tuple[ir.Program, planning.Shape]:
    writer = _Writer(call)
    refs = [
        writer.argument(v, a.kind) for v, a in zip(values, schema.arguments, strict=True)
    ]
    results = _results(row, schema, metas)
    specs = [ir.Array(dtype_name(t.dtype), tuple(t.shape)) for t in results.tensors]
    written = [
        (ref, spec)
        for a, ref, m in zip(schema.arguments, refs, metas, strict=True)
        if a.written or _mutates(row, schema, a, m, values)
        for ref, spec in _leaves(ref, m)
    ]
    if row.kind != "functional" and not specs:
        specs = [spec for _, spec in written]
    elif row.mutates:
        specs += [spec for _, spec in written]
    node_args = refs
    if row.kind == "out":
        node_args = [r for a, r in zip(schema.arguments, refs, strict=True) if not a.written]
    node_args = _aligned(row, schema, node_args)
    node = ir.Node(row.base, tuple(node_args), tuple(specs))
    outputs: list[ir.Output] = []
    planned: list[Any] = []
    if row.kind == "functional":
        for i, t in enumerate(results.tensors):
            perm = memory_order(t)
            outputs.append(ir.Output(ir.Result(0, i), perm))
            planned.append(
                [dtype_name(t.dtype), list(t.shape), list(t.stride()) if perm else []]
            )
    first = len(specs) - len(written)
    writes = tuple(
        ir.Write(ref.param, ref.view, ir.Result(0, first + i))
        for i, (ref, _) in enumerate(written)
    )
    program = ir.Program(
        writer.params,
        (node,),
        tuple(outputs),
        writes,
        uses_rng=row.uses_rng,
        exact_float64=target.exact_float64(),
    )
    shape = planning.Shape(
        planned,
        results.returns,
        list(dict.fromkeys(w.param for w in writes)),
        row.uses_rng,
        not row.exact
        and not target.exact_float64()
        and any(
            p.dtype in ("float64", "complex128") and math.prod(p.shape) > 1
            for p in writer.params
        ),
    )
    return program, shape


def _aligned(row: registration.Overload, schema: schemas.Schema, refs: list[Any]) -> list[Any]:
    """Arguments in the order of the rule's overload, when its names differ in order or number."""
    if row.kind == "functional":
        return refs
    base = [a.name for a in schemas.schema(row.base).arguments]
    own = [a.name for a in schema.arguments if row.kind != "out" or not a.written]
    if own == base:
        return refs
    by_name = dict(zip(own, refs, strict=True))
    return [by_name.get(n, ir.Constant(None)) for n in base]


def _mutates(
    row: registration.Overload,
    schema: schemas.Schema,
    argument: schemas.Argument,
    value: Any,
    values: list[Any],
) -> bool:
    """Whether an argument is mutated although the schema does not say so (batch norm)."""
    if argument.name not in row.mutates or not isinstance(value, torch.Tensor):
        return False
    training = [v for a, v in zip(schema.arguments, values, strict=True) if a.name == "training"]
    return not training or bool(training[0])


def _leaves(ref: Any, value: Any) -> list[tuple[Any, ir.Array]]:
    """Reference and spec of each tensor in an argument."""
    if isinstance(value, torch.Tensor):
        return [(ref, ir.Array(dtype_name(value.dtype), tuple(value.shape)))]
    if isinstance(value, (list, tuple)):
        return [pair for r, v in zip(ref, value, strict=True) for pair in _leaves(r, v)]
    return []


class _Results:
    """Tensors that the functional form gives, and what the call returns."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.returns: list[Any] = []

    def add(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.returns.append(["output", len(self.tensors)])
            self.tensors.append(value)
        elif value is None:
            self.returns.append(["undefined", 0])
        elif isinstance(value, (list, tuple)):
            self.returns.append(["list", len(value)])
            for v in value:
                self.add(v)
        elif isinstance(value, (int, torch.SymInt)):
            self.returns.append(["int", int(value)])
        else:
            raise TypeError(f"a kernel cannot return {type(value).__name__}")


def _results(row: registration.Overload, schema: schemas.Schema, metas: list[Any]) -> _Results:
    results = _Results()
    own_specs = row.kind == "inplace" and row.base.startswith(("aten::_foreach", "aten::_fused_"))
    if not own_specs:
        base = schema if row.kind == "functional" else schemas.schema(row.base)
        by_name = dict(zip((a.name for a in schema.arguments), metas, strict=True))
        values = [by_name.get(a.name) for a in base.arguments]
        answer = meta.run(base, values)
        several = isinstance(answer, (list, tuple)) and len(base.returns) > 1
        for item in answer if several else [answer]:
            if item is not None or len(base.returns) >= 1:
                results.add(item)
    if row.kind == "functional":
        return results
    # An in-place or out= call returns its arguments.
    results.returns = []
    for aliases in schema.returns:
        if not aliases:
            continue
        index = next(i for i, a in enumerate(schema.arguments) if a.aliases & aliases)
        results.returns.append(["argument", index])
    return results


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


def _warn_float64(name: str, shape: planning.Shape) -> None:
    global _warned_float64
    if not shape.warn_float64 or _warned_float64:
        return
    _warned_float64 = True
    warnings.warn(
        f"float64 arithmetic on target {config.get('TORCH_NEURONX_TARGET')} is done in float32 "
        f"(first: {name}); storage, copies and comparisons stay float64. "
        "TORCH_NEURONX_FLOAT64=exact computes in float64. This is said once.",
        UserWarning,
        stacklevel=2,
    )


planning.register_default(plan)
