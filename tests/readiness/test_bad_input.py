"""Pilots and surroundings that go wrong: the record keeps what was learnt, with a code of its own.

They run on the CPU, without the device: what is tested is the tool.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from neuron_readiness import exits
from neuron_readiness.cli import main
from neuron_readiness.context import Context, Options
from neuron_readiness.run import faults, pilot_run, store
from neuron_readiness.run.child import ChildFailed
from neuron_readiness.run.supervisor import Limits, Outcome, end_of, limit_of
from readiness.support import PLAIN, run_text

ON_CPU = ("--device", "cpu", "--only", "correctness")
NO_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

BAD: dict[str, tuple[str, str]] = {
    # kind of fault: (what the pilot does, what the record says of it)
    "pilot-raised": (
        "def forward(model, x):\n    raise OSError('no such corpus')",
        "no such corpus",
    ),
    "nan": ("def forward(model, x):\n    return model(x) / 0 * 0", "on the reference too"),
    "forked": (
        "def inputs(split):\n    os.fork()\n    return [torch.ones(1, 4)]",
        "the pilot forked in stage pilot",
    ),
    "needs-network": (
        "def forward(model, x):\n    socket.create_connection(('example.org', 80))",
        "example.org",
    ),
    "nondeterministic": (
        "calls = []\ndef forward(model, x):\n    calls.append(x)\n    return model(x) + len(calls)",
        "two seeded runs on the reference differ",
    ),
    "crashed": ("def forward(model, x):\n    os.abort()", "SIGABRT"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_pilot_ends_with_its_own_code(kind: str, tmp_path: Path) -> None:
    part, said = BAD[kind]
    code, record = run_text(tmp_path, PLAIN + part + "\n", *ON_CPU, **NO_DEVICE)
    assert code == exits.FAULTS[kind] == record["exit_code"]
    assert [f["kind"] for f in record["faults"]] == [kind]
    assert said in json.dumps(record["faults"])
    assert record["faults"][0]["side"] in ("workload", "unknown")
    assert record["decision"]["verdict"] == "continue"
    ran = kind in ("nan", "nondeterministic", "forked")
    assert ("did not run" in record["decision"]["title"]) is not ran
    assert record["items"]["environment"]["status"] == "done"  # kept
    assert record["items"]["execution"]["status"] == "open"  # and what is open says so
    assert (tmp_path / "record" / "report.html").exists()


NETWORK = {
    "connect_ex": "socket.socket().connect_ex(('10.1.2.3', 80))",
    "gethostbyname": "socket.gethostbyname('example.org')",
    "getaddrinfo": "early('example.org', 80)",
    "datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('10.1.2.3', 53))",
    "message": "socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('10.1.2.3', 53))",
    "urllib": "__import__('urllib.request').request.urlopen('http://10.1.2.3/x')",
}


@pytest.mark.parametrize("call", NETWORK)
def test_no_way_to_another_machine_is_left_open(call: str) -> None:
    code = f"""
import os, socket
early = socket.getaddrinfo  # bound before the guard comes
from neuron_readiness.run import guard
guard.install(False)
try:
    {NETWORK[call]}
except OSError as error:
    assert "a pilot brings its data along" in str(error), error
else:
    raise SystemExit("not refused")
assert guard.refused() in (["10.1.2.3"], ["example.org"]) and guard.refused() == []
with socket.create_server(("127.0.0.1", 0)) as server:  # this machine itself is none
    socket.create_connection(server.getsockname()).close()
    socket.gethostbyname("localhost"), socket.getaddrinfo(None, 80)
