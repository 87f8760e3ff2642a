"""Leases: one owner at a time, and no dead owner blocks anybody for ever."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from compiler_fakes import BARE

from torch_neuronx.compiler import lease as lease_module
from torch_neuronx.compiler.lease import Lease, host_token, kernel_token, process_alive


def never() -> None:
    return None


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "key")


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write(path: str, **owner: object) -> None:
    whole = {"kernel": kernel_token(), "host": host_token(), "pid": os.getpid()}
    pathlib.Path(path).write_text(json.dumps({**whole, "time": time.time(), **owner}))


def no_locks(fd: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "no locks")


def test_owner_writes_its_name_and_leaves_nothing(path: str) -> None:
    lease = Lease(path)
    assert lease.acquire(never) is None
    assert lease.held
    owner = json.loads(pathlib.Path(path).read_text())
    assert (owner["pid"], owner["host"]) == (os.getpid(), host_token())
    assert not Lease(path)._try()
    lease.release()
    lease.release()
    assert not lease.held and not os.path.exists(path)
    second = Lease(path)
    assert second._try()
    second.release()


def test_waiter_returns_the_entry_once_it_is_there(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Lease(path)
    owner.acquire(never)
    polls: list[float] = []
    monkeypatch.setattr(lease_module.time, "sleep", polls.append)
    waiter = Lease(path)
    assert waiter.acquire(lambda: "entry" if len(polls) == 20 else None) == "entry"
    assert not waiter.held
    assert polls == sorted(polls) and max(polls) <= 0.1
    owner.release()


def test_entry_is_looked_for_again_after_the_grant(path: str) -> None:
    lease = Lease(path)
    assert lease.acquire(lambda: "stored just before") == "stored just before"
    assert not lease.held and not os.path.exists(path)


def test_look_that_raises_releases(path: str) -> None:
    lease = Lease(path)
    with pytest.raises(ZeroDivisionError):
        lease.acquire(lambda: 1 // 0)
    assert not lease.held and not os.path.exists(path)


def test_waiter_becomes_owner_after_release(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Lease(path)
    owner.acquire(never)
    monkeypatch.setattr(lease_module.time, "sleep", lambda s: owner.release())
    waiter = Lease(path)
    assert waiter.acquire(never) is None
    assert waiter.held
    waiter.release()


def test_unlocked_lease_of_this_kernel_is_abandoned(path: str) -> None:
    write(path, pid=1, host="another container")
    lease = Lease(path)
    assert lease._try()
    assert json.loads(pathlib.Path(path).read_text())["pid"] == os.getpid()
    lease.release()


def test_lease_of_another_machine_is_respected_for_a_while(path: str) -> None:
    write(path, kernel="other", host="other")
    assert not Lease(path, foreign_timeout_s=60)._try()
    write(path, kernel="other", host="other", time=time.time() - 61)
    lease = Lease(path, foreign_timeout_s=60)
    assert lease._try()
    lease.release()


def test_broken_content_does_not_block(path: str) -> None:
    for text in ("", "{", "[]", '{"pid": "x"}'):
        pathlib.Path(path).write_text(text)
        lease = Lease(path)
        assert lease._try()
        lease.release()


def test_dead_owner_whose_lock_a_forked_child_keeps(path: str) -> None:
    held = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)  # as the child would
    write(path, pid=dead_pid())
    lease = Lease(path)
    assert not lease._try()  # the name is removed ...
    assert lease._try()  # ... and the next attempt makes a new one
    lease.release()
    os.close(held)


def test_hanging_owner_is_taken_over_after_the_timeout(path: str) -> None:
    hanging = Lease(path)
    hanging.acquire(never)
    write(path, time=time.time() - 601)
    lease = Lease(path, timeout_s=600)
    assert lease.acquire(never) is None
    hanging.release()  # must not remove the new owner's file
    assert os.path.exists(path)
    assert not Lease(path)._try()
    lease.release()
    assert not os.path.exists(path)


def test_without_kernel_locks_the_content_decides(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_locks)
    first = Lease(path)
    assert first._try()
    assert not Lease(path)._try()
    first.release()
    assert not os.path.exists(path)

    write(path, pid=dead_pid())
    second = Lease(path)
    assert second.acquire(never) is None
    second.release()

    write(path, kernel="other", host="other", time=time.time() - 61)
    third = Lease(path, foreign_timeout_s=60)
    assert third.acquire(never) is None
    third.release()


def test_place_that_cannot_be_locked_grants(tmp_path: pathlib.Path) -> None:
    for path in (None, str(tmp_path / "missing" / "key")):
        lease = Lease(path)
        assert lease.acquire(never) is None
        assert lease.held
        lease.release()


def test_process_alive_knows_the_living_the_dead_and_zombies() -> None:
    assert process_alive(os.getpid())
    assert not process_alive(dead_pid())
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
    assert not process_alive(child)
    os.waitpid(child, 0)


def test_killed_owner_in_another_process(path: str) -> None:
    code = (
        "import sys\n"
        "from torch_neuronx.compiler.lease import Lease\n"
        "lease = Lease(sys.argv[1])\n"
        "lease.acquire(lambda: None)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", BARE + code, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None and owner.stdin is not None
    assert owner.stdout.readline() == b"held\n"
    lease = Lease(path)
    assert not lease._try()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    owner.stdin.close()
    assert lease._try()
    lease.release()
