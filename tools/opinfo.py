"""Compares every operator of torch's OpInfo database on the device with CPU.

    python tools/opinfo.py --kinds forward,backward --dtypes float32 --budget 2 --results r.jsonl
    python tools/opinfo.py --report --results r.jsonl

A case is one sample of one operator, dtype and kind; the results file has one JSON line for each,
written as it ends, so an interrupted run goes on with ``--resume``. Workers are processes: one
that dies or exceeds the time limit is replaced and its case counts as crashed. Fallback to the CPU
is allowed and recorded; a case that needed it counts apart. ``opinfo_exclusions.json`` names cases
known not to pass, each with its reason; a unit listed there of which all cases pass is an error.
Exit status: 1 for failed or crashed cases that are not excluded, or an exclusion that passes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import queue
import re
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXCLUSIONS = HERE / "opinfo_exclusions.json"
# A worker's memory grows with every executable it has seen; a fresh one loads from the cache.
UNITS_A_WORKER = 400
OUTCOMES = ("passed", "fallback", "failed", "crashed", "excluded", "skipped")

Unit = tuple[str, str, str]  # OpInfo name, dtype, kind


def main() -> int:
    """Runs, or reports on, the units that the arguments choose."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("out/opinfo.jsonl"))
    parser.add_argument("--budget", type=int, default=3, help="samples for each unit (default 3)")
    parser.add_argument("--all", action="store_true", help="all samples")
    parser.add_argument("--ops", help="OpInfo names, comma-separated; /regex/ is allowed")
    parser.add_argument("--dtypes", help="comma-separated (default: all nine)")
    parser.add_argument("--kinds", help="comma-separated (default: all)")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th operator from i")
    parser.add_argument("--resume", action="store_true", help="keep what the results file has")
    parser.add_argument("--retry", action="store_true", help="with --resume: failures run again")
    parser.add_argument("--jobs", type=int, default=2, help="workers; 0 runs in this process")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds a case may take")
    parser.add_argument("--report", action="store_true", help="print the report and run nothing")
    parser.add_argument("--summary", type=Path, help="write the committed summary here (JSON)")
    parser.add_argument("--causes", type=int, default=30, help="how many causes to print")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker()
    if not options.report:
        run(options)
    records = read(options.results)
    exclusions = json.loads(EXCLUSIONS.read_text())
    result = Report(records, exclusions)
    print(result.text(options.causes))
    if options.summary:
        options.summary.write_text(json.dumps(result.summary(), indent=0, sort_keys=True) + "\n")
    return result.status()


# --- running


def units(options: argparse.Namespace) -> list[Unit]:
    """What to run, operator by operator, so that kinds of one operator share the cache."""
    import opinfo_cases as cases

    names = list(cases.OPS)
    if options.ops:
        wanted = [n for n in options.ops.split(",") if n]
        names = [n for n in names if any(_matches(w, n) for w in wanted)]
        unknown = [w for w in wanted if not any(_matches(w, n) for n in names)]
        if unknown:
            raise SystemExit(f"no such OpInfo entry: {', '.join(unknown)}")
    index, count = map(int, options.shard.split("/"))
    if not 0 <= index < count:
        raise SystemExit(f"--shard: expected i/n with 0 <= i < n, got {options.shard}")
    dtypes = _choice(options.dtypes, cases.DTYPES, "--dtypes")
    kinds = _choice(options.kinds, cases.KINDS, "--kinds")
    return [
        (name, dtype, kind)
        for name in names[index::count]
        for kind in kinds
        for dtype in (("float32",) if kind == "errors" else dtypes)
        if cases.applies(name, dtype, kind)
    ]


def _matches(wanted: str, name: str) -> bool:
    if len(wanted) > 1 and wanted[0] == wanted[-1] == "/":
        return re.search(wanted[1:-1], name) is not None
    return wanted == name


def _choice(text: str | None, known: tuple[str, ...], option: str) -> list[str]:
    chosen = text.split(",") if text else list(known)
    if unknown := [c for c in chosen if c not in known]:
        raise SystemExit(f"{option}: expected some of {', '.join(known)}; got {', '.join(unknown)}")
    return chosen


