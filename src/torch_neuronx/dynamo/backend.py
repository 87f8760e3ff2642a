"""From Dynamo's graph to compiled functions: decompositions, AOTAutograd, forward and backward."""

from __future__ import annotations

import functools
import itertools
import operator
import time
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.attention import varlen
from torch.utils.checkpoint import CheckpointPolicy

from torch_neuronx import config
from torch_neuronx.compiler import ledger, overloads
from torch_neuronx.dynamo import (
    aot_cache,
    autocopy,
    buckets,
    device_interface,
    floats,
    frames,
    loops,
    obstacles,
    padding,
)
from torch_neuronx.dynamo.expand import expand, inline
from torch_neuronx.dynamo.function import CompiledFunction
from torch_neuronx.dynamo.options import Options
from torch_neuronx.dynamo.sizes import SYMBOLIC

_numbers = itertools.count()
_decomposed: set[str] = set()  # since Dynamo's last graph; for the ledger


def _recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        _decomposed.add(name)
        return function(*args, **kwargs)

    return decompose


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core decompositions of whatever has no rule of its own."""
    rules = overloads.rule_names()

    def stays(op: Any) -> bool:
        # Never a random operator: it must draw the numbers that it draws in eager (decision D9).
        return isinstance(op, torch._ops.OpOverload) and (
            op.name() in rules or torch.Tag.nondeterministic_seeded in op.tags
        )

    chosen = {
        op: _recorded(str(op), f) for op, f in core_aten_decompositions().items() if not stays(op)
    }
    # Dynamo writes addcmul_ with a number so; eager has no such operator.
    chosen[torch.ops.prims.fma.default] = lambda a, b, c: a * b + c
    # PyTorch's entry to packed sequences is a custom operator around one that has a rule.
    for custom in (varlen._varlen_attn, varlen._varlen_attn_backward):
        chosen[custom._opoverload] = custom._init_fn
    return {**{op: floats.keeps(op) for op in floats.readers(rules)}, **chosen}


def _partition(joint: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
    """Min-cut, but random results are saved for the backward pass and never drawn again.

    PyTorch redraws them under checkpointing, from a generator state that it keeps for each; saved,
    they are the same numbers, and the generator advances as in eager.
    """
    inline(joint, decompositions())
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            for kept in [node, *(user for user in node.users if user.target is operator.getitem)]:
                kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def _refuse_symbolic(example_inputs: list[Any]) -> None:
    """TORCH_NEURONX_DYNAMIC=reject: only static shapes."""
    for i, value in enumerate(example_inputs):
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        if any(isinstance(n, SYMBOLIC) for n in sizes):
            raise RuntimeError(
                f"torch.compile(backend='neuron') got a dynamic shape: input {i} is "
                f"{tuple(sizes) if isinstance(value, torch.Tensor) else value}, and "
                "TORCH_NEURONX_DYNAMIC=reject refuses symbolic sizes. Pass dynamic=False to "
                "torch.compile, pad the input to one shape, or set TORCH_NEURONX_DYNAMIC=accept."
            )


def _why_captured() -> str:
    """Why Dynamo captures this graph: a first time, or the guard that failed."""
    from torch._dynamo.utils import get_metrics_context

    # Private, so its absence only costs the reason.
    metrics = getattr(get_metrics_context(), "_metrics", {})
    reason = metrics.get("recompile_reason")
    return f"guard failed: {reason}" if reason else "first capture"


def _trace_seconds() -> float:
    """Seconds since Dynamo began with this frame."""
    from torch._dynamo.utils import get_metrics_context

    start = getattr(get_metrics_context(), "_start_time_ns", 0)
    return (time.time_ns() - start) / 1e9 if start else 0.0


def _pad(
    graph: torch.fx.GraphModule, symbols: Any, kept: dict[str, buckets.Layout], kind: str
) -> buckets.Padded | None:
    """The graph for ``options["buckets"]``, or None if nothing in it is padded."""
    returned = None
    if kind == "forward":
        returned = torch._guards.TracingContext.get().fw_metadata.num_forward
    padded = padding.pad(graph, symbols, kept, returned)
    obstacle = obstacles.find(padded.gm) if padded else None
    if obstacle:
        raise padding.BucketingError(
            f"torch.compile(backend='neuron') cannot pad this graph to buckets, because {obstacle}"
        )
    return padded


def compile(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    options: Any = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph. ``options`` and ``mode`` are torch.compile's, and never changed.

    Raises:
        RuntimeError: a size is symbolic and TORCH_NEURONX_DYNAMIC=reject, or an input is on the CPU
            and TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY=1.
        ValueError: an option has a value that it does not take.
    """
    chosen = Options.read(options, mode)
    ledger.enable_exports()
    frames.watch()
    # Dynamo hands over real inputs; which of their sizes are symbolic, its graph knows.
    if config.get("TORCH_NEURONX_DYNAMIC") == "reject":
        _refuse_symbolic(
            [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
        )
    device_interface.register()
    number = next(_numbers)
    cause = _why_captured()
    _decomposed.clear()
    symbols = buckets.symbols(gm, chosen.buckets)
    kept: dict[str, buckets.Layout] = {}  # what the forward graph keeps for the backward graph

    def build(
        graph: torch.fx.GraphModule, kind: str, decomposed: tuple[str, ...], traced: str = "cached"
    ) -> Callable[..., Any]:
        name = f"{chosen.model_name}_{number}_{kind}"
        padded = _pad(graph, symbols, kept, kind) if symbols else None
        function = CompiledFunction(
            padded.gm if padded else graph, name, kind, number, chosen, cause
        )
        function.record.trace_s = _trace_seconds()
        function.record.decomposed = decomposed
        function.record.traced = traced
        if padded is None:
            return make_boxed_func(function)
        function.record.buckets = tuple(f"{s}: {spec}" for s, spec in padded.specs.items())
        return make_boxed_func(buckets.Bucketed(padded, function))

    def compiler(kind: str, cache: aot_cache.Cache | None) -> Callable[..., Any]:
        def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            floats.restore(graph)
            expand(graph, decompositions())
            loops.count_turns(graph)
            decomposed = tuple(sorted(_decomposed))
            function = build(graph, kind, decomposed, "by AOTAutograd")
            if cache is None:
                return function
            return cache.output_code(graph, kind, decomposed, function)

        return compile_graph if cache is None else cache.compiler(compile_graph)

    def through_aot(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        with aot_cache.use(chosen, build) as cache:
            return aot_autograd(
                fw_compiler=compiler("forward", cache),
                bw_compiler=compiler("backward", cache),
                inference_compiler=compiler("inference", cache),
                decompositions=decompositions(),
                partition_fn=_partition,
                keep_inference_input_mutations=True,
            )(graph, inputs)

    return autocopy.compile(gm, example_inputs, through_aot)
