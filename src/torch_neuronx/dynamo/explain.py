"""``torch_neuronx.explain``: what torch.compile makes of a function, as a record and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters

from torch_neuronx.compiler import ledger


@dataclasses.dataclass(frozen=True)
class Break:
    """Where Dynamo ended a graph and went on in Python."""

    reason: str
    line: str


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What happened while a function ran compiled once.

    ``graphs`` are the ledger's records, ``breaks`` Dynamo's graph breaks, ``unsupported`` what made
    Dynamo run a whole frame in Python, ``eager_frames`` functions past Dynamo's recompile limit.
    ``error`` is what the run raised for an operator that neither has a rule nor runs on the CPU;
    ``result`` is None then. ``peak_bytes`` is an estimate: the largest executable's
    arguments, results and temporaries, as the plugin states them. ``result`` is the function's.
    """

    graphs: tuple[ledger.Graph, ...]
    breaks: tuple[Break, ...]
    unsupported: tuple[str, ...]
    peak_bytes: int
    result: Any
    eager_frames: tuple[ledger.EagerFrame, ...] = ()
    error: NotImplementedError | None = None

    def native(self) -> list[str]:
        """Overloads that run on the device, in an executable."""
        return sorted({n for g in self.graphs if not g.obstacle for n in g.native})

    def decomposed(self) -> list[str]:
        """Overloads that were decomposed into others."""
        return sorted({n for g in self.graphs for n in g.decomposed})

    def fallback(self) -> list[str]:
        """Overloads without a rule: they run on the CPU, and their graph operator by operator."""
        return [n for n in self._without_rule() if _runs_on_cpu(n)]

    def refused(self) -> list[str]:
        """Overloads that raise: neither a rule nor a kernel that could run them on the CPU."""
        return [n for n in self._without_rule() if not _runs_on_cpu(n)]

    def _without_rule(self) -> list[str]:
        return sorted({n for g in self.graphs for n in g.fallback})

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graphs, {len(self.breaks)} graph breaks"]
        for b in self.breaks:
            lines.append(f"  break at {b.line}: {b.reason}")
        lines += [f"  run in Python: {text}" for text in self.unsupported]
        lines += [
            f"  run in Python: {f.function}, past Dynamo's {f.limit}; last: {f.reason}"
            for f in self.eager_frames
        ]
        if self.error is not None:
            lines.append(f"  it raises: {self.error}")
        for g in self.graphs:
            lines.append(
                f"graph {g.graph_name}: {g.graph_node_count} nodes, traced in {g.trace_s:.3f} s, "
                f"{g.cause}"
            )
            if g.traced == "cached":
                lines.append("  found in AOTAutograd's cache")
            if g.obstacle:
                lines.append(f"  operator by operator, because {g.obstacle}")
            if g.frontend != "jax":
                but = f"; {', '.join(g.own_rules)} by our own rules" if g.own_rules else ""
                lines.append(f"  lowered by {g.frontend}{but}")
            lines += [f"  padded to buckets: {text}" for text in g.buckets]
            for s in g.specialisations:
                lines += _specialisation(s)
        for title, names in (
            ("native", self.native()),
            ("decomposed", self.decomposed()),
            ("without a rule", self.fallback()),
            ("refused", self.refused()),
        ):
            lines.append(f"operators {title}: {', '.join(names) or 'none'}")
        lines.append(f"peak memory, estimated: {_size(self.peak_bytes)}")
        return "\n".join(lines)


def _specialisation(s: ledger.Specialisation) -> list[str]:
    temporary = "unknown" if s.temporary_bytes is None else _size(s.temporary_bytes)
    return [
        f"  ({', '.join(s.inputs)}): {s.cause}",
        f"    {s.source}: planned in {s.plan_s:.3f} s, lowered in {s.lower_s:.3f} s, compiled in "
        f"{s.compile_s:.3f} s, loaded in {s.load_s:.3f} s; {_size(s.size_bytes)} of code",
        f"    {s.flops:,} FLOPs, {_size(s.bytes_accessed)} moved without fusion, temporaries "
        f"{temporary}",
        *([f"    host kernels: {', '.join(s.handlers)}"] if s.handlers else []),
    ]


def _size(count: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Run ``function(*args, **kwargs)`` compiled, and say what became of it.

    ``function`` is a callable or a module; what torch.compile gave is explained as it is. It runs
    once, with its side effects. Graphs that were compiled before are not compiled, nor listed,
    again: ``torch._dynamo.reset()`` forgets them.
    """
    from torch._dynamo import output_graph

    compiled = function if hasattr(function, "_torchdynamo_orig_callable") else torch.compile(
        function, backend="neuron")  # fmt: skip
    before = len(ledger.graphs())
    earlier = {id(s) for g in ledger.graphs() for s in g.specialisations}
    breaks_before = len(output_graph.graph_break_reasons)
    unsupported_before = dict(counters["unimplemented"])
    result, error = None, None
    try:
        result = compiled(*args, **kwargs)
        torch.neuron.synchronize()
    except NotImplementedError as refusal:
        error = refusal
    known = ledger.graphs()
    graphs = [
        *known[before:],
        # Known graphs that were given a new signature.
        *(g for g in known[:before] if any(id(s) not in earlier for s in g.specialisations)),
    ]
    breaks = [
        Break(r.reason.splitlines()[0], _line(r.user_stack))
        for r in output_graph.graph_break_reasons[breaks_before:]
    ]
    unsupported = [
        text.splitlines()[0]
        for text, count in counters["unimplemented"].items()
        if count > unsupported_before.get(text, 0)
    ]
    peak = max(
        (
            s.argument_bytes + s.output_bytes + (s.temporary_bytes or 0)
            for g in graphs
            for s in g.specialisations
        ),
        default=0,
    )
    return Explanation(
        tuple(graphs), tuple(breaks), tuple(unsupported), peak, result,
        tuple(ledger.eager_frames()), error,
    )  # fmt: skip


def _runs_on_cpu(name: str) -> bool:
    """Whether the CPU fallback finds a kernel for an overload; a custom operator's has any."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return not name.startswith("aten::") or any(
        has(name, key) for key in ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    )


def _line(stack: Any) -> str:
    if not stack:
        return "an unknown line"
    return f"{stack[-1].filename}:{stack[-1].lineno}"
