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
from torch_neuronx.compiler import overloads, planning
from torch_neuronx.compiler.references import Writer, dtype_name, memory_order, scalar_type
from torch_neuronx.eager import meta, refusals, schemas
from torch_neuronx.lowering import program as ir
from torch_neuronx.neuron import target

_warned: set[str] = set()  # policies


def plan(name: str, call: dict[str, Any], values: list[Any]) -> Any:
    """The plan of one operator call; raises what CPU would raise for wrong arguments."""
    row = overloads.table()[name]
    key = b"op\0" + name.encode() + b"\0" + call["words"]
    known = planning.from_disk(name, key, fusible=True)
    if known is not None:
        _warn(name, known.shape)
        return known.plan
    schema = schemas.schema(name)
    values = _dtype_of_out(row, schema, values)
    with meta.apart_from_forward_mode():
        seen: dict[int, torch.Tensor] = {}
        metas = meta.to_meta(values, seen)
        resizes = _check(row, schema, values, metas)
        if resizes:
            refusals.check_resizes(row, schema, metas, [i for i, _ in resizes])
            return _C.make_plan(None, [], [], resizes, 0, False, False)
        program, shape = _write(row, schema, call, values, metas)
    _warn(name, shape)
    batched = row.light and _C.eager_mode() == _C.EagerMode.ADAPTIVE
    return planning.compile(name, key, program, shape, fusible=True, batched=batched).plan


# Reductions whose dtype, when not given, is that of their out= argument: they compute in it.
_OUT_DECIDES_DTYPE = ("aten::sum", "aten::nansum", "aten::prod", "aten::cumsum", "aten::cumprod")


def _dtype_of_out(row: overloads.Overload, schema: schemas.Schema, values: list[Any]) -> list[Any]:
    if row.kind != "out" or row.base.split(".")[0] not in _OUT_DECIDES_DTYPE:
        return values
    out = next(v for a, v in zip(schema.arguments, values, strict=True) if a.written)
    return [
        scalar_type(out.dtype) if a.name == "dtype" and v is None else v
        for a, v in zip(schema.arguments, values, strict=True)
    ]


def _check(
    row: overloads.Overload, schema: schemas.Schema, values: list[Any], metas: list[Any]
) -> list[tuple[int, list[int]]]:
    """Let PyTorch check an in-place or out= call; out= arguments that must be resized first."""
    if row.kind == "functional" or row.base.startswith(("aten::_foreach", "aten::_fused_")):
        return []
    if row.kind == "out" and not _resizes_on_meta(row):
        return _sizes_of_base(row, schema, metas)
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
    outs = _out_names(row, schema)
    return [
        (i, list(checked[i].shape))
        for i, a in enumerate(schema.arguments)
        if a.name in outs and isinstance(checked[i], torch.Tensor)
        and tuple(checked[i].shape) != before[i]
    ]  # fmt: skip


def _resizes_on_meta(row: overloads.Overload) -> bool:
    """Whether PyTorch can run an out= overload on the meta device."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(row.name, "Meta") or (
        has(row.name, "CompositeExplicitAutograd") and has(row.base, "Meta")
    )


def _sizes_of_base(
    row: overloads.Overload, schema: schemas.Schema, metas: list[Any]
) -> list[tuple[int, list[int]]]:
    """out= arguments whose sizes differ from what the functional overload gives."""
    outs = _out_names(row, schema)
    places = [i for i, a in enumerate(schema.arguments) if a.name in outs]
    wanted = _results(row, schema, metas).tensors
    for i, result in zip(places, wanted, strict=True):
        if not torch.can_cast(result.dtype, metas[i].dtype):
            raise RuntimeError(
                f"result type {_word(result.dtype)} can't be cast to the desired output type "
                f"{_word(metas[i].dtype)}"
            )
    return [
        (i, list(result.shape))
        for i, result in zip(places, wanted, strict=True)
        if result.shape != metas[i].shape
    ]


def _word(dtype: torch.dtype) -> str:
    """``Float`` of torch.float32, as PyTorch's errors name dtypes."""
    return torch.empty(0, dtype=dtype, device="cpu").type().split(".")[-1].removesuffix("Tensor")


