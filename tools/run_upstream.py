"""Runs PyTorch's own test files on the device, from a checkout of PyTorch's sources.

    python tools/run_upstream.py --pytorch-src DIR [--results out/upstream] FILE...
    python tools/run_upstream.py --report --results out/upstream

FILEs are names below DIR/test ("test_view_ops.py"). PyTorch ships none of them: DIR is yours, of
the same version as the installed torch. Each test gets one outcome: passed, failed, skipped by
upstream, skipped by us (with the reason, from --exclude), crashed, or timed out; a file that cannot
be imported counts as one failed test. All are in one denominator. Only tests that are made for the
device are run; --all also runs those of plain classes, which stay on the CPU.

A file runs in a process of its own, which is started anew behind a test that it died in or hung in.
Outcomes are written as they come, to RESULTS/journal.jsonl: the same command goes on where an
interrupted one stopped. At the end RESULTS/outcomes.parquet has a row for each test (file, test,
outcome, reason, seconds, text), and a table and a ranked list of causes are printed. Status 1 if
anything failed, crashed or timed out.

--exclude FILE is JSON: [{"test": "test_x.py::TestY::test_z*", "reason": "..."}]. An excluded test
is not run. A pattern that fits no test is an error.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTCOMES = (
    "passed", "failed", "skipped by upstream", "skipped by us", "crashed", "timed out",
)  # fmt: skip
BAD = ("failed", "crashed", "timed out")
IMPORT_S = 900.0  # importing and instantiating test_ops.py takes minutes


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--pytorch-src", type=Path, metavar="DIR")
    parser.add_argument("--results", type=Path, default=Path("out/upstream"), metavar="DIR")
    parser.add_argument("--exclude", type=Path, metavar="FILE")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one test")
    parser.add_argument("--all", action="store_true", help="tests of plain classes, too")
    parser.add_argument("--report", action="store_true", help="only report what is there")
    parser.add_argument("--causes", type=int, default=20, help="how many to print")
    options = parser.parse_args(arguments)
    if not options.report:
        if options.pytorch_src is None or not options.files:
            parser.error("expected --pytorch-src DIR and test files, or --report")
        tests = options.pytorch_src.resolve() / "test"
        for name in options.files:
            if not (tests / name).is_file():
                parser.error(f"{name}: no such file in {tests}")
        _compare_versions(options.pytorch_src)
        options.results.mkdir(parents=True, exist_ok=True)
        exclusions = _exclusions(options.exclude)
        for name in options.files:
            _File(tests, name, options, exclusions).run()
        unused = [e["test"] for e in exclusions if not e.get("used")]
        if unused:
            print(f"--exclude: no test fits {', '.join(unused)}", file=sys.stderr)
            return 2
    rows = read(options.results / "journal.jsonl")
    write_parquet(rows, options.results / "outcomes.parquet")
    print(report(rows, options.causes))
    return int(any(row["outcome"] in BAD for row in rows))


def _exclusions(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    for entry in entries:
        if set(entry) != {"test", "reason"} or not entry["reason"].strip():
            raise SystemExit(f"--exclude: expected test and reason, got {entry}")
    return entries


def _compare_versions(source: Path) -> None:
    import torch

    version = source / "version.txt"
    theirs = version.read_text().strip() if version.is_file() else "unknown"
    ours = str(torch.__version__)
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        print(
            f"warning: the checkout is of torch {theirs}, installed is {ours}; tests of another "
            "version fail for reasons that are not the device's",
            file=sys.stderr,
        )


class _File:
    """One test file: collected once, then run in as many processes as it takes."""

    def __init__(
        self, tests: Path, name: str, options: Any, exclusions: list[dict[str, Any]]
    ) -> None:
        self.tests, self.name, self.options = tests, name, options
        self.journal = options.results / "journal.jsonl"
        self.exclusions = exclusions

    def run(self) -> None:
        _end_line(self.journal)
        known = {row["test"] for row in read(self.journal) if row["file"] == self.name}
        collected = self._collect()
        for test in collected:
            for entry in self.exclusions:
                if fnmatch.fnmatchcase(test, entry["test"]):
                    entry["used"] = True
                    if test not in known:
                        self._note(test, "skipped by us", reason=entry["reason"])
                        known.add(test)
        while any(test not in known for test in collected):
            before = len(known)
            known |= set(self._process(sorted(known)))
            if len(known) == before:  # a process that reaches no test: each is a failure
                for test in collected:
                    if test not in known:
                        self._note(test, "failed", reason="the process ended before this test")
                break

    def _collect(self) -> list[str]:
        tests: list[str] | None = None
        broken = False
        for message in self._messages([], collect=True, timeout=IMPORT_S):
            if "collected" in message:
                tests = message["collected"]
            elif "broken" in message:
                broken = True
                self._broken(message["detail"], message["text"])
            elif "lost" in message and tests is None and not broken:
                self._broken(f"while it was imported: {message['lost']}", "")
        if tests == [] and not broken:
            print(
                f"{self.name}: no test that is made for the device (--all: others)", file=sys.stderr
            )
        return tests or []

    def _broken(self, reason: str, text: str) -> None:
        if not any(r["file"] == self.name and r["test"] == self.name for r in read(self.journal)):
            self._note(self.name, "failed", reason=reason, text=text[-4000:])

    def _process(self, done: list[str]) -> Iterator[str]:
        """Runs tests until the process ends; their names."""
        running = ""
        for message in self._messages(done, collect=False, timeout=self.options.timeout):
            if "begin" in message:
                running = message["begin"]
            elif "end" in message:
                test = message.pop("end")
                running = ""
                self._note(test, **message)
                yield test
            elif "lost" in message and running:
                outcome = "timed out" if message["timeout"] else "crashed"
                self._note(running, outcome, reason=message["lost"])
                yield running

    def _note(self, test: str, outcome: str, **more: Any) -> None:
        record = {"file": self.name, "test": test, "outcome": outcome, **more}
        with self.journal.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def _messages(
        self, done: list[str], *, collect: bool, timeout: float
    ) -> Iterator[dict[str, Any]]:
        """What a process says; at last {"lost": how, "timeout": bool} if it died or fell silent."""
        with tempfile.TemporaryDirectory(prefix="upstream-") as folder:
            says = Path(folder) / "says.jsonl"
            says.touch()
            plan = Path(folder) / "plan.json"
            plan.write_text(
                json.dumps(
                    {
                        "journal": str(says),
                        "done": done,
                        "all": self.options.all,
                        "collect": collect,
                    }
                )
            )
            with (Path(folder) / "output.txt").open("wb") as output:
                process = self._start(plan, output)
                try:
                    yield from _follow(process, says, timeout)
                finally:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _start(self, plan: Path, output: Any) -> subprocess.Popen[bytes]:
        path = [str(HERE), str(self.tests), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {
            **os.environ,
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": "privateuse1",
            # The checkout's root is not on it: its torch/ would hide the installed one.
            "PYTHONPATH": os.pathsep.join(p for p in path if p),
            "UPSTREAM_PLAN": str(plan),
        }
        command = [
            *(sys.executable, "-m", "pytest", self.name, "-q", "-p", "upstream_plugin"),
            *("--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull),
            *("--rootdir", str(self.tests), "--continue-on-collection-errors"),
        ]
        return subprocess.Popen(
            command,
            cwd=self.tests,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its own children end with it
        )


def _follow(
    process: subprocess.Popen[bytes], path: Path, timeout: float
) -> Iterator[dict[str, Any]]:
    """JSON lines of a file that a process writes, until it ends or is silent for ``timeout``
    seconds; the first may take as long as importing a test file does."""
    last, limit = time.monotonic(), IMPORT_S
    rest = ""
    with path.open() as file:
        while True:
            ended = process.poll() is not None  # asked before the last read, so that it is the last
            rest += file.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                last, limit = time.monotonic(), timeout
                yield json.loads(line)
            if ended:
                break
            if not lines:
                if time.monotonic() - last > limit:
                    yield {"lost": f"no answer in {limit:.0f} s", "timeout": True}
                    return
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        yield {"lost": f"the process died of {name}", "timeout": False}
    else:  # whichever status: a test may have ended the process with one of pytest's own
        yield {"lost": f"the process ended with status {process.returncode}", "timeout": False}


# --- reporting


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a journal; a line cut short by an interruption is left out, a later outcome of a test
    replaces an earlier."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            rows[row["file"], row["test"]] = row
    return list(rows.values())


def _end_line(path: Path) -> None:
    """What follows a line that was cut short must not become part of it."""
    if path.is_file() and not path.read_bytes().endswith(b"\n"):
        with path.open("a") as file:
            file.write("\n")


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = ("file", "test", "outcome", "reason", "text")
    columns: dict[str, Any] = {
        name: pa.array([str(row.get(name, "")) for row in rows], pa.string()) for name in text
    }
    columns["seconds"] = pa.array([row.get("seconds") for row in rows], pa.float64())
    pq.write_table(pa.table(columns), path)


def cause(row: dict[str, Any]) -> str:
    """What groups failures: the exception's words without numbers and shapes."""
    text = re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[-+]?\d+)?", "#", row.get("reason", ""))
    text = re.sub(r"\[[#, ]*\]|\([#, ]*\)", "[#]", text)
    return f"{row['outcome']}: {text[:140]}"


