"""Leases: of all processes that miss one key, one makes the entry and the others wait for it.

A lease is a lock file with its owner's name in it. The kernel's lock on the file decides where it
works; the content (host, process, time) decides where it does not: on network file systems without
locks, when a forked child keeps a dead owner's lock, or when an owner hangs. So a lease can be
taken over, and in rare races two processes make the same entry. That costs time and nothing else,
since entries are stored atomically.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_FIRST_POLL_S = 0.002
_LAST_POLL_S = 0.1
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@functools.cache
def kernel_token() -> str:
    """Names the running kernel, within which file locks always reach (containers share it)."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            text = file.read().strip()
    except OSError:
        text = os.uname().nodename
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def host_token() -> str:
    """Names the set of processes that share process ids: a kernel and a namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = os.uname().nodename
    return hashlib.sha256(f"{kernel_token()}|{namespace}".encode()).hexdigest()[:16]


def process_alive(pid: int) -> bool:
    """Whether a process of that id runs in this namespace; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return True


class Lease:
    """The lease at ``path``; None means that there is nothing to share and it is always granted.

    ``timeout_s`` is the age at which a lease is taken over although its owner may live, and
    ``foreign_timeout_s`` that for an owner on another machine whose lock cannot be seen here.
    """

    def __init__(
        self, path: str | None, *, timeout_s: float = 600.0, foreign_timeout_s: float = 60.0
    ) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.foreign_timeout_s = foreign_timeout_s
        self.held = False
        self._fd: int | None = None

    def acquire(self, ready: Callable[[], T | None]) -> T | None:
        """Wait until this process owns the lease (None), or until ``ready()`` gives a value.

        ``ready`` looks for the entry. It is asked once more after the lease is granted, because
        the former owner may have stored the entry just before.
        """
        poll_s = _FIRST_POLL_S
        while not self._try():
            value = ready()
            if value is not None:
                return value
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _LAST_POLL_S)
        try:
            value = ready()
        except BaseException:
            self.release()
            raise
        if value is not None:
            self.release()
        return value

    def release(self) -> None:
        """Give the lease up; does nothing unless it is held."""
        fd, self._fd = self._fd, None
        self.held = False
        if fd is None:
            return
        with contextlib.suppress(OSError):
            assert self.path is not None
            if os.fstat(fd).st_ino == os.lstat(self.path).st_ino:  # not taken over meanwhile
                os.unlink(self.path)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # also for the copy that a forked child may hold
        os.close(fd)

    def _try(self) -> bool:
        """One attempt. An OSError other than "locked" grants the lease: work beats order."""
        if self.path is None:
            self.held = True
            return True
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            self.held = True
            return True
        keep = False
        try:
            keep = self._claim(fd)
        except OSError:
            self.held = True
            return True
        finally:
            if not keep:
                os.close(fd)
        return keep

    def _claim(self, fd: int) -> bool:
        locks = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self._stuck(fd):
                self._remove(fd)
            return False  # after a removal the next attempt makes a new file
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            locks = False
        if not self._is_current(fd):
            return False  # removed by its owner between our open and our lock
        owner = _owner(fd)
        if owner is not None and not self._abandoned(owner, locks):
            return False
        if owner is not None and not locks:
            self._remove(fd)  # without locks, the name alone tells who is first
            return False
        me = {
            "kernel": kernel_token(),
            "host": host_token(),
            "pid": os.getpid(),
            "time": time.time(),
        }
        if os.fstat(fd).st_size:
            os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(me).encode(), 0)
        self._fd = fd
        self.held = True
        return True

    def _stuck(self, fd: int) -> bool:
        """The file is locked: is its owner dead (a forked child has the lock) or hanging?"""
        owner = _owner(fd)
        if owner is None:  # about to write its name, or long dead
            return time.time() - os.fstat(fd).st_mtime > self.timeout_s
        if owner["host"] == host_token() and not process_alive(owner["pid"]):
            return True
        return bool(time.time() - owner["time"] > self.timeout_s)

    def _abandoned(self, owner: dict[str, Any], locks: bool) -> bool:
        """The file is not locked, as far as we can see, but has an owner's name in it."""
        if locks and owner["kernel"] == kernel_token():
            return True  # its lock would have reached us
        if owner["host"] == host_token() and not process_alive(owner["pid"]):
            return True
        same_kernel = owner["kernel"] == kernel_token()
        limit_s = self.timeout_s if same_kernel else self.foreign_timeout_s
        return bool(time.time() - owner["time"] > limit_s)

    def _is_current(self, fd: int) -> bool:
        assert self.path is not None
        try:
            return os.fstat(fd).st_ino == os.lstat(self.path).st_ino
        except FileNotFoundError:
            return False

    def _remove(self, fd: int) -> None:
        if self._is_current(fd):
            with contextlib.suppress(FileNotFoundError):
                assert self.path is not None
                os.unlink(self.path)


def _owner(fd: int) -> dict[str, Any] | None:
    """Kernel, host, process and time in a lease file; None if nothing complete is in it."""
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
        return {
            "kernel": str(owner["kernel"]),
            "host": str(owner["host"]),
            "pid": int(owner["pid"]),
            "time": float(owner["time"]),
        }
    except (ValueError, KeyError, TypeError):
        return None
