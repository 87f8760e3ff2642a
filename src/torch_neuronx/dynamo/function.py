"""A compiled graph: one executable a concrete signature, planned at the first call with it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import time
import warnings
import weakref
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._logging import getArtifactLogger

from torch_neuronx import _C
from torch_neuronx.compiler import artifacts, ledger, planning
from torch_neuronx.compiler.compile import Compiled
from torch_neuronx.dynamo import causes, costs, foreign, obstacles, regions
from torch_neuronx.dynamo import graph as fx
from torch_neuronx.dynamo.options import Options
from torch_neuronx.dynamo.split import Split, split

_serial = itertools.count()
_output_code = getArtifactLogger(__name__, "output_code")


class CompilationError(RuntimeError):
    """A graph could not be compiled; names the FX node and the Python line where they are known."""


class _Readable:
    """A graph's text, written only if somebody logs it."""

    def __init__(self, name: str, gm: torch.fx.GraphModule) -> None:
        self._name, self._gm = name, gm

    def __str__(self) -> str:
        return f"{self._name}, as it is lowered to StableHLO:\n{readable(self._gm)}"


def readable(gm: torch.fx.GraphModule) -> str:
    """A graph as Python, with shapes, strides, devices and lines."""
    return gm.print_readable(print_output=False, include_stride=True, include_device=True)