ours, theirs = socket.socketpair()
ours.sendmsg([b"x"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_pilot_that_goes_on_without_the_network_is_told(tmp_path: Path) -> None:
    part = """
def preprocess(x):
    try:
        socket.create_connection(("10.1.2.3", 80))
    except OSError:
        pass
    return (x,), {}
"""
    code, record = run_text(tmp_path, PLAIN + part, *ON_CPU, **NO_DEVICE)
    assert code == exits.CONTINUE and record["faults"] == []
    [told] = [s for s in record["items"]["correctness"]["statements"] if "10.1.2.3" in s["text"]]
    assert told["evidence"] == "open" and "--allow-network" in told["source"]


FORKS = """
def forward(model, x):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return model(x)
"""


def test_a_fork_whose_copy_ends_itself_is_told_with_its_line(tmp_path: Path) -> None:
    code, record = run_text(tmp_path, PLAIN + FORKS, *ON_CPU, **NO_DEVICE)
    assert code == exits.FAULTS["forked"]
    [fault] = record["faults"]
    assert "in stage correctness" in fault["text"] and "pilot.py:" in fault["text"]
    assert record["items"]["correctness"]["facts"]["ordinary"]["outputs"] == 1


ONLY_IN_A_CHILD = """
def train_step(model, optimizer, x):
    if "neuron_readiness.run.tasks" in sys.modules["__main__"].__spec__.name:
        fork()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss

def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("stage", ["shapes", "performance", "operations"])
def test_a_fork_in_a_fresh_process_is_told_with_its_stage_and_line(
    stage: str, tmp_path: Path
) -> None:
    text = PLAIN.replace('if split == "requests"', 'if split == "train"').replace(
        "import os,", "import sys, os,"
    )
    arguments = ("--device", "cpu", "--only", stage, "--repeats", "2")
    code, record = run_text(tmp_path, text + ONLY_IN_A_CHILD, *arguments, **NO_DEVICE)
    assert code == exits.FAULTS["forked"]
    [fault] = record["faults"]
    assert f"in stage {stage}" in fault["text"] and "pilot.py:" in fault["text"]
    assert record["items"][stage]["status"] == "done"  # and the stage keeps its result


STARTS = """
from neuron_readiness.run import guard
guard.install(True)
import multiprocessing, os, subprocess, torch
data = torch.utils.data.DataLoader([1, 2, 3, 4], num_workers=1)
assert len(list(data)) == 4
subprocess.run(["true"], check=True)
multiprocessing.get_context("fork").Process(target=int).start()
assert os.spawnvp(os.P_WAIT, "true", ["true"]) == 0
print("seen:", guard.forked())
if os.fork() == 0:
    os._exit(0)
print("seen:", guard.forked())
"""


def test_workers_of_the_standard_library_are_no_forks_of_the_pilot() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS],
        env={**os.environ, **NO_DEVICE},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["seen: ", "seen: <string>:11"], done.stderr


ONE_RAISES = """
def inputs(split):
    return [torch.ones(2, 4), torch.ones(3, 4)] if split == "requests" else []

def forward(model, x):
    if x.shape[0] == FIRST:
        raise ValueError("no such request")
    return model(x)
"""


def test_a_request_that_raises_costs_that_request_only(tmp_path: Path) -> None:
    text = PLAIN + ONE_RAISES.replace("FIRST", "2")
    arguments = (*ON_CPU, "--only", "execution")
    code, record = run_text(tmp_path, text, *arguments, **NO_DEVICE)
    assert code == exits.FAULTS["pilot-raised"]
    [fault] = record["faults"]
    assert "case requests-0" in fault["text"] and "no such request" in fault["text"]
    assert "pilot.py:" in fault["text"] and "in forward" in fault["trace"]
    assert fault["side"] == "workload"
    ordinary = record["items"]["correctness"]["facts"]["ordinary"]
    assert (ordinary["cases"], ordinary["outputs"], ordinary["failed"]) == (2, 1, 0)
    graphs = record["items"]["execution"]["facts"]["graphs"]
    assert graphs["failure"] is None and graphs["cases"] == ["requests-1"]
    found = [f for f in record["items"]["execution"]["findings"] if f["where"] == "case requests-0"]
    assert "no such request" in found[0]["text"] and "pilot.py:" in found[0]["text"]


EXITS = """
def inputs(split):
    return [torch.ones(n, 4) for n in (2, 3)] if split == "requests" else []

def forward(model, x):
    return model(x) if len(x) == 2 else sys.exit(0)
"""


def test_a_request_that_ends_the_process_costs_that_request_only(tmp_path: Path) -> None:
    arguments = (*ON_CPU, "--only", "shapes")
    text = PLAIN.replace("import os", "import sys, os") + EXITS
    code, record = run_text(tmp_path, text, *arguments, **NO_DEVICE)
    assert code == exits.FAULTS["pilot-raised"]
    [fault] = record["faults"]
    line = 1 + text[: text.index("sys.exit")].count("\n")
    assert "SystemExit: 0" in fault["text"] and f"pilot.py:{line}" in fault["text"]
    assert fault["side"] == "workload"
    assert record["items"]["correctness"]["facts"]["ordinary"]["outputs"] == 1
    shapes = record["items"]["shapes"]["facts"]
    assert (shapes["families"], len(shapes["failed_families"])) == (2, 1)


def test_a_copy_that_fork_made_may_end_itself_with_sys_exit(tmp_path: Path) -> None:
    part = FORKS.replace("os._exit(0)", "sys.exit(3)").replace(
        "os.waitpid(pid, 0)", "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3"
    )
    text = PLAIN.replace("import os", "import sys, os") + part
    code, record = run_text(tmp_path, text, *ON_CPU, **NO_DEVICE)
    assert code == exits.FAULTS["forked"]
    assert [f["kind"] for f in record["faults"]] == ["forked"]


def test_a_request_that_raises_leaves_the_profile_of_the_others(tmp_path: Path) -> None:
    text = PLAIN + ONE_RAISES.replace("FIRST", "2")
    arguments = ("--device", "cpu", "--only", "profile", "--only", "kernels")
    code, record = run_text(tmp_path, text, *arguments, **NO_DEVICE)
    assert code == exits.CONTINUE and record["faults"] == []
    profile, kernels = record["items"]["profile"], record["items"]["kernels"]
    assert profile["facts"]["failed_requests"] == kernels["facts"]["failed_requests"] == 1
    assert profile["facts"]["shares"]["device"] > 0
    assert profile["facts"]["memory"]["failed_requests"] == 0  # of a case that runs
    [found] = [f for f in profile["findings"] if f["where"] == "case requests-0"]
    assert "no such request" in found["text"] and "pilot.py:" in found["text"]
    assert "profiled" in [r["gate"] for r in record["decision"]["reasons"]]


def test_a_request_that_raises_leaves_the_inventory(tmp_path: Path) -> None:
    text = PLAIN + ONE_RAISES.replace("FIRST", "2")
    text += "\ndef never(x):\n    return x.cuda()\n\ndef log(output):\n    output.sum().item()\n"
    code, record = run_text(tmp_path, text, "--device", "cpu", "--only", "inventory", **NO_DEVICE)
    assert code == exits.FAULTS["pilot-raised"]
    [fault] = record["faults"]
    assert "case requests-0" in fault["text"] and "pilot.py:" in fault["text"]
    item = record["items"]["inventory"]
    assert item["status"] == "done" and item["facts"]["operators"] > 0
    assert {h["text"]: h["reach"] for h in item["facts"]["hits"]} == {
        ".cuda()": "not seen to run",
        ".item()": "on the path",
    }
    assert (item["facts"]["unsupported"], item["facts"]["unsupported_not_seen"]) == (0, 1)
    said = [s["text"] for s in item["statements"] if s["evidence"] == "open"]
    assert "1 dependencies in code that no case ran, 1 of them not supported" in said
    ledger = parquet.read_table(tmp_path / "record" / "ledgers" / "inventory.parquet").to_pylist()
    assert {r["reach"] for r in ledger} == {"not seen to run", "on the path"}
    assert "not seen to run" in (tmp_path / "record" / "report.html").read_text()


def test_where_every_request_raises_the_profile_is_open(tmp_path: Path) -> None:
    text = PLAIN + ONE_RAISES.replace("== FIRST", "> 0")
    arguments = ("--device", "cpu", "--only", "profile", "--only", "kernels")
    code, record = run_text(tmp_path, text, *arguments, **NO_DEVICE)
    assert code == exits.FAULTS["pilot-raised"]
    assert {f["stage"] for f in record["faults"]} == {"profile", "kernels"}
    for name in ("profile", "kernels"):
        said = [s["text"] for s in record["items"][name]["statements"]]
        assert not any("no custom kernel is reached" in s for s in said)


def test_a_pilot_that_cannot_be_loaded_leaves_the_environment(tmp_path: Path) -> None:
    code, record = run_text(tmp_path, "import nothing_like_this\n", *ON_CPU, **NO_DEVICE)
    assert code == exits.FAULTS["pilot-raised"]
    assert record["faults"][0]["side"] == "workload"
    assert record["items"]["environment"]["status"] == "done"
    assert "nothing_like_this" in record["items"]["correctness"]["reason"]
    assert "did not run" in record["decision"]["title"]


def test_a_pilot_that_breaks_the_protocol_is_told_how(tmp_path: Path) -> None:
    code, record = run_text(tmp_path, "def model():\n    pass\n", *ON_CPU, **NO_DEVICE)
    assert code == exits.FAULTS["pilot-raised"]
    assert "expected a function `inputs`" in record["faults"][0]["text"]


@pytest.mark.full  # waits for the time limit, which must leave room for a slow start
def test_a_pilot_that_hangs_is_ended_and_the_stack_kept(tmp_path: Path) -> None:
    part = "def forward(model, x):\n    while True:\n        time.sleep(1)\n"
    arguments = (*ON_CPU, "--only", "effort", "--stage-timeout", "40")
    code, record = run_text(tmp_path, PLAIN + part, *arguments, **NO_DEVICE)
    assert code == exits.FAULTS["hung"]
    assert "in forward" in record["faults"][0]["trace"]
    assert record["items"]["effort"]["status"] == "done"


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_cancelled_keeps_what_was_learnt(tmp_path: Path, number: int) -> None:
    meeting = tmp_path / "here"
    os.mkfifo(meeting)
    text = f"def forward(model, x):\n    open({str(meeting)!r}, 'w').close()\n    time.sleep(1e6)\n"
    (tmp_path / "pilot.py").write_text(PLAIN + text)
    out = tmp_path / "record"
    command = [sys.executable, "-m", "neuron_readiness.cli", "run", str(tmp_path / "pilot.py")]
    process = subprocess.Popen(
        [*command, "--out", str(out), *ON_CPU, "--quiet"],
        env={**os.environ, **NO_DEVICE},
        # A shell starts what runs in the background with SIGINT ignored, and the tests with it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        meeting.open().close()  # the pilot is in its forward
        process.send_signal(number)
        assert process.wait(timeout=120) == exits.INTERRUPTED
    finally:
        process.kill()
        process.wait()
    record = json.loads((out / "record.json").read_text())
    assert record["exit_code"] == exits.INTERRUPTED
    assert record["items"]["environment"]["status"] == "done"
    assert record["items"]["correctness"]["reason"] == "the run was interrupted"


@pytest.mark.full
def test_a_pilot_that_keeps_every_result_leaks(tmp_path: Path) -> None:
    part = "kept = []\ndef forward(model, x):\n    kept.append(model(x))\n    return kept[-1]\n"
    arguments = ("--device", "cpu", "--only", "performance", "--repeats", "20")
    code, record = run_text(tmp_path, PLAIN + part, *arguments, **NO_DEVICE)
    assert code == exits.FAULTS["leaks"]
    assert "tensors grow with every request" in record["faults"][0]["text"]


@pytest.mark.full
def test_a_pilot_that_eats_the_memory_is_ended(tmp_path: Path) -> None:
    part = "kept = []\ndef forward(model, x):\n    while True:\n        kept.append(b'x' * 2**22)\n"
    arguments = (*ON_CPU, "--memory-limit", "1.5")
    code, record = run_text(tmp_path, PLAIN + part, *arguments, **NO_DEVICE)
    assert code == exits.FAULTS["leaks"]
    assert "the limit is" in record["faults"][0]["text"]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([10, 20, 30, 40, 50], True),
        ([10, 10, 10, 10, 10], False),
        ([10, 50, 50, 50, 50], False),  # a cache that fills once
        ([10, 20, 30], False),  # too few marks to tell
    ],
)
def test_a_leak_grows_at_every_mark(values: list[int], found: bool) -> None:
    from neuron_readiness.run.serving import _leak

    marks = [{"tensors": v, "device_bytes": 0, "resident_bytes": 0} for v in values]
    assert bool(_leak(marks, requests=5)) == found


def request(folder: Path) -> pilot_run.Request:
    pilot = folder / "pilot.py"
    pilot.write_text(PLAIN)
    options = {"device": "cpu", "reference": "cpu"}
    return pilot_run.Request(pilot, folder / "out", options, ["effort"], [], None, Limits())


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> store.Store:
    """A finished stage in a folder whose disk is full until the kept room is given up."""
    place = store.Store(tmp_path / "out")
    place.prepare()
    result = {"stage": "effort", "title": "Effort", "status": "done", "evidence": "measured"}
    lists: dict[str, Any] = {"facts": {}, "statements": [], "findings": [], "faults": []}
    place.save("effort", "key", {**result, **lists, "ledgers": {}, "seconds": 0.0})
    write = store.write

    def limited(path: Path, content: Any) -> None:
        if place._reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(store, "write", limited)
    return place


def test_a_full_disk_keeps_the_record(full_disk: store.Store, tmp_path: Path) -> None:
    record = pilot_run._finish(request(tmp_path), full_disk, Outcome(key="key"), None)
    assert record["exit_code"] == exits.FAULTS["disk-full"]
    written = json.loads((tmp_path / "out" / "record.json").read_text())
    assert written["items"]["effort"]["status"] == "done"
    assert written["faults"][0]["kind"] == "disk-full"
    assert written["faults"][0]["side"] == "infrastructure"


def test_a_disk_with_no_room_at_all_gets_the_record_on_standard_output(
    full_disk: store.Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(full_disk, "release", lambda: None)
    pilot_run._finish(request(tmp_path), full_disk, Outcome(), None)
    assert json.loads(capsys.readouterr().out)["exit_code"] == exits.FAULTS["disk-full"]


def test_files_of_the_current_folder_are_not_taken_for_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "string.py").write_text("raise RuntimeError('not the standard library')\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "pilot.py").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    context = Context(tmp_path / "work" / "pilot.py", Options(device="cpu"), tmp_path)
    [row] = context.child("shape_ledger", {}, NO_DEVICE)["rows"]
    assert row["error"] == ""


@pytest.mark.parametrize(
    ("code", "wrote", "kind", "side"),
    [
        (None, "", "hung", "unknown"),
        (-6, "", "crashed", "unknown"),
        (1, 'File "/p.py", line 3\nValueError: no', "pilot-raised", "workload"),
        (1, 'File "/lib.py", line 3\nValueError: no', "pilot-raised", "unknown"),
        (1, "NetworkNeeded: the pilot connects to", "needs-network", "workload"),
        (1, "torch.OutOfMemoryError: neuron out of memory", "pilot-raised", "infrastructure"),
        (1, "OSError: [Errno 28] No space left on device", "disk-full", "infrastructure"),
        (1, "OSError: [Errno 27] File too large", "disk-full", "infrastructure"),
        (1, "ValueError: File too large", "pilot-raised", "unknown"),
    ],
)
def test_a_child_that_ends_badly_is_told_as_a_stage_is(
    code: int | None, wrote: str, kind: str, side: str
) -> None:
    found = faults.classify(ChildFailed(f"shape_ledger ended\n{wrote}", code), Path("/p.py"))
    assert (found.kind, found.side) == (kind, side)
    assert found.text == "shape_ledger ended"


def test_a_worker_that_ends_on_a_full_disk_is_not_blamed() -> None:
    full = end_of("shapes", 1, "", 0)
    assert (full.kind, full.side) == ("disk-full", "infrastructure")
    assert "0 bytes are free" in full.text and "stage shapes" in full.text
    limited = end_of("shapes", 1, "OSError: [Errno 27] File too large: 'x'\n", 2**30)
    assert (limited.kind, limited.side) == ("disk-full", "infrastructure")
    roomy = end_of("shapes", -9, "", 2**30)
    assert (roomy.kind, roomy.side) == ("crashed", "unknown") and "SIGKILL" in roomy.text
    assert "ImportError: x" in end_of("?", 1, "Traceback\nImportError: x\n", None).text


def test_the_limit_of_a_stage_is_none_for_the_start_of_the_worker() -> None:
    assert limit_of("correctness", Limits(stage_s=5)) == 5
    assert limit_of("?", Limits(stage_s=5)) == 300
    assert limit_of("?", Limits(stage_s=900)) == 900


def test_half_written_files_are_never_seen(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    store.write(path, {"a": 1})
    with pytest.raises(ValueError):
        store.write(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_of_a_newer_schema_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    text = json.dumps({"schema": "neuron-readiness/record", "schema_version": 99})
    (out / "record.json").write_text(text)
    pilot = tmp_path / "pilot.py"
    pilot.write_text(PLAIN)
    newer = exits.FAULTS["newer-schema"]
    assert main(["run", str(pilot), "--out", str(out), "--quiet"]) == newer
    assert main(["compare", str(out), str(out)]) == newer
    assert main(["report", str(out)]) == newer
    assert "schema version 99" in capsys.readouterr().err
    assert (out / "record.json").read_text() == text


@pytest.mark.parametrize("command", [["report", "{}"], ["compare", "{}", "{}"]])
def test_a_record_that_does_not_exist_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere")
    assert main([part.format(missing) for part in command]) == exits.USAGE
    assert f"{missing} does not exist" in capsys.readouterr().err


def test_a_file_that_is_no_record_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"schema": "other"}')
    assert main(["compare", str(path), str(path)]) == exits.USAGE
    assert main(["report", str(path)]) == exits.USAGE
    assert "this is no record" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "missing.py")]) == exits.USAGE
    assert main(["run", str(path), "--only", "everything"]) == exits.USAGE
