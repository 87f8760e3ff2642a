"""The compiler: levels, single flight among threads and processes, waiting, forking."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from compiler_fakes import BARE, FakeBackend, FakeLower, program

from torch_neuronx import config
from torch_neuronx.compiler import artifacts
from torch_neuronx.compiler import compile as compile_module
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.compile import Compiled, Compiler
from torch_neuronx.lowering.errors import LoweringError
from torch_neuronx.lowering.program import Array

HERE = str(pathlib.Path(__file__).parent)


def compiler(
    root: pathlib.Path | None, backend: FakeBackend | None = None, **options: Any
) -> Compiler:
    options = {"lower": FakeLower(), "workers": 4, **options}
    fingerprint = options.pop("fingerprint", "f")
    return Compiler(
        backend or FakeBackend(),
        fingerprint,
        None if root is None else DiskCache(root),
        module_fingerprint="m",
        **options,
    )


def not_called() -> Any:
    raise AssertionError("the program was asked for")


def without_times(compiled: Compiled) -> tuple[Any, dict[str, Any]]:
    return compiled.handle, compiled.meta


def test_cold_then_warm(root: pathlib.Path) -> None:
    cold = compiler(root)
    first = cold.compile_program(b"key", program, {"layout": [1, 2], "name": "mine"})
    cold.drain()
    assert first.source == "compiled"
    assert first.lower_s == 0.25 and first.compile_s > 0 and first.load_s == 0
    assert first.meta == {
        "kept": (0, 1),
        "results": (Array("float32", (4,)), Array("int64", (2,))),
        "checks": (("IndexError", "index {value} is out of range"),),
        "rng_increment": 4,
        "aliases": {1: 0},
        "bytes_accessed": 0,
        "handlers": (),
        "layout": [1, 2],
        "name": "mine",
    }
    warm = compiler(root)
    second = warm.compile_program(b"key", not_called, {})
    assert second.source == "l1"
    assert without_times(second) == without_times(first)
    assert (second.lower_s, second.compile_s) == (0, 0) and second.load_s > 0
    assert warm.backend.calls == ["deserialize"]  # type: ignore[attr-defined]
    assert (warm.stats.l1, warm.stats.l2, warm.stats.compiled) == (1, 0, 0)
    assert warm._pool is None  # answered in the caller's thread


def test_extra_meta_has_one_form_and_the_given_value_wins(root: pathlib.Path) -> None:
    c = compiler(root)
    assert c.compile_program(b"key", program, {"a": (1, 2)}).meta["a"] == [1, 2]
    c.drain()
    assert c.compile_program(b"key", not_called, {"a": (3,)}).meta["a"] == [3]
    assert c.compile_program(b"key", not_called).meta["a"] == [1, 2]


def test_new_sources_find_the_executable_by_its_module(root: pathlib.Path) -> None:
    first = compiler(root)
    before = first.compile_program(b"key", program)
    first.drain()
    second = compiler(root, fingerprint="sources were edited")
    again = second.compile_program(b"key", program)
    second.drain()
    assert again.source == "l2"
    assert without_times(again) == without_times(before)
    assert second.lower.count == 1  # type: ignore[attr-defined]
    assert second.compile_program(b"key", not_called).source == "l1"


def test_payload_is_stored_once(root: pathlib.Path) -> None:
    c = compiler(root)
    c.compile_program(b"one", program)
    c.compile_program(b"two", program)
    c.drain()
    assert c.cache is not None
    assert len(c.cache.list("op")) == 2 and len(c.cache.list("hlo")) == 1
    assert (c.stats.compiled, c.stats.l2) == (1, 1)


def test_everything_that_is_in_the_key(root: pathlib.Path) -> None:
    c = compiler(root)
    for key, n in ((b"a", 1), (b"b", 2)):
        assert c.compile_program(key, lambda n=n: program(n)).source == "compiled"
    other = c.compile_program(b"a", lambda: program(1), compile_options=b"other")
    assert other.source == "compiled"
    c.drain()
    assert c.compile_program(b"a", not_called, compile_options=b"other").source == "l1"


def test_pointer_without_executable_is_a_miss(root: pathlib.Path) -> None:
    c = compiler(root)
    c.compile_program(b"key", program)
    c.drain()
    assert c.cache is not None
    (item,) = c.cache.list("hlo")
    os.unlink(item.path)
    assert c.compile_program(b"key", program).source == "compiled"
    c.drain()
    assert c.compile_program(b"key", not_called).source == "l1"


def test_executable_that_the_plugin_does_not_load_is_made_again(root: pathlib.Path) -> None:
    c = compiler(root)
    c.compile_program(b"key", program)
    c.drain()
    assert c.cache is not None
    (item,) = c.cache.list("hlo")
    c.cache.put(item.key, {}, b"nonsense", "hlo")
    with pytest.warns(RuntimeWarning, match="the plugin does not load it: INVALID_ARGUMENT"):
        assert c.compile_program(b"key", program).source == "compiled"
    c.drain()
    assert c.cache.stats.corrupt == 1
    assert c.compile_program(b"key", not_called).source == "l1"


def test_corrupt_entry_is_compiled_again(root: pathlib.Path) -> None:
    c = compiler(root)
    c.compile_program(b"key", program)
    c.drain()
    assert c.cache is not None
    for item in c.cache.list():
        data = bytearray(pathlib.Path(item.path).read_bytes())
        data[-1] ^= 1
        pathlib.Path(item.path).write_bytes(data)
    with pytest.warns(RuntimeWarning, match="corrupt"):
        assert c.compile_program(b"key", program).source == "compiled"
    assert c.cache.stats.corrupt == 2


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"name": "x", "module": "0" * 64},
        {"name": "x", "module": "0" * 64, "program": [1]},
        {"name": "x", "module": "0" * 64, "program": {"kept": [0]}},
        {"name": "x", "module": "0" * 64, "program": {}, "requires": 3},
    ],
)
def test_whole_entry_that_describes_something_else_is_made_again(
    root: pathlib.Path, meta: dict[str, Any]
) -> None:
    first = compiler(root)
    first.compile_program(b"key", program)
    first.drain()
    assert first.cache is not None
    (stored,) = first.cache.list("op")
    assert first.cache.put(stored.key, meta, b"", "op")
    with pytest.warns(RuntimeWarning, match="it does not describe an executable"):
        second = compiler(root)
        assert second.compile_program(b"key", program).source == "l2"
        second.drain()
    assert compiler(root).compile_program(b"key", not_called).source == "l1"


def test_plugin_that_cannot_serialize_still_saves_the_lowering(root: pathlib.Path) -> None:
    first = compiler(root, FakeBackend(serializes=False))
    before = first.compile_program(b"key", program, compile_options=b"options")
    first.drain()
    second = compiler(root, FakeBackend(serializes=False))
    after = second.compile_program(b"key", not_called, compile_options=b"options")
    assert after.source == "compiled" and after.lower_s == 0
    assert without_times(after) == without_times(before)
    assert second.lower.count == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("off", ["none", "option", "refused"])
def test_without_a_disk(root: pathlib.Path, off: str) -> None:
    if off == "refused":
        root.mkdir()
        root.chmod(0o777)
        with pytest.warns(RuntimeWarning):
            c = compiler(root)
    elif off == "option":
        with config.override({"TORCH_NEURONX_DISABLE_NEFF_CACHE": "1"}):
            c = compiler(root)
    else:
        c = compiler(None)
    for _ in range(2):
        assert c.compile_program(b"key", program).source == "compiled"
        c.drain()
    assert not root.exists() or [n for _, _, names in os.walk(root) for n in names] == []


def test_failed_lowering_reaches_everybody_and_is_not_kept(root: pathlib.Path) -> None:
    def fails(*args: Any) -> Any:
        raise LoweringError("aten::add.Tensor: no rule")

    c = compiler(root, lower=fails)
    for _ in range(2):
        with pytest.raises(LoweringError, match="no rule"):
            c.compile_program(b"key", program)
    with pytest.raises(LoweringError, match="no rule"):
        c.wait(c.submit(b"key", program))
    assert c.stats.failed == 3 and c.pending() == []
    c.lower = FakeLower()
    assert c.compile_program(b"key", program).source == "compiled"


def test_failed_compilation_and_failed_program(root: pathlib.Path) -> None:
    def fails() -> None:
        raise TimeoutError("the plugin gave up")

    c = compiler(root, FakeBackend(before=fails))
    with pytest.raises(TimeoutError, match="gave up"):
        c.compile_program(b"key", program)
    with pytest.raises(ZeroDivisionError):
        c.compile_program(b"other", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert c.stats.failed == 2
    assert os.listdir(root / "lock") == []


@pytest.mark.parametrize("disk", [True, False])
def test_threads_that_miss_one_key_compile_it_once(root: pathlib.Path, disk: bool) -> None:
    begun, go = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        assert go.wait(60)

    c = compiler(root if disk else None, FakeBackend(before=before))
    results: list[Compiled] = []
    threads = [
        threading.Thread(target=lambda: results.append(c.compile_program(b"key", program)))
        for _ in range(5)
    ]
    threads[0].start()
    assert begun.wait(60)
    joined = threading.Event()
    enter = c._enter

    def counted(*arguments: str) -> Any:
        answer = enter(*arguments)
        if c.stats.joined == 5:
            joined.set()
        return answer

    c._enter = counted  # type: ignore[method-assign]
    for t in threads[1:]:
        t.start()
    future = c.submit(b"key", not_called)
    assert joined.wait(60)
    go.set()
    for t in threads:
        t.join()
    results.append(future.result(60))
    assert c.backend.calls == ["compile"]  # type: ignore[attr-defined]
    assert len(results) == 6 and all(r is results[0] for r in results)


def test_keys_that_lower_to_one_module_compile_it_once() -> None:
    begun, go = threading.Event(), threading.Event()

    def before() -> None:
        begun.set()
        assert go.wait(60)

    class Watched(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            found = super().get(key, default)
            if found is not None:
                go.set()  # the second has found the first under way
            return found

    c = compiler(None, FakeBackend(before=before))
    c._module_flights = Watched()
    first = c.submit(b"one", program)
    assert begun.wait(60)
    second = c.submit(b"two", program)
    assert first.result(60).handle is second.result(60).handle
    assert (first.result().source, second.result().source) == ("compiled", "l2")
    assert c.backend.calls == ["compile"]  # type: ignore[attr-defined]


def test_programs_that_do_not_depend_on_each_other_are_compiled_at_the_same_time() -> None:
    together = threading.Barrier(3)
    c = compiler(None, FakeBackend(before=lambda: together.wait(60)), workers=3)
    futures = [c.submit(str(n).encode(), lambda n=n: program(n)) for n in range(3)]
    assert {f.result(60).source for f in futures} == {"compiled"}  # else the barrier breaks


def test_many_keys_at_once(root: pathlib.Path) -> None:
    c = compiler(root)
    futures = [c.submit(str(n).encode(), lambda n=n: program(n)) for n in range(40)]
    handles = {c.wait(f).handle for f in futures}
    c.drain()
    assert len(handles) == 40 and c.stats.compiled == 40
    assert os.listdir(root / "lock") == []
    again = compiler(root)
    for n in range(40):
        assert again.compile_program(str(n).encode(), not_called).source == "l1"


def test_events_tell_what_was_made(root: pathlib.Path) -> None:
    c = compiler(root)
    c.compile_program(b"key", program)
    c.drain()
    c.compile_program(b"key", not_called)
    made, loaded = c.events()
    assert (made.name, made.source, made.lower_s) == ("aten::add.Tensor", "compiled", 0.25)
    assert (loaded.name, loaded.source, loaded.lower_s) == ("aten::add.Tensor", "l1", 0)
    assert made.size_bytes == loaded.size_bytes > 0
    assert made.time_s <= loaded.time_s


def test_events_are_bounded() -> None:
    c = compiler(None)
    for i in range(compile_module._MAX_EVENTS + 10):
        c._record(str(i), Compiled(None, {}, "l1", 0, 0, 0), 0)
    assert len(c.events()) == compile_module._MAX_EVENTS
    assert c.events()[0].name == "10" and c.events()[0].number == 10
    last = c.events()[-1].number
    assert c.events(last) == [] and [e.number for e in c.events(last - 2)] == [last - 1, last]
    assert c.stats.l1 == compile_module._MAX_EVENTS + 10


def blocked(capsys: pytest.CaptureFixture[str], level: str, monkeypatch: Any) -> str:
    """What is printed while somebody waits for three compilations that do not end."""
    go = threading.Event()
    begun = threading.Semaphore(0)

    def before() -> None:
        begun.release()
        assert go.wait(60)

    c = compiler(None, FakeBackend(before=before), progress_after_s=0.0)
    ops = ["aten::mm", "aten::mul.Tensor", "aten::sub.Tensor"]
    futures = [c.submit(op.encode(), lambda op=op: program(4, op), name=op) for op in ops]
    for _ in ops:
        begun.acquire(timeout=60)
    # The line is printed before the wait that this lets through.
    say = compile_module.progress.say

    def say_and_go(line: str, **options: Any) -> None:
        say(line, **options)
        go.set()

    monkeypatch.setattr(compile_module.progress, "say", say_and_go)
    with config.override({"TORCH_NEURONX_LOG_LEVEL": level}):
        for f in futures[:1]:
            c.wait(f)
    c.drain()
    return capsys.readouterr().err


def test_progress_line_for_who_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "torchneuron: compiling aten::mm and 2 more (0 s) ...\n"
    assert blocked(capsys, "1", monkeypatch) == line


def test_no_progress_line_where_nobody_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert blocked(capsys, "0", monkeypatch) == ""


def test_progress_line_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "compiling aten::mm and 2 more" in blocked(capsys, "0", monkeypatch)


def test_artefacts_are_kept_on_request(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    debug = tmp_path / "debug"
    c = compiler(root)
    with config.override(
        {
            "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS": "1",
            "TORCH_NEURONX_DEBUG_DIR": str(debug),
        }
    ):
        c.compile_program(b"key", program)
        c.drain()
    text = program().to_json()
    (raw,) = (debug / "raw" / "proc_0").glob("aten_*.program.json")
    (module,) = (debug / "stablehlo" / "proc_0").glob("aten_*.stablehlo.mlirbc")
    (options,) = (debug / "neff" / "proc_0").glob("aten_*.options.pb")
    assert raw.read_text() == text
    assert module.read_bytes() == text.encode()
    assert b"xla_allow_excess_precision" in options.read_bytes()


def test_artefacts_are_kept_of_what_the_cache_has(
    root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    first = compiler(root)
    first.compile_program(b"key", program)
    first.drain()
    c = compiler(root)
    kept = {
        "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS": "1",
        "TORCH_NEURONX_DEBUG_DIR": str(tmp_path),
    }
    with config.override(kept):
        assert c.lookup(b"key") is None  # to be lowered, for its module to be seen
        made = c.compile_program(b"key", program)
        c.drain()
        again = c.lookup(b"key")
    assert made.source == "l2" and again is not None and again.source == "l1"
    (raw,) = (tmp_path / "raw" / "proc_0").iterdir()
    (module,) = (tmp_path / "stablehlo" / "proc_0").iterdir()
    (executable,) = (tmp_path / "neff" / "proc_0").glob("aten_*.pjrt")
    assert raw.read_text() == module.read_text() == program().to_json()
    assert FakeBackend().deserialize(executable.read_bytes()) is not None


def test_artefacts_that_cannot_be_kept_are_said_once(
    root: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(artifacts, "_failed", threading.Event())
    (tmp_path / "file").touch()
    kept = {
        "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS": "1",
        "TORCH_NEURONX_DEBUG_DIR": str(tmp_path / "file"),
    }
    c = compiler(root)
    with config.override(kept):
        made = [c.compile_program(key, program).source for key in (b"one", b"two")]
    assert made == ["compiled", "l2"]
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "were not kept (TORCH_NEURONX_DEBUG_DIR)" in said


def test_real_lowering_and_its_errors(root: pathlib.Path) -> None:
    from torch_neuronx.lowering.client import LoweringClient

    lowering = LoweringClient()
    try:
        c = compiler(root, lower=lowering.lower)
        made = c.compile_program(b"key", program)
        assert made.meta["results"] == (Array("float32", (4,)),)
        with pytest.raises(LoweringError, match="aten::nonsense: no rule"):
            c.compile_program(b"other", lambda: program(op="aten::nonsense"))
        assert lowering.stats.starts == 1
    finally:
        lowering.close()


PROCESS = """
import os, sys
from compiler_fakes import FakeBackend, FakeLower, program
from torch_neuronx.compiler import lease
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.compile import Compiler

