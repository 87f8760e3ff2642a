"""The lowering server: answers, failures, deaths, forks and idling."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from torch_neuronx import config
from torch_neuronx.lowering import client as client_module
from torch_neuronx.lowering.client import LoweringClient
from torch_neuronx.lowering.errors import LoweringError, NoRuleError
from torch_neuronx.lowering.program import (
    Array,
    Constant,
    Node,
    Output,
    Program,
    Read,
    Result,
    View,
    Write,
)

VERSION = "1.9.3"
PACKAGE = str(pathlib.Path(client_module.__file__).parents[1])

# Begins the code of a child process: the package's own __init__ would import torch.
BARE = f"""
import sys, types
package = types.ModuleType("torch_neuronx")
package.__path__ = [{PACKAGE!r}]
sys.modules["torch_neuronx"] = package
"""


def add(n: int = 4, op: str = "aten::add.Tensor", out: int | None = None) -> Program:
    """self + other of n float32 elements each, as PyTorch's result of ``out`` elements."""
    array, view = Array("float32", (n,)), View("float32", (n,), (1,))
    result = array if out is None else Array("float32", (out,))
    return Program(
        params=(array, array),
        nodes=(Node(op, (Read(0, view), Read(1, view), Constant(1)), (result,)),),
        outputs=(Output(Result(0)),),
    )


def add_in_place(n: int = 4) -> Program:
    """self.add_(other)."""
    view = View("float32", (n,), (1,))
    program = add(n)
    return Program(program.params, program.nodes, writes=(Write(0, view, Result(0)),))


@pytest.fixture(scope="module")
def shared() -> Iterator[LoweringClient]:
    client = LoweringClient()
    yield client
    client.close()


@pytest.fixture
def client() -> Iterator[LoweringClient]:
    client = LoweringClient()
    yield client
    client.close()


def test_reply_equals_lowering_in_process(shared: LoweringClient) -> None:
    for program in (add(), add_in_place()):
        remote = shared.lower(program, "cpu", VERSION)
        with config.override({"TORCH_NEURONX_LOWERING": "inprocess"}):
            local = LoweringClient().lower(program, "cpu", VERSION)
        assert remote.module == local.module and len(remote.module) > 100
        assert (remote.kept, remote.results) == (local.kept, local.results)
        assert (remote.checks, remote.rng_increment) == (local.checks, local.rng_increment)
        assert remote.aliases == local.aliases
        assert remote.seconds > 0
    assert remote.aliases == {0: 0}


def test_in_process_lowering_starts_no_server() -> None:
    client = LoweringClient()
    with config.override({"TORCH_NEURONX_LOWERING": "inprocess"}):
        client.lower(add(), "cpu", VERSION)
    assert client.stats.starts == 0 and client.pids() == []


def test_server_imports_jax_and_not_torch(shared: LoweringClient) -> None:
    modules = shared.ping()["modules"]
    assert "jax" in modules
    assert "torch" not in modules


def test_missing_rule_names_the_operator(shared: LoweringClient) -> None:
    with pytest.raises(NoRuleError, match=r"aten::nonsense\.Tensor: no rule"):
        shared.lower(add(op="aten::nonsense.Tensor"), "cpu", VERSION)


def test_rule_that_fails_gives_its_message_and_the_server_goes_on(shared: LoweringClient) -> None:
    shared.lower(add(), "cpu", VERSION)
    starts = shared.stats.starts
    with pytest.raises(LoweringError, match=r"aten::add\.Tensor: .*shape \(4,\).*\(5,\)"):
        shared.lower(add(out=5), "cpu", VERSION)
    assert shared.lower(add(), "cpu", VERSION).module
    assert shared.stats.starts == starts


def test_bad_request_is_an_error_with_the_operators(shared: LoweringClient) -> None:
    with pytest.raises(LoweringError, match=r"aten::add\.Tensor: "):
        shared.lower(add(), "cpu", "not a version")
    assert shared.lower(add(), "cpu", VERSION).module


def test_large_reply_and_many_threads(shared: LoweringClient) -> None:
    replies: dict[int, bytes] = {}

    def work(n: int) -> None:
        replies[n] = shared.lower(add(n), "cpu", VERSION).module

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(replies.values())) == 8
    assert all(replies[n] == shared.lower(add(n), "cpu", VERSION).module for n in replies)
    assert len(shared.pids()) == 1


def test_killed_server_is_restarted_and_leaves_no_zombie(client: LoweringClient) -> None:
    before = client.lower(add(), "cpu", VERSION).module
    (pid,) = client.pids()
    os.kill(pid, signal.SIGKILL)
    assert client.lower(add(), "cpu", VERSION).module == before
    assert client.stats.starts == 2
    assert client.pids() != [pid]
    with pytest.raises(ProcessLookupError):  # reaped: a zombie could still be signalled
        os.kill(pid, 0)


