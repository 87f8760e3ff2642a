"""Plans for the launch path: what C++ asks at a key it has not seen.

``plan`` is the one callback that ``_C`` knows. It hands the call to whoever registered for the
callable's name: the eager planner for operators, a graph's own planner for compiled graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch_neuronx import _C, config
from torch_neuronx.compiler import deferred, session
from torch_neuronx.compiler.compile import Compiled, Pending
from torch_neuronx.lowering.program import Program

Planner = Callable[[str, dict[str, Any], list[Any]], Any]

_planners: dict[str, Planner] = {}
_default: list[Planner] = []


def register_default(planner: Planner) -> None:
    """The planner of names that nobody registered: the operators'."""
    _default[:] = [planner]


def register(name: str, planner: Planner) -> None:
    """The planner of one callable."""
    _planners[name] = planner


def unregister(name: str) -> None:
    """Forget a callable's planner."""
    _planners.pop(name, None)


def plan(name: str, call: dict[str, Any], values: list[Any]) -> Any:
    """The plan of one call. ``call`` is what csrc/bindings ``describe`` gives."""
    return _planners.get(name, _default[0])(name, call, values)


@dataclasses.dataclass
class Shape:
    """What a plan must know besides the executable; kept with it on the disk, as JSON.

    ``outputs``: [dtype, sizes, strides (empty: contiguous)] each. ``returns``: as
    ``_C.make_plan`` takes them. ``writes``: parameters that get a new buffer.
    """

    outputs: list[Any]
    returns: list[Any]
    writes: list[int]
    uses_rng: bool = False
    warn_float64: bool = False
    warn_e4m3: bool = False


@dataclasses.dataclass(frozen=True)
class Made:
    """A call's plan; ``compiled`` if its executable is there already."""

    plan: Any
    shape: Shape
    compiled: Compiled | None


def from_disk(name: str, key: bytes, *, fusible: bool = False) -> Made | None:
    """The plan of a call that an earlier process compiled; ``fusible`` as in ``compile``."""
    compiled = session.compiler().lookup(key)
    if compiled is None or "shape" not in compiled.meta:
        return None
    try:
        shape = Shape(**compiled.meta["shape"])
    except TypeError:
        return None  # not what we write; it is lowered again
    kernel = _C.Kernel(name)
    if fusible:
        kernel.set_fusible()
    session.make_ready(kernel, compiled, tuple(shape.writes), key)
    return Made(_make(kernel, shape, compiled), shape, compiled)


def _no_observer(compiled: Compiled | None, error: BaseException | None) -> None:
    """Nobody wants to know."""


def compile(
    name: str,
    key: bytes,
    program: Program,
    shape: Shape,
    *,
    explain: Callable[[BaseException], str] = lambda e: f"{type(e).__name__}: {e}",
    observe: Callable[[Compiled | None, BaseException | None], None] = _no_observer,
    wait: str = "",
    label: str = "",
    fusible: bool = False,
    batched: bool = False,
) -> Made:
    """The plan of a call that must be compiled; launches wait for it in the background.

    ``explain`` makes the text of an error that comes up there; ``observe`` is told how it ended, in
    any thread. ``wait``: "lowered" and "compiled" return no earlier than that, and raise what went
    wrong until then. ``label`` is what reports call it (default: by its operators).
    ``fusible``: adaptive eager may make it part of a larger executable. ``batched``: nothing is
    compiled before a launch waits for it, and then together with others.

    A random operator always waits, since how far it advances the generator is known after its
    lowering.
    """
    kernel = _C.Kernel(name)
    if fusible:
        kernel.set_fusible()
    source = session.pack(program)
    extra = {"shape": dataclasses.asdict(shape), "source": source}

    def start() -> Pending:
        future = session.compiler().submit(key, lambda: program, extra, name=label)
        future.add_done_callback(done)
        return future

    def done(future: Future[Compiled]) -> None:
        # Launches wait for this kernel: it must become ready or failed, whatever happens here.
        # The observer comes first: whoever has waited for the kernel finds it told.
        try:
            compiled = future.result()
            observe(compiled, None)
            session.make_ready(kernel, compiled, tuple(shape.writes), key)
        except BaseException as error:
            observe(None, error)
            kernel.set_failed(f"{name}: {explain(error)}")

    compiled = None
    waits = shape.uses_rng or wait == "compiled" or config.get("TORCH_NEURONX_COMPILE_ONLY")
    if batched and not waits and not wait:
        deferred.defer(kernel, session.reload_key(key, source), shape.writes, start)
        return Made(_make(kernel, shape, None, checked=False), shape, None)
    future = start()
    if waits:
        compiled = session.compiler().wait(future)
    elif wait == "lowered":
        future.lowered.wait()
        if future.done():
            compiled = future.result()
    return Made(_make(kernel, shape, compiled), shape, compiled)


def _make(kernel: Any, shape: Shape, compiled: Compiled | None, *, checked: bool = True) -> Any:
    return _C.make_plan(
        kernel,
        [(d, list(s), list(st)) for d, s, st in shape.outputs],
        [tuple(r) for r in shape.returns],
        [],
        compiled.meta["rng_increment"] if compiled else 0,
        shape.uses_rng,
        bool(compiled.meta["checks"]) if compiled else checked,
    )
