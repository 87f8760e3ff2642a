"""What a pilot must not do unseen: use the network, or return twice from a fork."""

from __future__ import annotations

import os
import socket
from typing import Any

_pid = os.getpid()
_event_fd: int | None = None
_LOCAL = ("127.", "::1", "localhost", "0.0.0.0", "::")


class NetworkNeeded(ConnectionError):
    """The pilot wants another machine; a readiness run must work without one."""


def install(allow_network: bool, event_fd: int | None = None) -> None:
    """Remembers this process as the original one and, unless allowed, refuses connections to other
    machines. ``event_fd``: where a forked copy says that it exists."""
    global _pid, _event_fd
    _pid = os.getpid()
    _event_fd = event_fd
    if allow_network:
        return
    # Libraries that know these switches fail at once and say why.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _check(str(address[0]))
        return connect(self, address)

    def guarded_resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host is not None:
            name = host.decode() if isinstance(host, bytes) else str(host)
            _check(name)
        return resolve(host, *args, **kwargs)

    socket.socket.connect = guarded_connect  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = guarded_resolve


def _check(host: str) -> None:
    if not host.startswith(_LOCAL) and host != socket.gethostname():
        raise NetworkNeeded(
            f"the pilot connects to {host!r}; a pilot brings its data along. "
            "`--allow-network` permits it, and the record says so."
        )


def is_original() -> bool:
    """False in a copy that ``os.fork`` made."""
    return os.getpid() == _pid


def end_copies() -> None:
    """Ends a forked copy that came back out of the pilot's code, after telling of it. Without
    this, two processes would write one record."""
    if is_original():
        return
    if _event_fd is not None:
        os.write(_event_fd, b'{"event": "forked"}\n')
    os._exit(0)