def _write(
    row: overloads.Overload,
    schema: schemas.Schema,
    call: dict[str, Any],
    values: list[Any],
    metas: list[Any],
) -> tuple[ir.Program, planning.Shape]:
    writer = Writer(call)
    refs = [writer.argument(v, a.kind) for v, a in zip(values, schema.arguments, strict=True)]
    results = _results(row, schema, metas)
    refusals.check(row, schema, metas, results.tensors)
    specs = [ir.Array(dtype_name(t.dtype), tuple(t.shape)) for t in results.tensors]
    outs = _out_names(row, schema)
    written, mutated = (
        [
            leaf
            for a, ref, m, v in zip(schema.arguments, refs, metas, values, strict=True)
            if (a.name in outs) == is_out and (a.written or _mutates(row, schema, a, m, values))
            for leaf in _leaves(ref, v)
        ]
        for is_out in (True, False)
    )
    # A rule gives the results first, then what its overload mutates. The results of an in-place
    # overload are the first of the arguments that it mutates.
    if row.kind == "inplace":
        specs += [spec for _, spec, _ in mutated[len(specs) :]]
    elif row.kind == "out" and not specs:
        specs = [spec for _, spec, _ in written + mutated]
    else:
        specs += [spec for _, spec, _ in mutated]
    written += mutated
    refusals.check_overlap(row, values, [value for _, _, value in written])
    nodes: list[ir.Node] = []
    node_args = [_lazy_bits(r, v, nodes) for r, v in zip(refs, values, strict=True)]
    if row.kind == "out":
        node_args = [
            r for a, r in zip(schema.arguments, node_args, strict=True) if a.name not in outs
        ]
    node_args = _aligned(row, schema, node_args)
    main = len(nodes)
    nodes.append(ir.Node(row.base, tuple(node_args), tuple(specs)))
    outputs: list[ir.Output] = []
    planned: list[Any] = []
    if row.kind == "functional":
        for i, t in enumerate(results.tensors):
            perm = memory_order(t)
            outputs.append(ir.Output(ir.Result(main, i), perm))
            planned.append([dtype_name(t.dtype), list(t.shape), _strides(t, perm)])
    first = len(specs) - len(written)
    writes = tuple(
        ir.Write(ref.param, ref.view, _lazy_bits(ir.Result(main, first + i), value, nodes))
        for i, (ref, _, value) in enumerate(written)
    )
    program = ir.Program(
        writer.params,
        tuple(nodes),
        tuple(outputs),
        writes,
        uses_rng=row.uses_rng,
        exact_float64=target.exact_float64(),
        e4m3_max=target.current().e4m3_max,
    )
    shape = planning.Shape(
        planned,
        results.returns,
        list(dict.fromkeys(w.param for w in writes)),
        row.uses_rng,
        not row.exact
        and not target.exact_float64()
        and any(
            p.dtype in ("float64", "complex128") and math.prod(p.shape) > 1 for p in writer.params
        ),
        target.current().e4m3_max < 448
        and any(spec.dtype == "float8_e4m3fn" for spec in specs)
        and any(p.dtype != "float8_e4m3fn" and math.prod(p.shape) > 1 for p in writer.params),
    )
    return program, shape


def _out_names(row: overloads.Overload, schema: schemas.Schema) -> frozenset[str]:
    """The out= arguments: an overload may mutate others too (running statistics)."""
    if row.kind != "out":
        return frozenset()
    base = {a.name for a in schemas.schema(row.base).arguments}
    return frozenset(a.name for a in schema.arguments if a.written and a.name not in base)


def _aligned(row: overloads.Overload, schema: schemas.Schema, refs: list[Any]) -> list[Any]:
    """Arguments in the order of the rule's overload, when its names differ in order or number."""
    if row.kind == "functional":
        return refs
    base = [a.name for a in schemas.schema(row.base).arguments]
    outs = _out_names(row, schema)
    own = [a.name for a in schema.arguments if a.name not in outs]
    if own == base:
        return refs
    by_name = dict(zip(own, refs, strict=True))
    return [by_name.get(n, ir.Constant(None)) for n in base]


