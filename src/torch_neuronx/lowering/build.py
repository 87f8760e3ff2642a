"""From a program to StableHLO: runs the rules under JAX's tracer."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import passmanager
from jaxlib.mlir.dialects import stablehlo

from torch_neuronx.lowering import control, exact, foreign, handlers, layout, table, traffic, views
from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.checks import Check, Checks
from torch_neuronx.lowering.dtypes import cast, dtype_name, e4m3_limit, np_dtype
from torch_neuronx.lowering.errors import LoweringError, NoRuleError
from torch_neuronx.lowering.philox import Stream

# Source locations would make equal modules differ in bytes, and so in their cache keys.
jax.config.update("jax_traceback_in_locations_limit", 0)

stablehlo.register_stablehlo_passes()
# JAX emits erf, lgamma, asin and others as CHLO, which a portable artifact cannot hold.
_PASSES = "builtin.module(func.func(chlo-legalize-to-stablehlo))"

_NARROW = {"float64": "float32", "complex128": "complex64"}


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A lowered program.

    ``kept`` are the parameters the module takes, in order (``params``, then seed and offset).
    Results are the outputs, the writes, then the error word if ``checks`` is not empty.
    ``aliases`` maps a result's index to the kept parameter's index that it may overwrite.
    ``bytes_accessed``: what the module's operations read and write, each by itself. ``handlers``:
    the custom-call handlers that it needs, by name.
    """

    module: bytes
    kept: tuple[int, ...]
    results: tuple[ir.Array, ...]
    checks: tuple[Check, ...]
    rng_increment: int
    aliases: dict[int, int]
    bytes_accessed: int
    handlers: tuple[str, ...] = ()


class _Evaluator:
    """One walk over a program with traced parameters."""

    def __init__(self, program: ir.Program, params: tuple[Any, ...]) -> None:
        self.program = program
        self.params = params
        self.values: list[tuple[Any, ...]] = []
        self.inputs: tuple[Any, ...] = ()  # of the subgraph that is evaluated
        self.depth = 0
        self.checks = Checks()
        n = len(program.params)
        self.rng = Stream(params[n], params[n + 1]) if program.uses_rng else None
        self._reads: dict[ir.Read, Any] = {}

    def _offset(self, view: ir.View) -> Any:
        return view.offset if view.offset is not None else self.params[view.offset_param]

    def resolve(self, ref: Any) -> Any:
        if isinstance(ref, ir.Result):
            return self.values[ref.node][ref.output]
        if isinstance(ref, ir.Read):
            if ref not in self._reads:
                spec = self.program.params[ref.param]
                self._reads[ref] = views.read(
                    self.params[ref.param], spec, ref.view, self._offset(ref.view)
                )
            return self._reads[ref]
        if isinstance(ref, ir.Number):
            return self.params[ref.param]
        if isinstance(ref, ir.Constant):
            return ref.value
        if isinstance(ref, ir.Input):
            return self.inputs[ref.index]
        if isinstance(ref, ir.Subgraph):
            return _Body(self, ref)
        if isinstance(ref, tuple):
            return tuple(self.resolve(r) for r in ref)
        raise TypeError(f"not a reference: {ref!r}")

    def run(self, node: ir.Node) -> None:
        try:
            self.values.append(self._results(node))
        except NoRuleError:
            raise
        except LoweringError as error:
            if len(self.program.nodes) == 1 or self.depth:
                raise
            raise LoweringError(f"{error} (node {len(self.values)})") from error

    def _results(self, node: ir.Node) -> tuple[Any, ...]:
        args = [self.resolve(a) for a in node.args]
        if node.op in control.RULES:
            return self._control(node, args)
        if node.op == ir.FOREIGN:
            text, *inputs = args
            arrays = [jnp.asarray(x) for x in inputs]
            return self._checked(node, foreign.call(text, arrays, node.outputs))
        rule = table.RULES.get(node.op)
        if rule is None:
            raise NoRuleError(f"{node.op}: no rule in the lowering table")
        narrow = not (rule.keeps_float64(args) or self.program.exact_float64)
        outputs = node.outputs
        if narrow:
            args = [_narrow(a) for a in args]
            outputs = tuple(ir.Array(_NARROW.get(o.dtype, o.dtype), o.shape) for o in node.outputs)
        keywords: dict[str, Any] = {}
        if "out" in rule.wants:
            keywords["out"] = outputs[0] if len(outputs) == 1 else outputs
        if "checks" in rule.wants:
            keywords["checks"] = self.checks
        if "rng" in rule.wants:
            keywords["rng"] = self.rng
        try:
            results = rule.function(*args, **keywords)
        except LoweringError:
            raise
        except Exception as error:
            raise LoweringError(f"{node.op}: {type(error).__name__}: {error}") from error
        return self._checked(node, results)

    def _control(self, node: ir.Node, args: list[Any]) -> tuple[Any, ...]:
        try:
            results, word = control.RULES[node.op](*args)
        except LoweringError:
            raise
        except Exception as error:
            raise LoweringError(f"{node.op}: {type(error).__name__}: {error}") from error
        self.checks.merge(word)
        return self._checked(node, results)

    def _checked(self, node: ir.Node, results: Any) -> tuple[Any, ...]:
        flat = _flatten(results)
        if len(flat) != len(node.outputs):
            raise LoweringError(
                f"{node.op}: the rule gave {len(flat)} results, expected {len(node.outputs)}"
            )
        checked = []
        for i, (x, want) in enumerate(zip(flat, node.outputs, strict=True)):
            x = cast(x, want.dtype)
            if tuple(x.shape) != want.shape:
                raise LoweringError(
                    f"{node.op}: result {i} has shape {tuple(x.shape)}, PyTorch says {want.shape}"
                )
            checked.append(x)
        return tuple(checked)

    def results(self) -> list[Any]:
        """Runs the nodes: outputs, writes, error word."""
        with e4m3_limit(self.program.e4m3_max):
            for node in self.program.nodes:
                self.run(node)
            return self._finish()

    def _finish(self) -> list[Any]:
        results = []
        for output in self.program.outputs:
            x = self.resolve(output.value)
            results.append(x if output.perm is None else jnp.transpose(x, output.perm))
        written: dict[int, Any] = {}
        for w in self.program.writes:
            spec = self.program.params[w.param]
            value = cast(self.resolve(w.value), w.view.dtype)
            value = jnp.broadcast_to(value, w.view.sizes)
            buffer = written.get(w.param, self.params[w.param])
            written[w.param] = views.write(buffer, spec, w.view, self._offset(w.view), value)
        results += list(written.values())
        word = self.checks.word()
        if word is not None:
            results.append(word)
        return results


