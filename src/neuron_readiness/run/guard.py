"""What a pilot must not do unseen: use the network, or fork."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

_pid = os.getpid()
_event_fd: int | None = None
_forked = ""  # file:line of a fork that ``forked`` has not handed out
_told: set[str] = set()  # all of them
_watching = False
_allowed = True  # to use the network
_audited = False  # an audit hook stays for the life of the process
_refused: list[str] = []  # hosts
_LOCAL = ("127.", "::1", "localhost", "0.0.0.0", "::")


class NetworkNeeded(ConnectionError):
    """The pilot wants another machine; a readiness run must work without one."""


def install(allow_network: bool, event_fd: int | None = None) -> None:
    """Remembers this process as the original one and, unless allowed, refuses connections to other
    machines. ``event_fd``: where a fork is told, as it happens."""
    global _pid, _event_fd, _watching, _allowed, _audited
    _pid = os.getpid()
    _event_fd = event_fd
    if hasattr(os, "register_at_fork") and not _watching:
        os.register_at_fork(before=_about_to_fork)
        _watching = True
    _allowed = allow_network
    if allow_network:
        return
    # Libraries that know these switches fail at once and say why.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    if not _audited:
        sys.addaudithook(_audit)
        _audited = True


# What Python's own socket functions announce, and the argument that names the other side: a host,
# or an address whose first part is one. Clients in native code announce nothing.
_HOST_OF = {
    "socket.connect": 1,
    "socket.sendto": 1,
    "socket.sendmsg": 1,
    "socket.getaddrinfo": 0,
    "socket.gethostbyname": 0,
    "socket.gethostbyaddr": 0,
    "socket.getnameinfo": 0,
}


def _audit(event: str, args: tuple[Any, ...]) -> None:
    position = _HOST_OF.get(event)
    if position is None or _allowed:
        return
    if position and args[0].family not in (socket.AF_INET, socket.AF_INET6):
        return
    host = args[position]
    host = host[0] if isinstance(host, tuple) and host else host
    if host is not None:  # a socket that is connected, or this machine
        _check(host.decode() if isinstance(host, bytes) else str(host))


def _check(host: str) -> None:
    if not host or host.startswith(_LOCAL) or host == socket.gethostname():
        return
    if host not in _refused:
        _refused.append(host)
    raise NetworkNeeded(
        f"the pilot connects to {host!r}; a pilot brings its data along. "
        "`--allow-network` permits it, and the record says so."
    )


def refused() -> list[str]:
    """Other machines that were asked for, in vain, since the last call."""
    hosts = list(_refused)
    _refused.clear()
    return hosts


def _about_to_fork() -> None:
    """Notes a fork of the original process, each line once. The standard library's own (a
    DataLoader's workers, a process pool, a terminal) start a program or a worker that never comes
    back here; ``subprocess`` does not call this at all."""
    global _forked
    frame = sys._getframe(1)
    if not is_original():
        return
    if frame.f_globals.get("__name__", "").partition(".")[0] in sys.stdlib_module_names:
        return
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if where not in _told:
        _told.add(where)
        _forked = _forked or where
        _tell(where)


def _tell(where: str) -> None:
    if _event_fd is not None:
        os.write(_event_fd, (json.dumps({"event": "forked", "where": where}) + "\n").encode())


def forked() -> str:
    """``file:line`` of the first new fork since the last call, or nothing."""
    global _forked
    where, _forked = _forked, ""
    return where


def is_original() -> bool:
    """False in a copy that ``os.fork`` made."""
    return os.getpid() == _pid


def end_copies() -> None:
    """Ends a forked copy that came back out of the pilot's code; one that Python's own ``fork`` did
    not make is told of. Without this, two processes would write one record."""
    if is_original():
        return
    if not _told:
        _tell("in native code")
    os._exit(0)
