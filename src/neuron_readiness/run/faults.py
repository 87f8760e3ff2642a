"""What kind of fault an exception is, and whose: the workload's or the infrastructure's."""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from neuron_readiness.evidence import Fault, Side
from neuron_readiness.pilot import PilotError
from neuron_readiness.run import guard
from neuron_readiness.run.child import ChildFailed

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# "File too large" alone may be said of anything.
_FULL_TEXTS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), f"[Errno {errno.EFBIG}]")
_NETWORK = {
    "NetworkNeeded",
    "gaierror",
    "ConnectionError",
    "ConnectError",
    "ConnectionRefusedError",
    "OfflineModeIsEnabled",
    "LocalEntryNotFoundError",
    "URLError",
}
_DEVICE = {"OutOfMemoryError", "AcceleratorError", "XlaRuntimeError"}
# What Python says where a function is called with other arguments than it takes.
_WRONG_CALL = re.compile(
    r"\(\) (got an unexpected keyword|got multiple values|missing \d+ required|takes .* argument)"
)
_OWN = str(Path(__file__).resolve().parent.parent)


def raised() -> tuple[type[BaseException], ...]:
    """What a handler takes of the pilot's code: an exception, or ``SystemExit``, by which a script
    ends a process that is not the pilot's here. In a copy that ``fork`` made the process is the
    pilot's own, and ends as it says."""
    return (Exception, SystemExit) if guard.is_original() else (Exception,)


def is_disk_full(error: BaseException) -> bool:
    return any(isinstance(e, OSError) and e.errno in _FULL for e in chain(error))


def says_disk_full(trace: str) -> bool:
    """Whether what a process wrote at its end tells of a full disk, a quota or a limit of files."""
    return any(text in trace for text in _FULL_TEXTS)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def of_child(error: ChildFailed, pilot: Path) -> Fault:
    """The fault that the end of a child process is, by its status and what it wrote at last."""
    trace = str(error)
    text = trace.splitlines()[0][:600]
    if error.returncode is None:
        return Fault("hung", text, "unknown", trace)
    if error.returncode < 0:
        return Fault("crashed", text, "unknown", trace)
    if says_disk_full(trace):
        return Fault("disk-full", text, "infrastructure", trace)
    if any(f"{name}:" in trace for name in _NETWORK):
        return Fault("needs-network", text, "workload", trace)
    if any(f"{name}:" in trace for name in _DEVICE):
        return Fault("pilot-raised", text, "infrastructure", trace)
    side: Side = "workload" if f'"{pilot}"' in trace else "unknown"
    return Fault("pilot-raised", text, side, trace)


def place(error: BaseException, pilot: Path) -> str:
    """``file:line`` of the innermost frame in the pilot's file, or else of the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    chosen = [f for f in frames if Path(f.filename) == pilot] or frames
    return f"{chosen[-1].filename}:{chosen[-1].lineno}" if chosen else ""


def classify(error: BaseException, pilot: Path) -> Fault:
    """The fault that an exception of a stage is.

    A frame of the pilot's own file makes it the workload's, except for errors that only a device
    raises (out of memory, a failed launch). Without such a frame, an error from PyTorch's or the
    backend's code may be either's, and one from this package's code is the tool's.
    """
    if isinstance(error, ChildFailed):
        return of_child(error, pilot)
    trace = "".join(traceback.format_exception(error))[-6000:]
    text = f"{type(error).__name__}: {str(error).strip()}"[:600]
    names = {type(e).__name__ for e in chain(error)}
    if is_disk_full(error):
        return Fault("disk-full", text, "infrastructure", trace)
    if names & _NETWORK or "couldn't connect to" in str(error):
        return Fault("needs-network", text, "workload", trace)
    frames = [Path(f.filename) for f in traceback.extract_tb(error.__traceback__)]
    if names & _DEVICE:
        return Fault("pilot-raised", text, "infrastructure", trace)
    if isinstance(error, PilotError) or pilot in frames:
        return Fault("pilot-raised", text, "workload", trace)
    own = bool(frames) and str(frames[-1]).startswith(_OWN)
    if own and isinstance(error, TypeError) and _WRONG_CALL.search(str(error)):
        # The call itself failed, so that no frame of what was called is here.
        return Fault("pilot-raised", text, "workload", trace)
    if own:
        return Fault("tool-error", text, "unknown", trace)
    return Fault("pilot-raised", text, "unknown", trace)
