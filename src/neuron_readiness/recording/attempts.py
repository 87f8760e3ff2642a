"""Requests that may raise: each failure is counted and told, and the others go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Fault, Finding, StageResult
from neuron_readiness.pilot import Case
from neuron_readiness.run import faults


class Attempts:
    """``attempts(case, work)``. A case that raised is not tried again in this stage."""

    def __init__(self, result: StageResult, context: Context, gate: str) -> None:
        self._result, self._pilot, self._gate = result, context.pilot_path, gate
        self._faults: dict[str, Fault] = {}  # by case
        self.count = 0
        self.failed: dict[str, str] = {}  # case -> what it raised, with its line

    def __call__(self, case: Case, work: Callable[[], Any]) -> bool:
        """Whether ``work`` came to its end; what it raises becomes a finding of the case."""
        if case.name in self.failed:
            return False
        self.count += 1
        try:
            work()
        except faults.raised() as error:
            place = faults.place(error, self._pilot)
            text = f"{type(error).__name__}: {str(error).strip()}"[:300] + f" ({place})"
            self.failed[case.name] = text
            self._faults[case.name] = faults.classify(error, self._pilot)
            finding = Finding(text, "gap", f"case {case.name}", gate=self._gate)
            self._result.findings.append(finding)
            return False
        return True

    def usable(self, cases: list[Case]) -> list[Case]:
        """Those that have not failed. Where none is left there is nothing to measure: the first
        error is a fault then."""
        left = [c for c in cases if c.name not in self.failed]
        if not left:
            self._result.faults += list(self._faults.values())[:1]
        return left

    def blame(self, cases: list[Case]) -> None:
        """What these cases raised is a fault, each error once."""
        for case in cases:
            fault = self._faults.get(case.name)
            if fault is not None and not any(fault.text in f.text for f in self._result.faults):
                text = f"case {case.name}: {self.failed[case.name]}"
                self._result.faults.append(dataclasses.replace(fault, text=text))
