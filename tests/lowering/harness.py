"""Compares lowering rules with CPU PyTorch, without a device.

``check("aten::add.Tensor", x, y, alpha=2)`` runs the overload on CPU tensors, builds the one-node
program that the dispatcher would build, evaluates it under ``jax.jit`` on JAX's CPU with 64-bit
types, and compares dtype, shape and values. ``sweep`` does so for every ``aten`` call that an
OpInfo sample reaches.

Two forms exist, as in the product: ``eager`` passes Scalar and float arguments as 0-d operands,
``graph`` passes them as Python numbers.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from torch_neuronx.lowering import build, table
from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.dtypes import np_dtype

# The comparison is against the result's dtype. XLA and PyTorch sum in different orders and use
# different polynomials for transcendental functions: a few units in the last place of float32.
# Reduced floats round once on both sides, so two neighbouring values is the worst case; PyTorch
# accumulates some bfloat16 and float16 reductions in several roundings, hence the margin.
TOLERANCES: dict[str, tuple[float, float]] = {  # dtype: (rtol, atol)
    "float64": (1e-6, 1e-6),  # computed in float32 unless the rule is exact (decision D6)
    "float32": (2e-5, 2e-5),
    "complex64": (2e-5, 2e-5),
    "complex128": (1e-5, 1e-5),
    "bfloat16": (1.6e-2, 1e-2),
    "float16": (2e-3, 2e-3),
    "float8_e4m3fn": (0.13, 0.02),
    "float8_e5m2": (0.26, 0.02),
}

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLUMBING = ("Device", "Layout", "MemoryFormat")


def name_of(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """A contiguous CPU tensor's values; reduced floats as ml_dtypes."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    if x.dtype in (torch.bfloat16,) or name_of(x.dtype).startswith("float8"):
        bits = x.view(_BITS[x.element_size()]).numpy()
        return bits.view(np_dtype(name_of(x.dtype)))
    return x.numpy()


def overload_of(name: str) -> Any:
    """The OpOverload called ``aten::add.Tensor``."""
    namespace, rest = name.split("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def full_arguments(op: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments in the schema's order with defaults filled in."""
    args = list(args)
    filled = []
    for i, a in enumerate(op._schema.arguments):
        if i < len(args) and not a.kwarg_only:
            filled.append(args[i])
        elif a.name in kwargs:
            filled.append(kwargs[a.name])
        else:
            filled.append(a.default_value)
    return filled


class _Builder:
    """Turns torch arguments into references and parameters."""

    def __init__(self, rule: table.Rule, form: str) -> None:
        if form not in ("eager", "graph"):
            raise ValueError(f"expected form eager or graph, got {form!r}")
        self.rule = rule
        self.form = form
        self.params: list[ir.Array] = []
        self.buffers: list[Any] = []

    def _add(self, array: Any, spec: ir.Array) -> int:
        self.params.append(spec)
        self.buffers.append(array)
        return len(self.params) - 1

    def tensor(self, x: torch.Tensor) -> ir.Read:
        """A contiguous tensor is its buffer; any other is a view of its flat storage."""
        x = x.detach().resolve_conj().resolve_neg()
        dtype = name_of(x.dtype)
        sizes = tuple(x.shape)
        if x.is_contiguous():
            data, shape, strides, offset = x, sizes, x.stride(), 0
        else:
            length = x.untyped_storage().nbytes() // x.element_size()
            data = torch.as_strided(x, (length,), (1,), 0)
            shape, strides, offset = (length,), x.stride(), x.storage_offset()
        param = self._add(jnp.asarray(to_numpy(data)), ir.Array(dtype, shape))
        view = ir.View(dtype, sizes, tuple(strides), offset)
        return ir.Read(param, view, zero_dim=not sizes)

    def number(self, value: Any, arg: Any) -> Any:
        static = arg.name in self.rule.static or (arg.name in self.rule.static_one and value == 1)
        if self.form == "graph" or static:
            return ir.Constant(value)
        x = jnp.asarray(value)
        return ir.Number(self._add(x, ir.Array(np.dtype(x.dtype).name, ())))

    def argument(self, value: Any, arg: Any, kind: str) -> Any:
        if any(p in kind for p in _PLUMBING) or arg.name == "pin_memory":
            return ir.Constant(None)
        kind = kind.removeprefix("Optional[").rstrip("]") if kind.startswith("Optional") else kind
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.dtype):
            return ir.Constant(name_of(value))
        if isinstance(value, (list, tuple)):
            if value and isinstance(value[0], (torch.Tensor, type(None))):
                return tuple(ir.Constant(None) if v is None else self.tensor(v) for v in value)
            if "number" in kind:
                return tuple(self.number(v, arg) for v in value)
            return ir.Constant(tuple(value))
        if kind in ("number", "float") and value is not None:
            value = float(value) if kind == "float" else value
            return self.number(value, arg)
        if arg.name in self.rule.operand and self.form == "eager" and value is not None:
            return ir.Number(self._add(jnp.asarray(value, jnp.int64), ir.Array("int64", ())), False)
        return ir.Constant(value)