def _mutates(
    row: overloads.Overload,
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


def _leaves(ref: Any, value: Any) -> list[tuple[Any, ir.Array, torch.Tensor]]:
    """Reference, spec and tensor of each tensor in an argument."""
    if isinstance(value, torch.Tensor):
        return [(ref, ir.Array(dtype_name(value.dtype), tuple(value.shape)), value)]
    if isinstance(value, (list, tuple)):
        return [leaf for r, v in zip(ref, value, strict=True) for leaf in _leaves(r, v)]
    return []


def _lazy_bits(ref: Any, value: Any, nodes: list[ir.Node]) -> Any:
    """``ref`` conjugated or negated where the tensor says so and its buffer does not.

    The same nodes turn what such a tensor shows into what its buffer holds, for writes.
    """
    if isinstance(value, (list, tuple)) and isinstance(ref, tuple):
        return tuple(_lazy_bits(r, v, nodes) for r, v in zip(ref, value, strict=True))
    if not isinstance(value, torch.Tensor) or not (value.is_conj() or value.is_neg()):
        return ref
    spec = ir.Array(dtype_name(value.dtype), tuple(value.shape))
    for lazy, op in (
        (value.is_conj(), "aten::_conj_physical"),
        (value.is_neg(), "aten::_neg_view_copy"),
    ):
        if lazy:
            nodes.append(ir.Node(op, (ref,), (spec,)))
            ref = ir.Result(len(nodes) - 1)
    return ref


def _strides(t: torch.Tensor, perm: tuple[int, ...] | None) -> list[int]:
    """Strides of a result, empty when they are the plain row-major ones.

    A contiguous tensor may have others where a dimension has size one (channels_last of one
    channel).
    """
    if perm is not None:
        return list(t.stride())
    if t.numel() == 0 or not t.is_contiguous():
        return []
    plain = torch.empty(t.shape, device="meta").stride()
    return list(t.stride()) if t.stride() != plain else []


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


def _results(row: overloads.Overload, schema: schemas.Schema, metas: list[Any]) -> _Results:
    results = _Results()
    own_specs = row.kind == "inplace" and row.base.startswith(("aten::_foreach", "aten::_fused_"))
    if not own_specs:
        base = schema if row.kind == "functional" else schemas.schema(row.base)
        by_name = dict(zip((a.name for a in schema.arguments), metas, strict=True))
        values = [
            by_name[a.name] if a.name in by_name else _factory_option(a, schema, metas)
            for a in base.arguments
        ]
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


def _factory_option(argument: schemas.Argument, schema: schemas.Schema, metas: list[Any]) -> Any:
    """An option that a factory takes and its out= form does not: the out= argument decides."""
    out = next(m for a, m in zip(schema.arguments, metas, strict=True) if a.written)
    return {"ScalarType": out.dtype, "Device": torch.device("meta")}.get(argument.kind)


def _warn(name: str, shape: planning.Shape) -> None:
    """Say once of each policy of decision D6 that a number may not be CPU's."""
    where = f"on target {config.get('TORCH_NEURONX_TARGET')}"
    if shape.warn_float64:
        _warn_once(
            f"float64 arithmetic {where} is done in float32 "
            f"(first: {name}); storage, copies and comparisons stay float64. "
            "TORCH_NEURONX_FLOAT64=exact computes in float64. This is said once."
        )
    if shape.warn_e4m3:
        _warn_once(
            f"conversions to float8_e4m3fn {where} saturate at {target.current().e4m3_max}, the "
            f"largest value of its e4m3, not at 448 (first: {name}); copies keep every value. "
            "Scale to that range, or choose TORCH_NEURONX_TARGET=trn3 or host. This is said once."
        )


def _warn_once(text: str) -> None:
    policy = text.split(" on target")[0]
    if policy not in _warned:
        _warned.add(policy)
        warnings.warn(text, UserWarning, stacklevel=3)


planning.register_default(plan)
