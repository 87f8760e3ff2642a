"""The PyTorch device ``neuron``.

``import torch`` loads this package through torch's backend entry point, so a program needs no
import of its own: ``torch.randn(3, device="neuron")``. Importing starts nothing: no plugin, no
lowering server, no jax (decision D15).

The names of ``torch.neuron`` are here too, as in TorchNeuron: ``torch_neuronx.synchronize()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import contextlib

from torch_neuronx import _autoload

__version__ = "0.1.0"
__all__ = [
    "clear_op_tracking",
    "compile_events",
    "eager_mode",
    "eager_stats",
    "explain",
    "fallback_table",
    "get_executed_ops",
    "get_fallback_ops",
]


def get_executed_ops() -> list[str]:
    """Overloads that ran natively on the device since the last ``clear_op_tracking()``, sorted.

    Stage: stable.
    """
    from torch_neuronx.eager import tracking

    return tracking.executed_ops()


def get_fallback_ops() -> list[str]:
    """Overloads that ran on the CPU since the last ``clear_op_tracking()``, sorted.

    ``fallback_table()`` has dtypes, shapes and Python lines of each.

    Stage: stable.
    """
    from torch_neuronx.eager import tracking

    return tracking.fallback_ops()


def fallback_table() -> str:
    """Every distinct fallback with its count, dtypes, shapes and Python line, as text to print.

    Stage: stable.
    """
    from torch_neuronx.eager import tracking

    return tracking.fallback_table()


def clear_op_tracking() -> None:
    """Forget which operators ran.

    Stage: stable.
    """
    from torch_neuronx.eager import tracking

    tracking.clear()


def compile_events(after: int = -1) -> list[dict[str, Any]]:
    """The last 4,096 executables made or loaded in this process, oldest first.

    Args:
        after: leave out those up to this ``number``.

    Each has ``number`` (from 0, never reused), ``name``, ``source`` ("compiled" here, or "l1"/"l2":
    read from the cache), ``lower_s``, ``compile_s`` and ``load_s`` (seconds), ``size_bytes``, and
    ``handlers``: the host kernels it calls (TORCH_NEURONX_HOST_KERNELS).

    Stage: experimental.
    """
    from torch_neuronx.compiler import session

    return session.events(after)


def eager_mode(mode: str) -> contextlib.AbstractContextManager[None]:
    """Within a ``with`` block, eager operators run this way, in all threads.

    ``per-op``: one executable each. ``adaptive``: sequences that come again are fused in the
    background; results are the same to the bit, and where a plugin is known not to keep them, this
    is ``per-op``, with a warning. ``blocking``: each is waited for. What holds outside is
    ``TORCH_NEURONX_EAGER``.

    Raises:
        ValueError: any other mode.

    Stage: experimental.
    """
    from torch_neuronx.eager import adaptive

    return adaptive.eager_mode(mode)


def eager_stats(device: int | None = None) -> dict[str, Any]:
    """What adaptive eager did on a device (default: the current one) since the program began.

    ``recorded``: launches held back to be fused; ``fused_operators`` of them ran in
    ``fused_launches`` launches. ``flushes``: what ended a holding, by cause. ``loops`` and
    ``sequences`` found; ``background_compiles`` asked for, ``fused_executables`` ready,
    ``failed_compiles``; ``over_budget``: sequences that stay one by one. ``seconds_saved``: host
    time of launching, measured against the same launches one by one. ``batches``: launches that
    stood for ``batched_operators`` whose kernels nobody had compiled; ``batches_taken_apart``.

    Stage: experimental.
    """
    from torch_neuronx.eager import adaptive

    return adaptive.eager_stats(device)


def explain(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``function(*args, **kwargs)`` compiled; print and return what became of it.

    Graphs, graph breaks with reasons and lines, operators that run natively, that were decomposed
    or have no rule, shapes with their cause and cost, estimated peak memory:
    ``torch_neuronx.dynamo.explain.Explanation``, whose ``result`` is the function's result.

    Stage: experimental.
    """
    from torch_neuronx.dynamo import explain as dynamo_explain

    explanation = dynamo_explain.explain(function, *args, **kwargs)
    print(explanation)
    return explanation


# What C++ calls back. Each imports what it needs at its first call: `import torch` does not.


def _start() -> None:
    from torch_neuronx.neuron import startup

    startup.start()


def _device_count() -> int:
    from torch_neuronx.neuron import startup

    return startup.device_count()


def _plan(name: str, call: dict[str, Any], values: list[Any]) -> Any:
    import torch
    from torch.utils import _python_dispatch

    from torch_neuronx.compiler import planning
    from torch_neuronx.eager import planner  # noqa: F401  registers itself for operators

    # Planning calls operators of its own, on the meta device and on CPU. The program's modes (a
    # default device among them) are not for those.
    with torch._C.DisableTorchFunction(), _python_dispatch._disable_current_modes():
        return planning.plan(name, call, values)


def _fuse(request: dict[str, Any]) -> Any:
    from torch_neuronx.eager import fusing

    return fusing.fuse_or_not(request)


def _batch(request: dict[str, Any], cold: list[Any]) -> Any:
    from torch_neuronx.eager import batching

    return batching.batch(request, cold)


def _alone(kernels: list[Any]) -> None:
    from torch_neuronx.compiler import deferred

    deferred.start_alone(kernels)


def _on_fallback(overload: str, values: list[Any]) -> None:
    from torch_neuronx.eager import tracking

    tracking.on_fallback(overload, values)


def _register() -> None:
    """Rename PrivateUse1, load the extension and hand it the Python callbacks. Called once."""
    import contextlib
    import sys

    import torch

    from torch_neuronx import _C, meta_kernels, neuron
    from torch_neuronx.compiler import overloads, saved_artifacts
    from torch_neuronx.neuron import sharing

    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", neuron)
    for part in ("memory", "random", "streams"):
        # `import torch.neuron.memory` must find this module, not read its file a second time.
        sys.modules[f"torch.neuron.{part}"] = getattr(neuron, part)
    globals().update({name: getattr(neuron, name) for name in neuron.__all__})
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    # `TORCH_LOGS="neuron"` and `"+neuron"`; torch reads that variable right after this.
    torch._logging._internal.register_log("neuron", "torch_neuronx")
    _C.set_starter(_start)
    _C.set_device_counter(_device_count)
    _C.set_planner(_plan)
    _C.set_fuser(_fuse)
    _C.set_batcher(_batch, _alone)
    _C.set_fallback_hook(_on_fallback)
    sharing.register()
    overloads.register()
    meta_kernels.register()
    with contextlib.suppress(ImportError, AttributeError):  # another PyTorch's registry
        saved_artifacts.register()


_autoload.autoload()