class CompiledFunction:
    """Callable on the graph's inputs; gives the list of its outputs.

    A graph with obstacles (``obstacles.find``: an operator without a rule, or work on the CPU) is
    split around them (``regions``); they run by themselves, where the fallback policy applies
    (decision D8), and a warning says so, with the Python line. Where nothing is left, and if
    ``options.fallback_execution`` for a graph that cannot be compiled, all runs operator by
    operator. What the graph computes on the CPU runs there first, by PyTorch's own kernels. CPU
    tensors that the device reads are copied to it at each call; 0-d ones are passed as numbers.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        name: str,
        kind: str,
        graph_id: int,
        options: Options,
        cause: str,
    ) -> None:
        start = time.perf_counter()
        self.name = f"{name}_{next(_serial)}"
        self.options = options
        self._gm = gm
        self._obstacle = obstacles.find(gm)
        self.record = _record(gm, self.name, kind, graph_id, options.model_name, cause)
        self.record.obstacle = self._obstacle
        self.record.frontend = foreign.of_graph(options.frontend, kind)
        ledger.add_graph(self.record)
        counters["neuron"]["compiled_graphs"] += 1
        counters["neuron"]["graphs_with_collectives"] += self.record.has_collectives
        _output_code.debug("%s", _Readable(self.name, gm))
        if artifacts.enabled():
            artifacts.preserve_graph(self.name, readable(gm))
        self._regions: regions.Runner | None = None
        if self._obstacle:
            self._split_around_obstacles(gm, name, kind, graph_id)
        else:
            self._prepare(gm)
        self.record.passes_s = time.perf_counter() - start

    def _split_around_obstacles(
        self, gm: torch.fx.GraphModule, name: str, kind: str, graph_id: int
    ) -> None:
        parts = regions.split(gm)
        if parts is None:
            self._warn(f"runs operator by operator, because {self._obstacle}")
            return

        def compile_region(region: torch.fx.GraphModule) -> CompiledFunction:
            return CompiledFunction(
                region, name, kind, graph_id, self.options, f"a region of {self.name}"
            )

        count = sum(isinstance(s, regions.Region) for s in parts.steps)
        self._warn(
            f"runs as {count} executables with {parts.alone} operators between them, operator by "
            f"operator, because {self._obstacle}"
        )
        self._regions = regions.Runner(gm, parts, compile_region)

    def _prepare(self, gm: torch.fx.GraphModule) -> None:
        self._device = obstacles.devices(gm)[0]
        self._split = split(gm, rules=self.record.frontend == "jax")
        self._device_gm = self._split.device
        self._constants = fx.constants(self._device_gm, self._device)
        self._host_inputs = fx.host_inputs(self._device_gm)
        self._literals = fx.literal_results(self._device_gm)
        text = f"{self.record.frontend}\n{fx.canonical_text(self._device_gm)}"
        self._digest = hashlib.sha256(text.encode()).digest()
        self._graph = _C.Graph(self.name, self._split.operands)
        _register(self)

    def _warn(self, what: str) -> None:
        warnings.warn(
            f"torch.compile(backend='neuron'): {self.name} {what}", UserWarning, stacklevel=3
        )

    def __call__(self, *inputs: Any) -> list[Any]:
        with contextlib.nullcontext() if not torch.is_grad_enabled() else torch.no_grad():
            if not self._obstacle:
                try:
                    return self._call_compiled(inputs)
                except CompilationError as error:
                    if not self.options.fallback_execution:
                        raise
                    self._obstacle = self.record.obstacle = f"it cannot be compiled: {error}"
                    self._warn(f"runs operator by operator, because {self._obstacle}")
            if self._regions is not None:
                return self._regions(*inputs)
            return list(torch.fx.Interpreter(self._gm).run(*inputs))

    def _call_compiled(self, inputs: tuple[Any, ...]) -> list[Any]:
        if self._split.host is not None:
            return self._call_both(self._split, inputs)
        return self._call_device([*inputs, *self._constants])

    def _call_both(self, parts: Split, inputs: tuple[Any, ...]) -> list[Any]:
        assert parts.host is not None
        on_cpu = parts.host(*inputs)
        end = parts.num_passed + len(parts.host_results)
        results = self._call_device([*inputs, *on_cpu[: parts.num_passed], *self._constants])
        for i, value in zip(parts.host_results, on_cpu[parts.num_passed : end], strict=True):
            results[i] = value
        for i, value in zip(parts.host_writes, on_cpu[end:], strict=True):
            inputs[i].copy_(value)
        return results

    def _call_device(self, arguments: list[Any]) -> list[Any]:
        for i in self._split.unused:
            arguments[i] = None
        for i in self._host_inputs:
            arguments[i] = fx.to_device(arguments[i], self._device)
        results: list[Any] = self._graph(arguments)
        for i, value in self._literals.items():
            results[i] = value
        return results

    def plan(self, name: str, call: dict[str, Any], values: list[Any]) -> Any:
        """The plan of one call, from the disk or compiled in the background.

        What the lowering finds wrong is raised here; what the plugin's compiler does is raised at
        the next synchronisation, unless the fallback must know at once.

        Raises:
            CompilationError: names node, Python line and what to change.
        """
        start = time.perf_counter()
        signature = causes.signature(values, self._split.operands)
        record = ledger.Specialisation(
            self.name,
            signature,
            causes.explain(signature, [s.inputs for s in self.record.specialisations])
            or self.record.cause,
        )
        ledger.add_specialisation(self.record, record)
        record.flops = costs.flops(self._device_gm, values)
        told = causes.Report(record)
        lines: list[str] = []

        def observe(compiled: Compiled | None, error: BaseException | None) -> None:
            causes.fill(record, compiled)
            told.part()

        try:
            key = b"graph\0" + self._digest + call["words"]
            made = planning.from_disk(name, key)
            if made is not None:
                observe(made.compiled, None)
            else:
                program, shape, lines = fx.write(self._device_gm, call, values)
                if self.record.frontend != "jax":
                    program, lines, self.record.own_rules = foreign.divide(program, lines)
                made = planning.compile(
                    name,
                    key,
                    program,
                    shape,
                    explain=lambda e: _explain(e, lines),
                    observe=observe,
                    wait="compiled" if self.options.fallback_execution else "lowered",
                    label=self.name,
                )
        except Exception as error:
            record.source = "failed"
            causes.report(record)
            raise CompilationError(f"{self.name}: {_explain(error, lines)}. {_ADVICE}") from error
        record.plan_s = time.perf_counter() - start
        told.part()
        return made.plan


_ADVICE = (
    "Change that line, keep the function out of the graph with torch.compiler.disable, or pass "
    "options={'fallback_execution': True} to torch.compile to run such a graph operator by operator"
)


def _record(
    gm: torch.fx.GraphModule, name: str, kind: str, graph_id: int, model_name: str, cause: str
) -> ledger.Graph:
    """A graph's entry in the ledger."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    native, missing = obstacles.by_rule(calls)
    return ledger.Graph(
        graph_id,
        name,
        model_name,
        kind,
        any("c10d" in str(n.target) for n in calls),
        len(gm.graph.nodes),
        ledger.now(),
        cause,
        native=native,
        fallback=missing,
    )


def _register(function: CompiledFunction) -> None:
    """Plan calls of a function's graph, as long as the function lives."""
    alive = weakref.ref(function)

    def plan(name: str, call: dict[str, Any], values: list[Any]) -> Any:
        owner = alive()
        if owner is None:
            raise RuntimeError(f"{name} was called after its compiled function was freed")
        return owner.plan(name, call, values)

    planning.register(function.name, plan)
    weakref.finalize(function, planning.unregister, function.name)


def _explain(error: BaseException, lines: list[str]) -> str:
    """A failed compilation's text, with the graph's node that lowering/build.py gives by number."""
    text = f"{type(error).__name__}: {error}"
    if len(lines) == 1:
        return f"{text} at {lines[0]}"
    return re.sub(r" \(node (\d+)\)", lambda found: f" at {lines[int(found[1])]}", text)
