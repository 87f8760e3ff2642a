"""Makes one executable of a sequence of launches (decision D12).

C++ asks when it has seen a sequence and how its data flow; the answer is a kernel that becomes
ready in the background. The programs of the launches come from the keys under which their kernels
are loaded again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch_neuronx import _C, config
from torch_neuronx.compiler import progress, session
from torch_neuronx.compiler.compile import Compiled
from torch_neuronx.lowering import program as ir


def key_of(request: dict[str, Any]) -> bytes:
    """Equal for requests that one executable serves."""
    facts = [[step[1:] for step in request["steps"]], request["needed"], request["dropped"]]
    facts.append(config.get("TORCH_NEURONX_FUSE_REDUCTIONS"))
    return hashlib.sha256(b"fused\0" + json.dumps(facts).encode()).digest()


def fuse(request: dict[str, Any], key: bytes, over: Callable[[], None] = lambda: None) -> Any:
    """The kernel of a sequence, pending; ``key`` is ``key_of(request)``. ``over`` is called when
    that ends, in any thread.

    ``request`` is what csrc/bindings/adaptive.cc describes:

    ``steps``: (name, reload key, slots of the parameters, slots of the outputs, places of the
    parameters that it writes, whether it draws random numbers) of each launch. A slot is a storage,
    -1 a number. By slot: ``created`` in the sequence, ``written`` in it, ``needed`` afterwards,
    ``dropped`` afterwards.
    """
    steps = request["steps"]
    kernel = _C.Kernel("neuron::fused")
    names = list(dict.fromkeys(step[0] for step in steps))
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    kernel.set_description(f"{len(steps)} operators as one executable: {shown}")
    layout = _Layout(request)
    future = session.compiler().submit(
        key, lambda: _sequence(request, layout), {"source": ""}, name=f"{len(steps)} operators"
    )

    def done(future: Future[Compiled]) -> None:
        try:
            session.make_ready(kernel, future.result(), layout.writes, key, layout.donated)
        except BaseException as error:
            kernel.set_failed(f"{type(error).__name__}: {error}")
        finally:
            over()

    future.add_done_callback(done)
    return kernel


def fuse_or_not(request: dict[str, Any]) -> Any:
    """``fuse``, or None if that fails: then the operators go on one by one."""
    try:
        return fuse(request, key_of(request))
    except Exception as error:
        progress.say(f"torchneuron: a sequence is not fused: {error!r}", level=1)
        return None


class _Layout:
    """Where the launch parameters of a fused kernel are: storages from before, then numbers."""

    def __init__(self, request: dict[str, Any]) -> None:
        outer = [s for s, created in enumerate(request["created"]) if not created]
        self.places = {slot: i for i, slot in enumerate(outer)}
        self.outputs = [s for s, c in enumerate(request["created"]) if c and request["needed"][s]]
        written = [s for s in outer if request["needed"][s]]
        self.written = written
        self.writes = tuple(self.places[s] for s in written)
        self.donated = tuple(self.places[s] for s in outer if request["dropped"][s])


def _sequence(request: dict[str, Any], layout: _Layout) -> ir.Text:
    """The ``ir.Sequence`` as text, in which the programs' own texts stay as they are.

    Reading and writing programs node by node would hold the interpreter's lock for milliseconds.
    """
    programs: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    steps: list[Any] = []
    params: dict[int, Any] = {}
    now = {slot: (-1, place) for slot, place in layout.places.items()}
    count = len(layout.places)
    for i, (_, reload_key, slots, outputs, writes, uses_rng) in enumerate(request["steps"]):
        if reload_key not in numbers:
            numbers[reload_key] = len(programs)
            programs.append(json.loads(session.text_of(json.loads(reload_key)[1])))
        specs = programs[numbers[reload_key]]["v"][0]
        inputs = []
        for slot, spec in zip(slots, specs, strict=True):
            if slot >= 0:
                inputs.append(now[slot])
                if now[slot][0] < 0:
                    params[now[slot][1]] = spec
                continue
            inputs.append((-1, count))
            params[count] = spec
            count += 1
        for _ in range(2 if uses_rng else 0):
            inputs.append((-1, count))
            params[count] = {"": "Array", "v": ["uint64", []]}
            count += 1
        steps.append({"": "Step", "v": [numbers[reload_key], inputs]})
        now.update((slot, (i, r)) for r, slot in enumerate(outputs))
        now.update((slots[w], (i, len(outputs) + r)) for r, w in enumerate(writes))
    fields = [
        programs,
        steps,
        [params[p] for p in range(count)],
        [now[s] for s in layout.outputs],
        [(layout.places[s], *now[s]) for s in layout.written],
        layout.donated,
        config.get("TORCH_NEURONX_FUSE_REDUCTIONS"),
    ]
    whole = {"": "Sequence", "v": fields}
    return ir.Text(json.dumps(whole, separators=(",", ":"), sort_keys=True))
