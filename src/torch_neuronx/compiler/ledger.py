"""What torch.compile made: one record a graph, one a specialisation of it, with its cause.

The graphs write here; ``torch.neuron.get_dynamo_metrics``, ``torch_neuronx.explain`` and the CSV
tables read. Thread-safe; a process, and so a rank, has its own.
"""

from __future__ import annotations

import atexit
import csv
import dataclasses
import logging
import os
import threading
import time
from typing import Any

from torch_neuronx import config

_log = logging.getLogger(__name__)

TABLES = ("graph_stats", "specialisations", "eager_frames")


@dataclasses.dataclass
class Specialisation:
    """One concrete signature of a graph, and what it cost.

    ``cause`` says what differs from the nearest signature before. ``source``: "l1" and "l2" came
    from the disk, "compiled" was compiled, "pending" and "failed" are what they say, "eager" runs
    operator by operator. ``flops`` are PyTorch's formulas over the graph's matrix products,
    convolutions and attention; ``bytes_accessed`` what its operators read and write one by one,
    without fusion; ``temporary_bytes`` what the plugin says that the executable needs besides
    arguments and results (None: it does not say). ``handlers`` are the host kernels it calls.
    """

    graph_name: str
    inputs: tuple[str, ...]
    cause: str
    source: str = "pending"
    plan_s: float = 0.0
    lower_s: float = 0.0
    compile_s: float = 0.0
    load_s: float = 0.0
    size_bytes: int = 0
    flops: int = 0
    bytes_accessed: int = 0
    argument_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int | None = None
    handlers: tuple[str, ...] = ()


@dataclasses.dataclass
class Graph:
    """One graph of AOTAutograd, as it came to the backend."""

    graph_id: int
    graph_name: str
    model_name: str
    kind: str  # "forward", "backward" or "inference"
    has_collectives: bool
    graph_node_count: int
    timestamp: float
    cause: str  # why Dynamo captured it: the first time, or the guard that failed
    trace_s: float = 0.0
    passes_s: float = 0.0
    obstacle: str | None = None
    native: tuple[str, ...] = ()  # overloads with a rule of their own
    fallback: tuple[str, ...] = ()  # without one
    decomposed: tuple[str, ...] = ()  # decomposed on the way to this graph
    traced: str = ""  # "by AOTAutograd", or "cached": found in its cache
    frontend: str = "jax"  # what lowers it; "torch-mlir" with its version
    own_rules: tuple[str, ...] = ()  # overloads that our rules lower in spite of that
    buckets: tuple[str, ...] = ()  # the symbols that are padded, and to which sizes
    specialisations: list[Specialisation] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class EagerFrame:
    """A function that Dynamo does not compile any more: new inputs run operator by operator."""

    function: str  # name and line
    limit: str
    reason: str  # the last guard that failed


_lock = threading.Lock()
_eager_frames: list[EagerFrame] = []
_graphs: list[Graph] = []
_exports: list[str] = []


def add_graph(graph: Graph) -> None:
    """Record a graph."""
    with _lock:
        _graphs.append(graph)


def add_specialisation(graph: Graph, record: Specialisation) -> None:
    """Record a specialisation."""
    with _lock:
        graph.specialisations.append(record)


def graphs() -> list[Graph]:
    """The graphs since the last ``reset``, oldest first."""
    with _lock:
        return list(_graphs)


def add_eager_frame(frame: EagerFrame) -> None:
    """Record a frame, once."""
    with _lock:
        if frame not in _eager_frames:
            _eager_frames.append(frame)


def eager_frames() -> list[EagerFrame]:
    """The frames that went eager since the last ``reset``."""
    with _lock:
        return list(_eager_frames)


def reset() -> None:
    """Forget everything. Graphs that are alive record no further specialisations that show."""
    with _lock:
        _graphs.clear()
        _eager_frames.clear()


def metrics() -> list[dict[str, Any]]:
    """One record a graph, with TorchNeuron's field names; times are sums over specialisations."""
    return [
        {
            "graph_id": g.graph_id,
            "graph_name": g.graph_name,
            "model_name": g.model_name,
            "has_collectives": g.has_collectives,
            "graph_node_count": g.graph_node_count,
            "timestamp": g.timestamp,
            "torch_neuronx_fx_passes_us": round(1e6 * g.passes_s),
            "torch_neuronx_lower_us": round(1e6 * sum(s.lower_s for s in g.specialisations)),
            "torch_neuronx_compile_us": round(1e6 * sum(s.compile_s for s in g.specialisations)),
        }
        for g in graphs()
    ]


def enable_exports() -> None:
    """Write the tables of TORCH_NEURONX_ENABLED_METRIC_TABLES when the program ends. Idempotent.

    Raises:
        ValueError: there is no such table.
    """
    names = [n.strip() for n in config.get("TORCH_NEURONX_ENABLED_METRIC_TABLES").split(",")]
    names = [n for n in names if n]
    unknown = [n for n in names if n not in TABLES]
    if unknown:
        raise ValueError(
            f"TORCH_NEURONX_ENABLED_METRIC_TABLES: metric table {unknown[0]!r} is not registered. "
            f"Expected names among {', '.join(TABLES)}."
        )
    with _lock:
        first = bool(names) and not _exports
        _exports[:] = names
    if first:
        atexit.register(_export_at_exit)


def _export_at_exit() -> None:
    try:
        export()
    except OSError as error:
        _log.warning("metric tables were not written (TORCH_NEURONX_METRICS_DIR): %s", error)


def export(directory: str | None = None) -> list[str]:
    """Write the enabled tables as CSV; the paths.

    Raises:
        OSError: the directory cannot be made, or does not take them.
    """
    directory = directory or config.get("TORCH_NEURONX_METRICS_DIR")
    os.makedirs(directory, exist_ok=True)
    rank = os.environ.get("RANK", "0")
    rows = {
        "graph_stats": metrics(),
        "specialisations": [
            {
                k: " ".join(v) if isinstance(v, tuple) else v
                for k, v in dataclasses.asdict(s).items()
            }
            for g in graphs()
            for s in g.specialisations
        ],
        "eager_frames": [dataclasses.asdict(f) for f in eager_frames()],
    }
    columns = {
        "graph_stats": [*_METRIC_FIELDS],
        "specialisations": [f.name for f in dataclasses.fields(Specialisation)],
        "eager_frames": [f.name for f in dataclasses.fields(EagerFrame)],
    }
    paths = []
    for table in _exports:
        path = os.path.join(directory, f"metric_table_{table}_rank{rank}.csv")
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, columns[table])
            writer.writeheader()
            writer.writerows(rows[table])
        paths.append(path)
    return paths


_METRIC_FIELDS = (
    "graph_id",
    "graph_name",
    "model_name",
    "has_collectives",
    "graph_node_count",
    "timestamp",
    "torch_neuronx_fx_passes_us",
    "torch_neuronx_lower_us",
    "torch_neuronx_compile_us",
)


def now() -> float:
    """Seconds since the epoch, as records have them."""
    return time.time()
