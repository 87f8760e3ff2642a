"""The switch TORCH_NEURONX_HOST_KERNELS (decision D19). Its kernels are tested by cases.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import output_of, run_python
from torch_neuronx import _C, config
from torch_neuronx.compiler import host_kernels

HERE = Path(__file__).parent
ON = {"TORCH_NEURONX_HOST_KERNELS": "1"}
OLDEST = "xla_cpu_pjrt"  # takes handlers and does not find them when it compiles

DEPTHWISE = """
import json, warnings
import torch
from torch.nn import functional as F
import torch_neuronx

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    torch.manual_seed(0)
    x, w = torch.randn(2, 6, 9, 9), torch.randn(6, 1, 3, 3)
    got = F.conv2d(x.to("neuron"), w.to("neuron"), groups=6).cpu()
torch.testing.assert_close(got, F.conv2d(x, w, groups=6), rtol=1e-5, atol=1e-5)
print(json.dumps({
    "events": [(e["source"], e["handlers"]) for e in torch_neuronx.compile_events()
               if "convolution" in e["name"]],
    "warnings": [str(w.message) for w in seen if "host kernels" in str(w.message)],
    "state": torch.neuron.get_device_properties().host_kernels,
}))
"""


def test_cases() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "cases.py")],
        env={**os.environ, **ON},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"^(\d+) passed(?:, \d+ warnings?)? in", done.stdout, re.MULTILINE)
    assert passed and int(passed[1]) >= 79, done.stdout[-2000:]


def test_an_executable_with_host_kernels_is_not_loaded_without_the_switch(tmp_path: Path) -> None:
    cache = {"TORCH_NEURONX_CACHE_DIR": str(tmp_path)}

    def run(switch: str) -> dict[str, object]:
        text = output_of(DEPTHWISE, TORCH_NEURONX_HOST_KERNELS=switch, **cache)
        return dict(json.loads(text.splitlines()[-1]))

    first, without, again = run("1"), run("0"), run("1")
    handlers = ["torchneuron.convolution"]
    assert first["events"] == [["compiled", handlers]]
    assert without["events"] == [["compiled", []]] and without["state"] == "off"
    assert again["events"] == [["l1", handlers]]
    assert first["warnings"] == without["warnings"] == again["warnings"] == []


@pytest.mark.plugins
def test_a_plugin_that_fails_at_compile_is_found_out_and_runs_portable_code() -> None:
    done = run_python(DEPTHWISE, TORCH_NEURONX_PJRT_PLUGIN=OLDEST, **ON)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert [handlers for _, handlers in facts["events"]] == [[]]
    (warning,) = facts["warnings"]
    assert "failed at a program that calls one" in warning and OLDEST in warning
    assert facts["state"].startswith("unavailable: ")


def test_an_unavailable_switch_warns_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_kernels, "_probed", None)
    monkeypatch.setattr(_C, "enable_host_kernels", lambda options, threads: "INTERNAL: broken")
    with config.override(ON):
        with pytest.warns(RuntimeWarning, match="host kernels are unavailable.*INTERNAL: broken"):
            assert host_kernels.enabled() == ()
        assert host_kernels.describe() == "unavailable: INTERNAL: broken"


def test_a_plugin_for_something_else_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_kernels, "_probed", None)
    monkeypatch.setattr(_C, "platform", lambda: {"platform_name": "brand"})
    monkeypatch.setattr(_C, "enable_host_kernels", lambda *_: pytest.fail("it was probed"))
    with config.override(ON), pytest.warns(RuntimeWarning, match="platform is brand"):
        assert host_kernels.enabled() == ()


def test_off_by_default() -> None:
    assert config.OPTIONS["TORCH_NEURONX_HOST_KERNELS"].default is False