def report(rows: list[dict[str, Any]], causes: int) -> str:
    """A table by file, and causes of what went wrong, those of most tests first."""
    width = max([len(row["file"]) for row in rows] + [3])
    head = ("tests", *OUTCOMES)
    lines = [" " * width + "".join(f"{h:>{len(h) + 2}}" for h in head) + "  passed of all"]
    by_file: dict[str, collections.Counter[str]] = {}
    for row in rows:
        by_file.setdefault(row["file"], collections.Counter())[row["outcome"]] += 1
    total = sum(by_file.values(), collections.Counter())
    for name, counts in [*sorted(by_file.items()), ("all", total)]:
        cells = [counts.total(), *(counts[o] for o in OUTCOMES)]
        share = f"{100 * counts['passed'] / max(counts.total(), 1):.1f}%"
        line = "".join(f"{c:>{len(h) + 2}}" for c, h in zip(cells, head, strict=True))
        lines.append(f"{name:{width}}{line}  {share:>13}")
    groups = collections.Counter(cause(row) for row in rows if row["outcome"] in BAD)
    examples = {cause(row): row["test"] for row in reversed(rows) if row["outcome"] in BAD}
    for text, count in groups.most_common(causes):
        lines.append(f"{count:6}  {text}\n        {examples[text]}")
    reasons = collections.Counter(
        row.get("reason", "") for row in rows if row["outcome"] == "skipped by us"
    )
    lines += [f"{count:6}  skipped by us: {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