class _Body:
    """A subgraph as a function on arrays, for ``control``."""

    def __init__(self, evaluator: _Evaluator, subgraph: ir.Subgraph) -> None:
        self._evaluator = evaluator
        self._subgraph = subgraph

    def __call__(self, *inputs: Any) -> tuple[tuple[Any, ...], Any]:
        """Results, and the error word of the checks inside (decision D10)."""
        e = self._evaluator
        outer = e.values, e.inputs, e.checks.enter()
        e.values, e.inputs = [], inputs
        e.depth += 1
        try:
            for node in self._subgraph.nodes:
                e.run(node)
            results = tuple(e.resolve(r) for r in self._subgraph.results)
            return tuple(control.strong(r) for r in results), e.checks.word_or_zero()
        finally:
            e.depth -= 1
            e.values, e.inputs = outer[:2]
            e.checks.leave(outer[2])


def _narrow(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(_narrow(y) for y in x)
    if isinstance(x, str):
        return _NARROW.get(x, x)
    if getattr(x, "weak_type", False):
        return x  # rules cast numbers to the dtype they compute in; a conversion would unweaken it
    if hasattr(x, "dtype") and dtype_name(x) in _NARROW:
        return x.astype(np_dtype(_NARROW[dtype_name(x)]))
    return x


def _flatten(x: Any) -> list[Any]:
    """Results in order. None stands for a result that PyTorch leaves undefined (output masks)."""
    if x is None:
        return []
    if isinstance(x, (tuple, list)):
        return [z for y in x for z in _flatten(y)]
    return [x]


def evaluate(program: ir.Program, *params: Any) -> list[Any]:
    """Run a program on arrays: outputs, writes, error word. Used by tests and under tracing."""
    return _Evaluator(program, params).results()


def _evaluate_sequence(sequence: ir.Sequence, *params: Any) -> list[Any]:
    """Run a sequence on arrays: outputs, then writes."""
    *buffers, zero = params

    def walk(*buffers: Any) -> list[Any]:
        results: list[list[Any]] = []
        for step in sequence.steps:
            program = sequence.programs[step.program]
            inputs = [buffers[i] if s < 0 else results[s][i] for s, i in step.inputs]
            given = evaluate(program, *inputs)
            if len(given) != len(program.outputs) + len(written_params(program)):
                raise LoweringError("an operator with index checks cannot be in a sequence")
            results.append(exact.end_stage(given))
        left = [results[s][r] for s, r in sequence.outputs]
        return left + [results[s][r] for _, s, r in sequence.writes]

    return exact.fence(walk, buffers, zero, not sequence.fuse_reductions)


def written_params(program: ir.Program | ir.Sequence) -> tuple[int, ...]:
    """Parameters that get a new buffer, in the order of the results."""
    if isinstance(program, ir.Sequence):
        return tuple(p for p, _, _ in program.writes)
    return tuple(dict.fromkeys(w.param for w in program.writes))


def _weak_params(program: ir.Program | ir.Sequence) -> set[int]:
    """Parameters that are Python numbers, which yield to tensors in type promotion."""
    if isinstance(program, ir.Program):
        return {a.param for n in program.nodes for a in _numbers(n.args) if a.weak}
    weak = [_weak_params(p) for p in program.programs]
    return {
        i
        for step in program.steps
        for place, (s, i) in enumerate(step.inputs)
        if s < 0 and place in weak[step.program]
    }


def lower(
    program: ir.Program | ir.Sequence,
    *,
    platform: str,
    version: str,
    available: Collection[str] = (),
) -> Lowered:
    """Lower for ``platform`` ("cpu", or a neutral name) to a portable artifact.

    ``version`` is the StableHLO version the plugin reads, such as "1.9.3". ``available``: names of
    the custom-call handlers that rules may use.

    Raises:
        LoweringError: a rule is missing, failed, or disagrees with PyTorch about its results.
    """
    table.load_rules()
    evaluators: list[_Evaluator] = []

    def function(*params: Any) -> list[Any]:
        if isinstance(program, ir.Sequence):
            return _evaluate_sequence(program, *params)
        evaluator = _Evaluator(program, params)
        evaluators.append(evaluator)
        return evaluator.results()

    weak = _weak_params(program)
    with jax.enable_x64(True):
        shapes = [
            jax.ShapeDtypeStruct(p.shape, np_dtype(p.dtype), weak_type=i in weak)
            for i, p in enumerate(program.params)
        ]
        if isinstance(program, ir.Sequence):
            shapes.append(jax.ShapeDtypeStruct((), np.int32))
        elif program.uses_rng:
            shapes += [jax.ShapeDtypeStruct((), np.uint64)] * 2
        writes = written_params(program)
        donated = writes
        if isinstance(program, ir.Sequence):
            donated += tuple(p for p in program.donated if p not in writes)
        try:
            with handlers.offered(available) as used, layout.remembering():
                lowered = (
                    jax.jit(function, donate_argnums=donated)
                    .trace(*shapes)
                    .lower(lowering_platforms=(platform,))
                )
            module = lowered.compiler_ir("stablehlo")
            with module.context:
                passmanager.PassManager.parse(_PASSES).run(module.operation)
                accessed = traffic.bytes_accessed(module)
        except LoweringError:
            raise
        except Exception as error:
            ops = ", ".join(dict.fromkeys(n.op for n in program.nodes))
            raise LoweringError(f"{ops}: {type(error).__name__}: {error}") from error
        kept = tuple(sorted(lowered._lowering.compile_args["kept_var_idx"]))
        results = tuple(ir.Array(np.dtype(r.dtype).name, tuple(r.shape)) for r in lowered.out_info)
    aliases = {len(program.outputs) + i: kept.index(p) for i, p in enumerate(writes) if p in kept}
    version = stablehlo.get_smaller_version(version, stablehlo.get_current_version())
    return Lowered(
        module=stablehlo.serialize_portable_artifact(module, version),
        kept=kept,
        results=results,
        checks=tuple(evaluators[0].checks.declared) if evaluators else (),
        rng_increment=evaluators[0].rng.increment if evaluators and evaluators[0].rng else 0,
        aliases=aliases,
        bytes_accessed=accessed,
        handlers=tuple(sorted(used)),
    )


def _numbers(x: Any) -> list[ir.Number]:
    if isinstance(x, ir.Number):
        return [x]
    if isinstance(x, tuple):
        return [z for y in x for z in _numbers(y)]
    return []
