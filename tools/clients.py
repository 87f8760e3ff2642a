"""The client libraries that were run, their versions and outcomes, as ``docs/clients.md``.

    python tools/clients.py run [PYTEST ARGUMENTS]   # runs tests/clients, notes outcomes
    python tools/clients.py page > docs/clients.md   # the page of the notes

``run`` keeps what it saw in ``docs/clients.json`` and replaces only the test functions that it ran
again, so that one client can be repeated, or a part of it: ``run tests/clients/test_peft.py -k
compiled``. A test module names its libraries in ``CLIENTS``.
"""

from __future__ import annotations

import collections
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / "docs" / "clients.json"
TESTS = ROOT / "tests" / "clients"
OUTCOMES = ("passed", "failed", "skipped")
HEAD = """\
# Client libraries

Libraries that nobody here wrote, unmodified and offline, on tiny models with random weights (real
weights for sentence-transformers); results are compared with the CPU's, eager and compiled, and no
operator may run on the CPU. Written by `python tools/clients.py` from the notes of a run, never by
hand. The libraries come with `pip install 'torchneuron[clients]'`; timm and torchvision as
`requirements/vision.txt` says.

| Libraries | What runs | Passed | Failed | Skipped |
|---|---|---|---|---|
"""
FOOT = """
What the libraries need beside a device of PyTorch's:

- Lightning: `import torch_neuronx.integrations.lightning`, then `Trainer(accelerator="neuron",
  strategy="neuron")`, and `Fabric` likewise. Its own default for a device that it does not know is
  the CPU; the accelerator refuses it. The distribution `pytorch_lightning` has classes and
  registries of its own: `import torch_neuronx.integrations.pytorch_lightning`.
- `transformers.pipeline` and `SentenceTransformer` take the CPU where no device is given: pass
  `device="neuron"`, or import them from `torch_neuronx.integrations.transformers` and
  `torch_neuronx.integrations.sentence_transformers`.
- accelerate: `device_map="auto"` means the CPU, since its table of memory has no entry for
  the device; pass `device_map="neuron"`. `mixed_precision="fp16"` is refused by accelerate itself;
  use bf16.
- safetensors: files are loaded onto the device with `torch_neuronx.integrations.safetensors`.
- `flex_attention`: `torch_neuronx.integrations.flex_attention`.
- timm: pass the device's name to `NativeScaler`, whose default is CUDA.

Importing an integration patches nothing. It warns when another version is installed than was
tested, and raises an `ImportError` that names the extra when the library is missing.
"""


class Notes:
    """A pytest plug-in: the outcome of every test, by file and function."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self.functions: dict[str, set[str]] = {}  # of each file, those not run included

    def pytest_itemcollected(self, item: Any) -> None:
        self.functions.setdefault(item.path.name, set()).add(item.name.partition("[")[0])

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            names = getattr(item.module, "CLIENTS", ())
            versions = {name: _version(name) for name in names}
            about = (item.module.__doc__ or "").partition(": ")[2] or item.module.__doc__ or ""
            self.files.setdefault(
                item.path.name,
                {
                    "clients": versions,
                    "about": " ".join(about.split("\n\n")[0].split()),
                    "outcomes": {},
                },
            )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        file, _, name = report.nodeid.partition("::")
        function = name.partition("[")[0]
        counts = self.files[Path(file).name]["outcomes"].setdefault(function, {})
        counts[report.outcome] = counts.get(report.outcome, 0) + 1


def _version(name: str) -> str:
    """A distribution's version, those beside the environment included; "" if not installed."""
    folders = [*sys.path, str(Path(sys.prefix) / "vision")]
    found = next(iter(importlib.metadata.distributions(name=name, path=folders)), None)
    return found.version if found else ""


def run(arguments: list[str]) -> int:
    """Runs tests and merges their outcomes into the notes; pytest's exit status."""
    import pytest

    notes = Notes()
    paths = [] if any("tests/clients" in a for a in arguments) else [str(ROOT / "tests/clients")]
    status = pytest.main(["-q", "-m", "clients", *arguments, *paths], plugins=[notes])
    known = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    merged = {**known}
    for file, note in notes.files.items():
        if note["outcomes"]:
            before = known.get(file, {}).get("outcomes", {})
            kept = {f: counts for f, counts in before.items() if f in notes.functions[file]}
            merged[file] = {**note, "outcomes": {**kept, **note["outcomes"]}}
    NOTES.write_text(json.dumps(dict(sorted(merged.items())), indent=1, sort_keys=True) + "\n")
    return int(status)


def page() -> str:
    """``docs/clients.md``."""
    lines, failed = [], []
    total: collections.Counter[str] = collections.Counter()
    notes = json.loads(NOTES.read_text())
    for file, note in sorted(notes.items()):
        counts: collections.Counter[str] = collections.Counter()
        for function, outcomes in sorted(note["outcomes"].items()):
            counts.update(outcomes)
            if outcomes.get("failed"):
                failed.append(f"- `{file}::{function}`: {outcomes['failed']} failed")
        total.update(counts)
        names = ", ".join(f"{n} {v}".strip() for n, v in note["clients"].items())
        numbers = " | ".join(str(counts[o]) for o in OUTCOMES)
        link = f"[{file}](../tests/clients/{file})"
        lines.append(f"| {names} | {note['about']} ({link}) | {numbers} |")
    lines.append("| all | | " + " | ".join(str(total[o]) for o in OUTCOMES) + " |")
    missing = sorted({p.name for p in TESTS.glob("test_*.py")} - notes.keys())
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        lines.append(f"\nNo run of these is noted yet: {names}.")
    trouble = "\nFailed:\n\n" + "\n".join(failed) + "\n" if failed else ""
    return HEAD + "\n".join(lines) + "\n" + trouble + FOOT


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:
        return run(arguments[1:])
    if arguments == ["page"]:
        print(page(), end="")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
