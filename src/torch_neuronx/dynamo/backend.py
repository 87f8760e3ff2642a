"""From Dynamo's graph to compiled functions: decompositions, AOTAutograd, forward and backward."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_neuronx.compiler import overloads
from torch_neuronx.dynamo import device_interface
from torch_neuronx.dynamo.function import CompiledFunction

_numbers = itertools.count()


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core decompositions of whatever has no rule of its own."""
    rules = overloads.rule_names()
    return {
        op: function
        for op, function in core_aten_decompositions().items()
        if not (isinstance(op, torch._ops.OpOverload) and op.name() in rules)
    }


def compile(
    gm: torch.fx.GraphModule, example_inputs: list[Any], **kwargs: Any
) -> Callable[..., Any]:
    """Compile one Dynamo graph. ``kwargs`` are torch.compile's; the caller's dict is not changed."""
    device_interface.register()
    number = next(_numbers)

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            return make_boxed_func(CompiledFunction(graph, f"graph_{number}_{kind}"))

        return compile_graph

    return aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
