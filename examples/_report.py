"""What both examples measure and print: time on a device, operators, compilations, progress.

Only this file knows that a device may be `neuron`; the models are plain PyTorch.
"""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def synchronize(device: torch.device) -> None:
    """Waits until everything that was launched on the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def timed(device: torch.device, function: Callable[[], Any]) -> tuple[Any, float]:
    """The function's result and its seconds, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    result = function()
    synchronize(device)
    return result, time.perf_counter() - start


def describe_plugin(device: torch.device) -> dict[str, str]:
    """Name, version and platform of what runs the device's programs."""
    if device.type == "cpu":
        return {"plugin": "none (PyTorch CPU)", "plugin_version": str(torch.__version__)}
    properties = torch.get_device_module(device).get_device_properties(device)
    names = ("plugin", "plugin_version", "platform", "target")
    return {name: str(getattr(properties, name, "unknown")) for name in names}


class Observer:
    """Operators and compilations of the device between ``start`` and ``stop``.

    On a device other than `neuron` there is nothing to observe and every list is empty.
    """

    def __init__(self, device: torch.device) -> None:
        # A device that did not register has failed before: torch.device("neuron") raises.
        is_neuron = device.type == "neuron"
        self._backend = importlib.import_module("torch_neuronx") if is_neuron else None
        self._compiled_before = -1

    def start(self) -> None:
        if self._backend is not None:
            self._backend.clear_op_tracking()
            events = self._backend.compile_events()
            self._compiled_before = events[-1]["number"] if events else -1

    def stop(self) -> dict[str, Any]:
        """``native`` and ``fallback`` operators, ``compile_events`` and their totals."""
        if self._backend is None:
            return {"native": [], "fallback": [], "compile_events": [], "compile": {}}
        events = self._backend.compile_events(self._compiled_before)
        return {
            "native": sorted(map(str, self._backend.get_executed_ops())),
            "fallback": sorted(map(str, self._backend.get_fallback_ops())),
            "compile_events": events,
            "compile": summarize(events),
        }


def summarize(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Count by source and summed seconds of compile events."""
    sources: dict[str, int] = {}
    for event in events:
        source = str(event.get("source", "unknown"))
        sources[source] = sources.get(source, 0) + 1
    seconds = {
        key: round(sum(float(event.get(key) or 0) for event in events), 4)
        for key in ("lower_s", "compile_s", "load_s")
    }
    return {"count": len(events), "by_source": sources, **seconds}


UNEVEN = 1.5  # a p90 this many times the p10 means that something disturbed the run


def steady(seconds: list[float]) -> dict[str, Any]:
    """What a step takes once warm: p10, median and p90 of every step but the first, their sum.

    All of them, not a calm part: on a shared machine PyTorch's CPU threads wait actively for each
    other, and steps then fall into two groups that one median would hide. ``uneven`` says that the
    times should not be compared.
    """
    warm = sorted(seconds[1:] or seconds)
    p10, median, p90 = (warm[int(q * (len(warm) - 1))] for q in (0.1, 0.5, 0.9))
    return {
        "p10_s": p10,
        "median_s": median,
        "p90_s": p90,
        "sum_s": sum(seconds),
        "uneven": p90 > UNEVEN * p10,
    }


class Progress:
    """A bar on a terminal, a plain line every tenth of the way otherwise (stderr)."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total = label, total
        self._terminal = sys.stderr.isatty()
        self._every = max(1, total // 10)

    def update(self, done: int, text: str) -> None:
        """``done`` of the total is done; ``text`` is shown beside it."""
        if self._terminal:
            full = 30 * done // self._total
            bar = "#" * full + "." * (30 - full)
            end = "\n" if done == self._total else ""
            line = f"\r{self._label:>9} [{bar}] {done}/{self._total} {text}\033[K"
            print(line, end=end, file=sys.stderr, flush=True)
        elif done == self._total or done % self._every == 0 or done == 1:
            print(f"{self._label:>9} {done}/{self._total} {text}", file=sys.stderr, flush=True)


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """Writes ``facts``, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"wrote {path}")


def print_operators(mode: str, facts: dict[str, Any]) -> None:
    """Native and fallen-back operators and the compilations of one mode."""
    compiled = facts["compile"]
    if not compiled:
        return
    print(
        f"{mode}: {len(facts['native'])} operators native, {len(facts['fallback'])} fell back; "
        f"{compiled['count']} compile events {compiled['by_source']}: "
        f"lowering {compiled['lower_s']:.2f} s, compiling {compiled['compile_s']:.2f} s, "
        f"loading {compiled['load_s']:.2f} s"
    )
    print_wrapped("  native:", facts["native"])
    print_wrapped(
        "  compile events, lowering + compiling + loading in ms:",
        [
            f"{e['name']} ({e['source']} {1e3 * e['lower_s']:.0f}+{1e3 * e['compile_s']:.0f}"
            f"+{1e3 * e['load_s']:.0f})"
            for e in facts["compile_events"]
        ],
    )
    for name in facts["fallback"]:
        print(f"  fell back to the CPU: {name}")


def print_wrapped(title: str, items: list[str]) -> None:
    """A title, then the items, as many a line as fit."""
    print(title)
    text = textwrap.wrap(", ".join(items), 110, break_long_words=False, break_on_hyphens=False)
    print("\n".join(f"    {line}" for line in text))
