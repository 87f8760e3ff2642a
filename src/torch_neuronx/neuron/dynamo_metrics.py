"""Metrics of torch.compile, with TorchNeuron's names."""

from __future__ import annotations

import sys
from typing import Any

from torch_neuronx import _C
from torch_neuronx.compiler import ledger


def get_dynamo_metrics() -> list[dict[str, Any]]:
    """One record for each graph that ``torch.compile(backend="neuron")`` got, oldest first.

    Waits for the devices first. Fields: ``graph_id``, ``graph_name``, ``model_name``,
    ``has_collectives``, ``graph_node_count``, ``timestamp`` (seconds since the epoch),
    ``torch_neuronx_fx_passes_us``, ``torch_neuronx_lower_us``, ``torch_neuronx_compile_us`` (sums
    over the graph's shapes). ``torch_neuronx.explain`` has more.

    Stage: stable.
    """
    if _C.is_started():
        for index in range(_C.device_count()):
            _C.synchronize(index)
    return ledger.metrics()


def reset_dynamo_metrics() -> None:
    """Forget those records, and Dynamo's ``neuron`` counters.

    Stage: stable.
    """
    ledger.reset()
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        utils.counters.pop("neuron", None)
