"""The device tier on the other CPU plugins (decision D1): our proof of portability.

The suite itself runs on the default plugin. Here a part of it runs again, in a process of its own,
on the two older ones, which read older StableHLO; the ``full`` tier repeats all of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import run_python
from torch_neuronx import plugins

TESTS = Path(__file__).parent
OTHERS = [name for name in plugins.CPU_PLUGINS if name != plugins.DEFAULT]
FILES = ("eager/test_views.py", "eager/test_optimizers.py", "eager/test_models.py")
APART = ("--ignore-glob=*/test_adaptive*.py",)  # refused there

pytestmark = pytest.mark.plugins


def run_on(plugin: str, *arguments: str) -> int:
    """Runs tests on a plugin; all must pass, none be skipped. Returns how many there were."""
    installed = plugins.discover()
    assert plugin in installed, f"{plugin} is not installed: pip install -r requirements/test.txt"
    code = (
        "import sys, pytest, torch; torch.neuron.init();"
        "from torch_neuronx import _C; print('on', _C.platform()['plugin_path']);"
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", *arguments],
        env={**os.environ, "TORCH_NEURONX_PJRT_PLUGIN": plugin},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert f"on {installed[plugin]}" in done.stdout
    passed = re.search(r"^(\d+) passed(?:, \d+ (?:deselected|warnings?))* in", done.stdout, re.M)
    assert passed, done.stdout[-2000:]
    return int(passed[1])


@pytest.mark.parametrize("plugin", OTHERS)
def test_part_of_the_device_tier(plugin: str) -> None:
    assert run_on(plugin, *FILES) >= 151


@pytest.mark.parametrize("plugin", OTHERS)
def test_adaptive_eager_is_refused_where_it_would_change_bits(plugin: str) -> None:
    code = """
        import torch, torch_neuronx, warnings
        x = torch.arange(8.0).to("neuron")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with torch_neuronx.eager_mode("adaptive"):
                for _ in range(8):
                    y = (x * 2 + 1) / 3
                    torch.neuron.synchronize()
        print(*[str(w.message).split(":")[0] for w in seen], sep="|")
        print(torch_neuronx.eager_stats()["recorded"], y[-1].item())
    """
    done = run_python(code, TORCH_NEURONX_PJRT_PLUGIN=plugin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["adaptive eager is off", "0 5.0"]
    at_start = run_python(code, TORCH_NEURONX_PJRT_PLUGIN=plugin, TORCH_NEURONX_EAGER="adaptive")
    assert "adaptive eager is off" in at_start.stderr
    assert at_start.stdout.splitlines() == ["", "0 5.0"]


@pytest.mark.full
@pytest.mark.parametrize("plugin", OTHERS)
def test_whole_device_tier(plugin: str) -> None:
    ran = run_on(plugin, "eager", "neuron", "runtime", "-m", "not full and not plugins", *APART)
    assert ran > 900