def run(options: argparse.Namespace) -> None:
    """Runs all units that the results file does not have yet."""
    os.environ["TORCH_NEURONX_FALLBACK"] = "allow"
    sys.path.insert(0, str(HERE))
    todo = units(options)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if options.resume and options.results.exists():
        records = read(options.results)
        again: set[Unit] = set()
        if options.retry:
            again = {_unit(r) for r in records if r.get("outcome") in ("failed", "crashed")}
            again &= set(todo)
            records = [r for r in records if _unit(r) not in again]
            text = "".join(json.dumps(r) + "\n" for r in records)
            options.results.write_text(text)
        done = {_unit(r) for r in records if "done" in r}
        todo = [u for u in todo if u not in done]
    elif options.results.exists():
        options.results.unlink()
    budget = None if options.all else options.budget
    started = time.monotonic()
    with options.results.open("a") as file:
        lock = threading.Lock()

        def write(record: dict[str, Any]) -> None:
            with lock:
                file.write(json.dumps(record) + "\n")
                file.flush()

        if options.jobs == 0:
            import opinfo_cases as cases

            for unit in todo:
                count = 0
                for record in cases.run_unit(*unit, budget):
                    write(record)
                    count += 1
                write(_done(unit, count))
        else:
            work: queue.Queue[Unit] = queue.Queue()
            for unit in todo:
                work.put(unit)
            threads = [
                threading.Thread(target=_feed, args=(work, budget, options.timeout, write))
                for _ in range(options.jobs)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        write({"run": len(todo), "wall_s": round(time.monotonic() - started, 1)})


def _unit(record: dict[str, Any]) -> Unit:
    return record.get("op", ""), record.get("dtype", ""), record.get("kind", "")


def _done(unit: Unit, count: int) -> dict[str, Any]:
    return {"op": unit[0], "dtype": unit[1], "kind": unit[2], "done": count}


class _Worker:
    """A process that runs units; talks in JSON lines."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "opinfo.py"), "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.buffer = b""
        self.units = 0

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its death is noticed by `receive`
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def receive(self, timeout: float) -> dict[str, Any] | str:
        """The next message, or how the worker was lost."""
        assert self.process.stdout is not None
        file = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            if not select.select([file], [], [], timeout)[0]:
                return f"no answer in {timeout:.0f} s"
            data = os.read(file, 1 << 16)
            if not data:
                return f"worker ended with status {self.process.wait()}"
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def stop(self, *, kill: bool = False) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if not kill:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        self.process.kill()  # nothing, if it has ended
        self.process.wait()
        self.process.stdout.close()


def _feed(work: queue.Queue[Unit], budget: int | None, timeout: float, write: Any) -> None:
    """One worker's thread: units from the queue, records to the file."""
    current: _Worker | None = None
    while True:
        try:
            unit = work.get_nowait()
        except queue.Empty:
            break
        start = count = losses = 0
        while True:  # until the unit is done; a lost worker's successor begins after its case
            if current is None or current.units >= UNITS_A_WORKER:
                if current is not None:
                    current.stop()
                current = _Worker()
            current.units += 1
            current.send({"unit": unit, "budget": budget, "start": start})
            running = start
            while True:
                message = current.receive(timeout + (60 if current.units == 1 else 0))
                if isinstance(message, str):
                    break
                if "begin" in message:
                    running = message["begin"]
                elif "end" in message:
                    break
                else:
                    write(message)
                    count += 1
            if not isinstance(message, str):
                break
            current.stop(kill=True)
            current = None
            cause = "time limit" if message.startswith("no answer") else "worker died"
            write(
                {
                    **dict(zip(("op", "dtype", "kind"), unit, strict=True)),
                    "case": running, "outcome": "crashed", "cause": cause, "detail": message,
                }
            )  # fmt: skip
            count += 1
            losses += 1
            start = running + 1
            if losses >= 3:
                break
        write(_done(unit, count))
    if current is not None:
        current.stop()


def worker() -> int:
    """The other end of ``_Worker``: reads units from stdin, answers on stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an operator prints must not be taken for an answer

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    sys.path.insert(0, str(HERE))
    import opinfo_cases as cases

    for line in sys.stdin:
        task = json.loads(line)
        for record in cases.run_unit(
            *task["unit"], task["budget"], task["start"], lambda i: say({"begin": i})
        ):
            say(record)
        say({"end": True})
    return 0


# --- reporting


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; a last line cut short by an interruption is left out."""
    records = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return records


@dataclasses.dataclass
class Report:
    """Counts and causes of a results file, exclusions applied."""

    records: list[dict[str, Any]]
    exclusions: list[dict[str, str]]

    def __post_init__(self) -> None:
        for entry in self.exclusions:
            if set(entry) != {"op", "dtype", "kind", "reason"} or not entry["reason"].strip():
                raise SystemExit(f"exclusion needs op, dtype, kind, reason: {entry}")
        self.cases = [dict(r) for r in self.records if "outcome" in r]
        used: collections.defaultdict[int, set[str]] = collections.defaultdict(set)
        for case in self.cases:
            for i, entry in enumerate(self.exclusions):
                if _covers(entry, case) and case["outcome"] != "skipped":
                    used[i].add(case["outcome"])
                    if case["outcome"] in ("failed", "crashed"):
                        case["outcome"] = "excluded"
        # An entry none of whose cases fails any more.
        self.stale = [
            self.exclusions[i] for i, seen in used.items() if not seen & {"failed", "crashed"}
        ]

    def status(self) -> int:
        bad = any(c["outcome"] in ("failed", "crashed") for c in self.cases)
        return int(bad or bool(self.stale))

    def table(self) -> dict[tuple[str, str], collections.Counter[str]]:
        """Counts of outcomes by (kind, dtype)."""
        result: dict[tuple[str, str], collections.Counter[str]] = {}
        for c in self.cases:
            result.setdefault((c["kind"], c["dtype"]), collections.Counter())[c["outcome"]] += 1
        return result

    def causes(self) -> list[tuple[str, int, list[str]]]:
        """(cause, cases, operators), most frequent first."""
        groups: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
        for c in self.cases:
            if c["outcome"] in ("failed", "crashed"):
                groups[_cause(c)].append(c["op"])
        ranked = sorted(groups.items(), key=lambda item: (-len(set(item[1])), item[0]))
        return [(cause, len(ops), sorted(set(ops))) for cause, ops in ranked]

    def text(self, causes: int) -> str:
        lines = [f"{'kind':14}{'dtype':10}" + "".join(f"{o:>10}" for o in OUTCOMES) + "   equal"]
        total: collections.Counter[str] = collections.Counter()
        for (kind, dtype), counts in sorted(self.table().items()):
            lines.append(_row(kind, dtype, counts))
            total += counts
        lines.append(_row("all", "", total))
        errors = [c for c in self.cases if c["kind"] == "errors" and c["outcome"] != "skipped"]
        if errors:
            typed = sum(c["outcome"] in ("passed", "fallback") for c in errors)
            worded = sum(
                c["outcome"] in ("passed", "fallback") and c.get("note") != "text" for c in errors
            )
            lines.append(
                f"error inputs: {typed} of {len(errors)} raise CPU's type, {worded} CPU's text"
            )
        strided = [c for c in self.cases if c.get("note") and c["kind"] != "errors"]
        lines.append(f"strides other than CPU's: {len(strided)} passed cases")
        runs = [r for r in self.records if "run" in r]
        compiled = sum(c.get("compiled", 0) for c in self.cases)
        loaded = sum(c.get("loaded", 0) for c in self.cases)
        lines.append(
            f"executables: {compiled} compiled, {loaded} read from the cache; "
            f"wall time {sum(r['wall_s'] for r in runs):.0f} s in {len(runs)} runs"
        )
        lines.append(f"exclusions: {len(self.exclusions)}, of which pass: {len(self.stale)}")
        lines += [f"  passes, remove it: {e}" for e in self.stale]
        fallen = collections.Counter(f for c in self.cases for f in set(c.get("fallback", ())))
        if fallen:
            lines.append("fell back: " + ", ".join(f"{f} {n}" for f, n in fallen.most_common(25)))
        for cause, count, ops in self.causes()[:causes]:
            some = ", ".join(ops[:12]) + (f", ... ({len(ops)} operators)" if len(ops) > 12 else "")
            lines.append(f"{count:5}  {cause}\n       {some}")
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """What is committed: totals, and what was measured of each OpInfo entry and overload."""
        import torch

        totals: dict[str, dict[str, dict[str, int]]] = {}
        for (kind, dtype), counts in sorted(self.table().items()):
            totals.setdefault(kind, {})[dtype] = {o: counts[o] for o in OUTCOMES if counts[o]}
        entries: dict[str, dict[str, Any]] = {}
        overloads: dict[str, set[str]] = {}
        by_unit: dict[Unit, collections.Counter[str]] = {}
        for c in self.cases:
            by_unit.setdefault(_unit(c), collections.Counter())[c["outcome"]] += 1
            if c["outcome"] == "passed" and c["kind"] != "errors":
                for name in c.get("native", ()):
                    overloads.setdefault(name, set()).add(c["dtype"])
        for (op, dtype, kind), counts in sorted(by_unit.items()):
            done = sum(counts[o] for o in OUTCOMES if o != "skipped")
            if not done:
                continue
            entry = entries.setdefault(op, {})
            if counts["passed"] == done:
                entry.setdefault(kind, []).append(dtype)
            else:
                bad = {o: counts[o] for o in OUTCOMES if counts[o] and o != "skipped"}
                text = ", ".join(f"{n} {o}" for o, n in bad.items())
                entry.setdefault("partly", {})[f"{kind} {dtype}"] = text
        sys.path.insert(0, str(HERE))
        import opinfo_cases

        for name, entry in entries.items():
            info = opinfo_cases.OPS[name]
            if (info.aten_name or info.name) != name.split(".")[0]:
                entry["aten"] = info.aten_name or info.name
            entry["declared"] = [
                d for d in opinfo_cases.DTYPES if opinfo_cases.applies(name, d, "forward")
            ]
        return {
            "torch": str(torch.__version__),
            "wall_s": round(sum(r["wall_s"] for r in self.records if "wall_s" in r)),
            "totals": totals,
            "entries": {n: _packed(e) for n, e in entries.items()},
            "overloads": {n: " ".join(sorted(d)) for n, d in sorted(overloads.items())},
        }


def _packed(entry: dict[str, Any]) -> dict[str, Any]:
    return {k: " ".join(v) if isinstance(v, list) else v for k, v in entry.items()}


def _row(kind: str, dtype: str, counts: collections.Counter[str]) -> str:
    done = sum(counts[o] for o in OUTCOMES if o != "skipped")
    equal = counts["passed"] + counts["fallback"]
    share = f"{100 * equal / done:7.1f}%" if done else "       -"
    return f"{kind:14}{dtype:10}" + "".join(f"{counts[o]:10}" for o in OUTCOMES) + share


def _covers(entry: dict[str, str], case: dict[str, Any]) -> bool:
    return all(entry[k] in ("*", case[k]) for k in ("op", "dtype", "kind"))


def _cause(case: dict[str, Any]) -> str:
    """What groups a failure: its kind of mismatch, and an exception's text without its numbers."""
    cause = str(case.get("cause", ""))
    detail = str(case.get("detail", ""))
    if "raised" in cause or cause.startswith("no "):
        text = re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?", "#", detail.split(" | CPU")[0])
        text = re.sub(r"\[[#, ]*\]|\([#, ]*\)", "[#]", text)
        return f"{cause}: {text[:110]}"
    return cause


if __name__ == "__main__":
    sys.exit(main())