@dataclasses.dataclass
class Case:
    """A one-node program, its buffers, and CPU's results."""

    program: ir.Program
    buffers: list[Any]
    expected: list[torch.Tensor]
    choice: tuple[torch.Tensor, int] | None = None  # of an overload in CHOICES: operand and dim
    # CPU's results on float32 operands rounded once, where an operand is a reduced float: CPU's
    # own kernels round some of these in the middle.
    rounded_once: list[torch.Tensor] | None = None


# Overloads whose second result is a position that PyTorch leaves open among equal elements.
CHOICES = frozenset(
    f"aten::{n}" for n in ("sort", "topk", "kthvalue", "median.dim", "nanmedian.dim", "mode")
)


def flatten(x: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, (list, tuple)):
        return [t for y in x for t in flatten(y)]
    return []


# What CPU raises when it refuses its arguments.
REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    NotImplementedError,
    ZeroDivisionError,
)

_REDUCED = (torch.bfloat16, torch.float16)


def _raised(x: Any) -> Any:
    """Reduced floats, and the dtype arguments that ask for them, as float32."""
    if isinstance(x, (list, tuple)):
        return type(x)(_raised(y) for y in x)
    if isinstance(x, torch.Tensor):
        return x.detach().float() if x.dtype in _REDUCED else x.detach().clone()
    return torch.float32 if x in _REDUCED else x


def _rounded_once(
    op: Any, args: list[Any], expected: list[torch.Tensor]
) -> list[torch.Tensor] | None:
    if not any(t.dtype in _REDUCED for t in expected):
        return None
    pairs = list(zip(op._schema.arguments, _raised(args), strict=True))
    try:
        results = flatten(
            op(
                *[v for a, v in pairs if not a.kwarg_only],
                **{a.name: v for a, v in pairs if a.kwarg_only},
            )
        )
    except REFUSALS:
        return None
    if [t.shape for t in results] != [t.shape for t in expected]:
        return None
    return [t.to(e.dtype) for t, e in zip(results, expected, strict=True)]


def make_case(name: str, args: list[Any], form: str = "eager", exact_float64: bool = False) -> Case:
    """The program of overload ``name``. ``args`` follow the schema, defaults filled in."""
    op = overload_of(name)
    rule = table.load_rules()[name]
    positional, keywords = [], {}
    mutated: list[tuple[torch.Tensor, torch.Tensor, bool]] = []  # before, after, declared
    for value, a in zip(args, op._schema.arguments, strict=True):
        if isinstance(value, torch.Tensor):
            before, value = value, value.detach().clone()
            declared = a.alias_info is not None and a.alias_info.is_write
            if declared or a.name in rule.mutates:
                mutated.append((before, value, declared))
        if a.kwarg_only:
            keywords[a.name] = value
        else:
            positional.append(value)
    expected = flatten(op(*positional, **keywords))
    # Results come first, then the mutated arguments. Those that the schema does not declare are
    # results only in training.
    expected = [t for t in expected if not any(t is after for _, after, _ in mutated)]
    named = dict(zip([a.name for a in op._schema.arguments], args, strict=True))
    training = named.get("training", True)
    expected += [after for _, after, declared in mutated if declared or training]
    with jax.enable_x64(True):
        builder = _Builder(rule, form)
        refs = tuple(
            builder.argument(v, a, str(a.real_type))
            for v, a in zip(args, op._schema.arguments, strict=True)
        )
        uses_rng = "rng" in rule.wants
        buffers = builder.buffers
        if uses_rng:
            buffers = [*buffers, jnp.uint64(7), jnp.uint64(0)]
    outputs = tuple(ir.Array(name_of(t.dtype), tuple(t.shape)) for t in expected)
    program = ir.Program(
        params=tuple(builder.params),
        nodes=(ir.Node(name, refs, outputs),),
        outputs=tuple(ir.Output(ir.Result(0, i)) for i in range(len(outputs))),
        uses_rng=uses_rng,
        exact_float64=exact_float64,
    )
    choice = (args[0], named["dim"]) if name in CHOICES else None
    return Case(program, buffers, expected, choice, _rounded_once(op, args, expected))