def test_request_that_kills_the_server_twice_is_an_error(
    client: LoweringClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = client_module._Server.call

    def kill_then_call(server: client_module._Server, request: bytes) -> object:
        os.kill(server.process.pid, signal.SIGKILL)
        return call(server, request)

    with monkeypatch.context() as patch:
        patch.setattr(client_module._Server, "call", kill_then_call)
        with pytest.raises(LoweringError, match=r"aten::add\.Tensor: .*ended twice.*status -9"):
            client.lower(add(), "cpu", VERSION)
    assert client.stats.starts == 2 and client.pids() == []
    assert client.lower(add(), "cpu", VERSION).module


def test_interrupt_while_waiting_drops_the_server(
    client: LoweringClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.lower(add(3), "cpu", VERSION)

    def interrupt(fd: int, size: int) -> bytearray:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(client_module, "_read_exactly", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.lower(add(4), "cpu", VERSION)
    # The reply for 4 elements that was under way must not answer this request.
    assert client.lower(add(5), "cpu", VERSION).results == (Array("float32", (5,)),)


def test_server_ends_after_idling_and_comes_back() -> None:
    client = LoweringClient(idle_s=0.05)
    try:
        client.start()
        (server,) = client._idle
        assert server.process.wait(timeout=120) == 0
        assert client.pids() == []
        assert client.lower(add(), "cpu", VERSION).module
        assert client.stats.starts == 2
    finally:
        client.close()


def test_second_server_starts_only_while_the_first_is_busy() -> None:
    client = LoweringClient(servers=2)
    try:
        first = client._take()
        second = client._take()
        assert len(client.pids()) == 2
        client._give_back(first)
        client._give_back(second)
        client.lower(add(), "cpu", VERSION)
        client.lower(add(), "cpu", VERSION)
        assert client.stats.starts == 2
    finally:
        client.close()


def _run(code: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BARE + code],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_forked_child_starts_its_own_server() -> None:
    code = """
import os
from test_server import add, VERSION
from torch_neuronx.lowering import client
parent = client.lower(add(), "cpu", VERSION).module
pids = client.default_client().pids()
child = os.fork()
if child == 0:
    fresh = client.default_client().pids() == []
    same = client.lower(add(), "cpu", VERSION).module == parent
    own = client.default_client().pids() != pids and client.stats().starts == 1
    os._exit(0 if fresh and same and own else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert client.lower(add(), "cpu", VERSION).module == parent
assert client.default_client().pids() == pids and client.stats().starts == 1
import sys
assert "jax" not in sys.modules and "torch" not in sys.modules
"""
    done = _run(code)
    assert done.returncode == 0, done.stderr


def test_server_ends_with_its_owner_even_if_a_forked_child_lives() -> None:
    # The child keeps the pipe `hold` open, so it outlives its parent; the server must not.
    code = """
import os, sys
from test_server import add, VERSION
from torch_neuronx.lowering import client
client.lower(add(), "cpu", VERSION)
(pid,) = client.default_client().pids()
server = os.pidfd_open(pid)
hold, held = os.pipe()
watcher = os.fork()
if watcher == 0:
    import select
    os.close(held)
    readable, _, _ = select.select([server], [], [], 60)
    os.write(1, b"ended" if readable else b"still there")
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    done = _run(code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == "ended"


def test_prints_do_not_corrupt_the_pipe() -> None:
    code = """
import os, struct, sys
from torch_neuronx.lowering import server
real = server.answer
def noisy(frame):
    print("a rule that prints", flush=True)
    os.write(1, b"and a library that writes")
    return real(frame)
server.answer = noisy
server.main(["--idle-s", "60"])
"""
    request = b'{"ping": true}'
    done = subprocess.run(
        [sys.executable, "-c", BARE + code],
        input=len(request).to_bytes(8, "big") + request,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    size = int.from_bytes(done.stdout[:8], "big")
    assert len(done.stdout) == 8 + size
    assert done.stdout[12:].startswith(b'{"ok":true')
    assert b"a rule that prints" in done.stderr and b"library that writes" in done.stderr


def test_clearing_what_jax_remembers_changes_no_answer() -> None:
    code = (
        "from torch_neuronx.lowering import server\n"
        "cleared = []\n"
        "clear = server._clear\n"
        "server._clear = lambda: (cleared.append(1), clear())\n"
        "server._CLEAR_EVERY = 1\n"
        "server.main(['--idle-s', '60'])\n"
        "print(len(cleared))\n"  # to standard error, as every print
    )
    text = {"program": add().to_json(), "platform": "cpu", "version": VERSION}
    request = json.dumps(text).encode()
    frame = len(request).to_bytes(8, "big") + request
    done = subprocess.run(
        [sys.executable, "-c", BARE + code], input=frame * 2, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.split()[-1] == b"2"
    modules, rest = [], done.stdout
    while rest:
        size = int.from_bytes(rest[:8], "big")
        reply, rest = rest[8 : 8 + size], rest[8 + size :]
        modules.append(reply[4 + int.from_bytes(reply[:4], "big") :])
    assert len(modules) == 2 and modules[0] == modules[1] and len(modules[0]) > 100


def test_settings_for_the_users_jax_do_not_reach_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    monkeypatch.setenv("JAX_DEFAULT_DTYPE_BITS", "32")
    client = LoweringClient()
    try:
        assert client.lower(add(), "cpu", VERSION).module
    finally:
        client.close()