def tell(word):
    os.write(1, word.encode() + b"\\n")

def compiling():
    tell("compiling")
    sys.stdin.readline()

sleep = lease.time.sleep
told = []
def waiting(seconds):
    if not told:
        told.append(1)
        tell("waiting")
    sleep(seconds)
lease.time.sleep = waiting
c = Compiler(FakeBackend(before=compiling), "f", DiskCache(sys.argv[1]), lower=FakeLower())
made = c.compile_program(b"key", program)
c.drain()
tell(made.source)
"""


def start(root: pathlib.Path, code: str = PROCESS) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BARE + code, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": HERE},
    )


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_miss_one_key_compile_it_once(root: pathlib.Path) -> None:
    with start(root) as first:
        assert read(first) == "compiling"
        with start(root) as second:
            assert read(second) == "waiting"
            go_on(first)
            assert read(first) == "compiled"
            assert read(second) == "l1"
    assert os.listdir(root / "lock") == []


def test_waiter_takes_over_from_a_killed_process(root: pathlib.Path) -> None:
    with start(root) as first:
        assert read(first) == "compiling"
        with start(root) as second:
            assert read(second) == "waiting"
            first.kill()
            assert read(second) == "compiling"
            go_on(second)
            assert read(second) == "compiled"
    assert os.listdir(root / "lock") == []


WARM = """
import sys
from compiler_fakes import FakeBackend, program
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.compile import Compiler
from torch_neuronx.lowering import client
c = Compiler(FakeBackend(), "f", DiskCache(sys.argv[1]))
print(c.compile_program(b"key", program).source, c.backend.calls, client.stats().starts)
heavy = {"jax", "jaxlib", "torch", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_second_process_needs_no_lowering_server(root: pathlib.Path) -> None:
    for expected in ("compiled ['compile'] 1", "l1 ['deserialize'] 0"):
        with start(root, WARM) as process:
            assert read(process) == expected
        assert process.returncode == 0


FORK = """
import os, sys, threading
from compiler_fakes import FakeBackend, FakeLower, program
from torch_neuronx.compiler.cache import DiskCache
from torch_neuronx.compiler.compile import Compiler
go, begun = threading.Event(), threading.Event()
parent = os.getpid()
def before():
    if os.getpid() == parent:
        begun.set()
        go.wait()
c = Compiler(FakeBackend(before=before), "f", DiskCache(sys.argv[1]), lower=FakeLower(), workers=1)
under_way = c.submit(b"key", program)
begun.wait()
child = os.fork()
if child == 0:
    # The only worker, and the flight of this key, are in the parent.
    made = c.compile_program(b"other", lambda: program(5))
    c.drain()
    os._exit(0 if made.source == "compiled" and c.pending() == [] else 3)
_, status = os.waitpid(child, 0)
go.set()
print(os.waitstatus_to_exitcode(status), under_way.result().source)
"""


def test_forked_child_has_its_own_workers(root: pathlib.Path) -> None:
    with start(root, FORK) as process:
        assert read(process) == "0 compiled"
    assert process.returncode == 0


EXIT = """
import sys, threading
from compiler_fakes import FakeBackend, FakeLower, program
from torch_neuronx.compiler.compile import Compiler
begun = threading.Event()
c = Compiler(
    FakeBackend(before=begun.set), "f", None, lower=FakeLower(), workers=1
)
running = c.submit(b"running", program)
begun.wait()
hold = threading.Event()
c.backend.before = hold.wait
stuck = c.submit(b"stuck", lambda: program(5))
queued = c.submit(b"queued", lambda: program(6))
def waits():
    try:
        queued.result()
    except RuntimeError as error:
        print(error, flush=True)
    hold.set()
threading.Thread(target=waits).start()
"""


def test_exit_drops_what_has_not_begun(root: pathlib.Path) -> None:
    with start(root, EXIT) as process:
        assert "not compiled, because the program is ending" in read(process)
    assert process.returncode == 0


def test_compiled_is_immutable() -> None:
    made = compiler(None).compile_program(b"key", program)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.source = "l2"  # type: ignore[misc]
    assert isinstance(compiler(None).submit(b"key", program), Future)