def run(case: Case) -> list[np.ndarray]:
    """The outputs of a case's program, computed under ``jax.jit``."""
    with jax.enable_x64(True):
        # Unoptimised code is the same arithmetic and compiles several times faster.
        jitted = jax.jit(
            lambda *p: build.evaluate(case.program, *p),
            compiler_options={"xla_backend_optimization_level": 0},
        )
        results = jitted(*case.buffers)
        return [np.asarray(r) for r in results[: len(case.expected)]]


def _widen(x: np.ndarray) -> np.ndarray:
    if x.dtype == ml_dtypes.bfloat16 or x.dtype.itemsize < 4 or x.dtype.kind == "V":
        return x.astype(np.float32)
    return x


def compare(
    got: np.ndarray, expected: torch.Tensor, rtol: float | None = None, atol: float | None = None
) -> None:
    """Raise AssertionError unless dtype, shape and values agree (nan equals nan)."""
    dtype = name_of(expected.dtype)
    want = to_numpy(expected)
    assert np.dtype(got.dtype) == np_dtype(dtype), f"dtype {got.dtype}, expected {dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if dtype not in TOLERANCES:
        np.testing.assert_array_equal(got, want)
        return
    default = TOLERANCES[dtype]
    np.testing.assert_allclose(
        _widen(got),
        _widen(want),
        rtol=default[0] if rtol is None else rtol,
        atol=default[1] if atol is None else atol,
        equal_nan=True,
    )


def check_portable(case: Case) -> None:
    """Lower for a platform JAX knows nothing of; the module must call no custom handler."""
    lowered = build.lower(case.program, platform="neuron", version="1.9.3")
    assert b"custom_call" not in lowered.module, "the rule needs a handler of the plugin"


