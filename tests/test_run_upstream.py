"""tools/run_upstream.py on a small checkout in upstream's style: one outcome for each test."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parent.parent

DEVICE_FILE = """
    import os, signal, unittest
    import torch
    from torch.testing._internal.common_device_type import (
        instantiate_device_type_tests, onlyCUDA, dtypes,
    )
    from torch.testing._internal.common_utils import TestCase, run_tests

    class TestThings(TestCase):
        @dtypes(torch.float32, torch.int64)
        def test_add(self, device, dtype):
            x = torch.ones(3, device=device, dtype=dtype)
            assert x.device.type == "neuron"
            self.assertEqual(x + x, torch.full((3,), 2, dtype=dtype, device=device))

        def test_differs(self, device):
            self.assertEqual(torch.ones(3, device=device), torch.zeros(3, device=device))

        @onlyCUDA
        def test_of_another_device(self, device):
            pass

        @unittest.skip("not today")
        def test_skipped(self, device):
            pass

        @unittest.expectedFailure
        def test_expected(self, device):
            raise RuntimeError("as known")

        def test_crash(self, device):
            os.kill(os.getpid(), signal.SIGSEGV)

        def test_hang(self, device):
            torch.ones(1, device=device)
            while True:
                signal.pause()

        def test_interrupts(self, device):
            raise KeyboardInterrupt

        def test_leaves(self, device):
            os._exit(0)

        def test_left_out(self, device):
            raise AssertionError("it ran")

        def test_zz_last(self, device):
            pass

    class TestPlain(TestCase):
        def test_on_the_host(self):
            pass

    instantiate_device_type_tests(TestThings, globals())
    if __name__ == "__main__":
        run_tests()
"""


FILES = ("test_things.py", "test_broken.py", "test_dies.py", "test_plain.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    source = tmp_path / "pytorch"
    (source / "test").mkdir(parents=True)
    (source / "torch").mkdir()
    (source / "torch" / "__init__.py").write_text("raise ImportError('the sources, not torch')\n")
    (source / "version.txt").write_text("2.13.0a0\n")
    (source / "test" / "test_things.py").write_text(textwrap.dedent(DEVICE_FILE))
    (source / "test" / "test_broken.py").write_text("import no_such_helper_of_upstream\n")
    (source / "test" / "test_dies.py").write_text("import os\nos._exit(0)\n")
    (source / "test" / "test_plain.py").write_text("def test_on_the_host(): pass\n")
    return source


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / "run_upstream.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
    )


def outcomes(results: Path) -> dict[str, str]:
    rows = pq.read_table(results / "outcomes.parquet").to_pylist()
    return {row["test"].rpartition("::")[2]: row["outcome"] for row in rows}


@pytest.mark.full  # ten processes that import torch's test suite
def test_one_outcome_for_each_test(checkout: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    exclude = tmp_path / "exclude.json"
    exclude.write_text(json.dumps([{"test": "*::test_left_out_*", "reason": "needs a printer"}]))
    options = ("--pytorch-src", checkout, "--results", results, "--exclude", exclude)
    done = run(*options, "--timeout", "20", *FILES)
    assert done.returncode == 1, done.stderr
    assert "test_plain.py: no test that is made for the device" in done.stderr
    assert outcomes(results) == {
        "test_add_neuron_float32": "passed",
        "test_add_neuron_int64": "passed",
        "test_crash_neuron": "crashed",
        "test_differs_neuron": "failed",
        "test_expected_neuron": "skipped by upstream",
        "test_hang_neuron": "timed out",
        "test_interrupts_neuron": "crashed",
        "test_leaves_neuron": "crashed",
        "test_left_out_neuron": "skipped by us",
        "test_of_another_device_neuron": "skipped by upstream",
        "test_skipped_neuron": "skipped by upstream",
        "test_zz_last_neuron": "passed",
        "test_broken.py": "failed",
        "test_dies.py": "failed",
    }
    assert "while it was imported: the process ended with status #" in done.stdout
    assert "SIGSEGV" in done.stdout and "no answer in # s" in done.stdout
    assert "skipped by us: needs a printer" in done.stdout
    assert "no_such_helper_of_upstream" in done.stdout
    all_line = next(line for line in done.stdout.splitlines() if line.startswith("all"))
    assert all_line.split() == ["all", "14", "3", "3", "3", "1", "3", "1", "21.4%"]

    # What has an outcome is not run again; what lost its line is.
    journal = results / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines() if "test_zz_last" not in line]
    journal.write_text("\n".join(lines) + '\n{"file": "test_thi')  # interrupted
    (checkout / "test" / "test_things.py").write_text(
        textwrap.dedent(DEVICE_FILE).replace(
            "def test_add(", "def test_add(self, *a): 1 / 0\n    def f("
        )
    )
    again = run(*options, "--timeout", "20", "test_things.py")
    assert again.returncode == 1
    assert outcomes(results)["test_zz_last_neuron"] == "passed"
    assert outcomes(results)["test_add_neuron_float32"] == "passed"


def test_what_is_asked_must_be_there(checkout: Path, tmp_path: Path) -> None:
    done = run("--pytorch-src", checkout, "--results", tmp_path / "r", "test_gone.py")
    assert done.returncode == 2
    assert "test_gone.py: no such file in" in done.stderr
    assert "expected --pytorch-src DIR and test files" in run("--results", tmp_path).stderr


def test_causes_are_ranked_without_numbers(tmp_path: Path) -> None:
    rows = [
        {"file": "a.py", "test": f"a::{i}", "outcome": "failed", "reason": f"shape [{i}, 2]: bad"}
        for i in range(3)
    ]
    rows.append({"file": "a.py", "test": "a::9", "outcome": "crashed", "reason": "SIGABRT"})
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    done = run("--report", "--results", tmp_path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[3] == "     3  failed: shape [#]: bad"
    assert lines[5] == "     1  crashed: SIGABRT"
