"""``torchneuron info``, each call in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


def info(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_NEURONX", "NEURON_"))}
    return subprocess.run(
        [sys.executable, "-m", "torch_neuronx.cli", "info", *arguments],
        env={**clean, "PYTHONPATH": str(ROOT / "src"), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_json_has_versions_registration_plugins_and_environment() -> None:
    done = info("--json", TORCH_NEURONX_FALLBACK="error", TORCH_NEURONX_FALLBAK="error")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["versions"]["torch"] == str(torch.__version__)
    assert facts["registration"]["state"] in ("registered", "refused", "failed")
    assert facts["plugins"]["chosen"].endswith("pjrt_c_api_cpu_plugin.so")
    assert facts["environment"]["set"]["TORCH_NEURONX_FALLBACK"] == "error"
    assert facts["environment"]["problems"] == [
        "TORCH_NEURONX_FALLBAK: unknown variable, it has no effect; "
        "did you mean TORCH_NEURONX_FALLBACK?"
    ]
    assert "device" not in facts


def test_missing_plugin_is_reported_not_raised() -> None:
    done = info(TORCH_NEURONX_PJRT_PLUGIN="no-such-plugin")
    assert done.returncode == 0, done.stderr
    assert "error: no PJRT plugin is called 'no-such-plugin'" in done.stdout


def test_refused_registration_is_explained(tmp_path: Path) -> None:
    (tmp_path / "nki-9.9.dist-info").mkdir()
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    done = info(PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "state: refused" in done.stdout
    assert "distribution 'nki'" in done.stdout


def test_unused_accelerator_is_mentioned(tmp_path: Path) -> None:
    (tmp_path / "libbrand_pjrt.so").write_bytes(b"")
    folder = tmp_path / "brand-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: brand\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[jax_plugins]\nbrand = brand_module\n")
    (folder / "RECORD").write_text("libbrand_pjrt.so,,\n")
    done = info(PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(tmp_path)]))
    assert "plugin 'brand' is installed and not chosen" in done.stdout