def check(
    name: str,
    *args: Any,
    form: str = "eager",
    exact_float64: bool = False,
    values: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> None:
    """Compare the rule of overload ``name`` with CPU PyTorch.

    Args:
        name: qualified overload, such as ``aten::add.Tensor``.
        args, kwargs: as the overload takes them; defaults are filled in.
        form: ``eager`` or ``graph``.
        values: False compares dtypes and shapes only (random and uninitialised results).
    """
    filled = full_arguments(overload_of(name), args, kwargs)
    check_filled(
        name, filled, form=form, exact_float64=exact_float64, values=values, rtol=rtol, atol=atol
    )


def check_filled(
    name: str,
    filled: list[Any],
    *,
    form: str = "eager",
    exact_float64: bool = False,
    values: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """``check`` with arguments in the schema's order, defaults filled in."""
    verify(make_case(name, filled, form, exact_float64), values=values, rtol=rtol, atol=atol)


def _choose(source: torch.Tensor, dim: int, places: torch.Tensor) -> np.ndarray:
    assert places.dtype == torch.int64
    if source.ndim == 0:
        return to_numpy(source)
    if places.ndim < source.ndim:  # keepdim=False
        return to_numpy(source.gather(dim, places.unsqueeze(dim)).squeeze(dim))
    return to_numpy(source.gather(dim, places))


def verify(
    case: Case, *, values: bool = True, rtol: float | None = None, atol: float | None = None
) -> None:
    """Run a case and compare with CPU's results; random results by dtype and shape only."""
    got = run(case)
    expected = case.expected
    assert len(got) == len(expected)
    if case.choice is not None:
        # Which of equal elements was chosen is free: compare what the positions point at.
        source, dim = case.choice
        places = torch.from_numpy(got[1].copy())
        compare(_choose(source, dim, places), expected[0])
        got, expected = got[:1], expected[:1]
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        if values and not case.program.uses_rng:
            try:
                compare(g, e, rtol, atol)
            except AssertionError:
                if case.rounded_once is None:
                    raise
                compare(g, case.rounded_once[i], rtol, atol)
        else:
            assert g.shape == tuple(e.shape)
            assert g.dtype == np_dtype(name_of(e.dtype))


def check_both(name: str, *args: Any, **kwargs: Any) -> None:
    """``check`` in the eager and in the graph form."""
    for form in ("eager", "graph"):
        check(name, *args, form=form, **kwargs)


# Results are uninitialised memory.
UNDEFINED = ("aten::empty", "aten::new_empty", "aten::resize")


@dataclasses.dataclass
class Report:
    """What a sweep saw: calls checked per overload, calls without a rule, failures."""

    checked: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    missing: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: list[str] = dataclasses.field(default_factory=list)
    seen: set[Any] = dataclasses.field(default_factory=set)
    lowered: set[str] = dataclasses.field(default_factory=set)  # overloads lowered portably


def _signature(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return (x.dtype, tuple(x.shape), x.is_contiguous())
    if isinstance(x, (list, tuple)):
        return tuple(_signature(y) for y in x)
    return (type(x), x if isinstance(x, (int, bool, str, type(None))) else None)


def _describe(args: Iterable[Any]) -> str:
    def one(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            return f"{name_of(x.dtype)}{list(x.shape)}"
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(one(y) for y in x) + "]"
        return repr(x)

    return ", ".join(one(a) for a in args)


def _strided_cpu(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return all(_strided_cpu(y) for y in x)
    return not isinstance(x, torch.Tensor) or (
        x.layout is torch.strided
        and x.device.type == "cpu"
        and not x.is_quantized
        and x.dtype not in (torch.complex32,)
    )


def _data_dependent(filled: list[Any]) -> bool:
    """Whether an index list holds a mask: the result's size then depends on its values."""
    return any(
        isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8)
        for value in filled[1:2]
        if isinstance(value, (list, tuple))
        for x in value
    )


class _Recorder(TorchDispatchMode):
    """Checks every ``aten`` call that has a rule as it happens."""

    def __init__(
        self,
        report: Report,
        limit: int,
        skip: frozenset[str],
        label: str,
        loose: dict[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__()
        self.loose = loose or {}
        self.report, self.limit, self.skip, self.label = report, limit, skip, label

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if func._overloadname != "default":
            name += f".{func._overloadname}"
        if name not in self.skip and _strided_cpu([*args, *kwargs.values()]):
            filled = full_arguments(func, args, kwargs)
            if name not in table.RULES:
                self.report.missing[name] += 1
            elif not (name.startswith("aten::index") and _data_dependent(filled)):
                self._check(name, filled)
        return func(*args, **kwargs)

    def _check(self, name: str, filled: list[Any]) -> None:
        key = (name, _signature(filled))
        # The limit is per overload and dtype of the first tensor.
        first = next(iter(flatten(filled)), None)
        bucket = f"{name}/{first.dtype if first is not None else None}"
        if key in self.report.seen or self.report.checked[bucket] >= self.limit:
            return
        self.report.seen.add(key)
        form = ("eager", "graph")[self.report.checked[bucket] % 2]
        with _disable_current_modes():
            try:
                case = make_case(name, filled, form)
            except REFUSALS:
                return  # an argument error is the sample's business
            self.report.checked[bucket] += 1
            rule = table.RULES[name]
            try:
                if name not in self.report.lowered and not rule.ffi:
                    self.report.lowered.add(name)
                    check_portable(case)
                rtol, atol = self.loose.get(name, (None, None))
                verify(case, values=not name.startswith(UNDEFINED), rtol=rtol, atol=atol)
            except Exception as error:
                self.report.failures.append(
                    f"{self.label}: {name}({_describe(filled)}) {form}: "
                    f"{type(error).__name__}: {str(error)[:1500]}"
                )


def sweep(
    opinfos: Iterable[Any],
    dtype: torch.dtype,
    *,
    samples: int = 3,
    limit: int = 6,
    loose: dict[str, tuple[float, float]] | None = None,
    skip: frozenset[str] = frozenset(),
) -> Report:
    """Run OpInfos on CPU and check every ``aten`` call they reach that has a rule.

    Args:
        samples: samples per OpInfo.
        limit: calls checked per overload and dtype.
        loose: tolerances (rtol, atol) of overloads that need wider ones.
        skip: overloads left out; the caller keeps the reasons.
    """
    table.load_rules()
    report = Report()
    for info in opinfos:
        if dtype not in info.supported_dtypes("cpu") or info.name.startswith("jiterator"):
            continue
        label = f"{info.name}{'.' + info.variant_test_name if info.variant_test_name else ''}"
        torch.manual_seed(0)
        recorder = _Recorder(report, limit, skip, f"{label}[{name_of(dtype)}]", loose)
        inputs = info.sample_inputs("cpu", dtype, requires_grad=False)
        for sample in itertools.islice(inputs, samples):
            with torch.no_grad(), recorder:
                try:
                    info(sample.input, *sample.args, **sample.kwargs)
                except REFUSALS:
                    continue  # CPU itself refuses this sample
    return report


if __name__ == "__main__":  # python tests/lowering/harness.py float32 [name ...]
    import sys

    from torch.testing._internal.common_methods_invocations import op_db

    chosen = [o for o in op_db if len(sys.argv) < 3 or o.name in sys.argv[2:]]
    outcome = sweep(chosen, getattr(torch, sys.argv[1]))
    for failure in outcome.failures:
        print("FAIL", failure, "\n")
    print("without a rule:", dict(outcome.missing.most_common()))
    print("checked", sum(outcome.checked.values()), "failed", len(outcome.failures))
