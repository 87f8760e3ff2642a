"""The pytest plug-in of tools/run_upstream.py, loaded in the process that runs one test file.

It writes a JSON line when a test begins and one when it ends, so that whoever reads them knows
which test a process died in. ``UPSTREAM_PLAN`` is a JSON file: where to write, what to leave out.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

_DEVICE_WORDS = ("neuron", "privateuse1")


class Journal:
    """Collects, leaves out and reports as the plan says."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.done = set(plan["done"])
        self.file = open(plan["journal"], "a")  # noqa: SIM115  # open as long as the process lives
        self.reports: dict[str, dict[str, Any]] = {}
        self.started = 0.0

    def say(self, **record: Any) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def pytest_collection_modifyitems(self, items: list[Any], config: Any) -> None:
        """Keeps tests of the device, or all, that have no outcome yet."""
        chosen = [i for i in items if self.plan["all"] or _of_device(i.nodeid)]
        if self.plan["collect"]:
            self.say(collected=[i.nodeid for i in chosen])
            chosen = []
        items[:] = [i for i in chosen if i.nodeid not in self.done]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.say(broken=report.nodeid, detail=_last_line(report.longrepr), text=_text(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.started = time.monotonic()
        self.say(begin=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """The first phase that did not pass decides."""
        record = self.reports.setdefault(report.nodeid, {"outcome": "passed"})
        if record["outcome"] != "passed":
            return
        if report.skipped:
            expected = getattr(report, "wasxfail", None)
            reason = f"expected failure: {expected}" if expected is not None else _reason(report)
            record.update(outcome="skipped by upstream", reason=reason)
        elif report.failed:
            record.update(
                outcome="failed", reason=_last_line(report.longrepr), text=_text(report)[-4000:]
            )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.monotonic() - self.started, 3)
        self.say(end=nodeid, seconds=seconds, **self.reports.pop(nodeid, {"outcome": "passed"}))


def _of_device(nodeid: str) -> bool:
    return any(word in nodeid.lower().rpartition("/")[2] for word in _DEVICE_WORDS)


def _reason(report: Any) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return _last_line(report.longrepr)


def _text(report: Any) -> str:
    return str(report.longrepr)


def _last_line(longrepr: Any) -> str:
    """The exception's own words."""
    crash = getattr(longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(longrepr)
    lines = [line for line in text.splitlines() if line.strip()]
    if crash is None and lines:
        return lines[-1].removeprefix("E").strip()
    return lines[0].strip() if lines else ""


def pytest_configure(config: Any) -> None:
    path = os.environ.get("UPSTREAM_PLAN")
    if path:
        with open(path) as file:
            config.pluginmanager.register(Journal(json.load(file)), "upstream-journal")
