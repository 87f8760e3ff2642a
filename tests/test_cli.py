"""``torchneuron info``, each call in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_neuronx
from torch_neuronx import cli

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


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"torchneuron {torch_neuronx.__version__}\n"


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


def test_what_is_known_without_a_device() -> None:
    facts = json.loads(info("--json").stdout)
    assert facts["system"]["python"] and facts["system"]["os"] and facts["system"]["cpu"]
    assert facts["versions"]["torchneuron"] and facts["versions"]["jaxlib"]
    assert facts["plugins"]["chosen name"] == "lammps_jax_pjrt_cpu"
    assert facts["plugins"]["chosen version"] == "0.11.2"
    assert facts["plugins"]["PJRT version"] == "0.115"
    assert facts["target"]["profile"] == "trn2" and facts["target"]["devices"] == 1
    assert facts["target"]["HBM of a device, bytes"] == 24 << 30
    assert Path(facts["package"]["torch_neuronx"]).name == "torch_neuronx"
    assert len(facts["package"]["provided by"]) == 1


def test_the_state_of_the_cache(tmp_path: Path) -> None:
    def state(**environ: str) -> dict[str, object]:
        cache: dict[str, object] = json.loads(info("--json", **environ).stdout)["cache"]
        return cache

    root = tmp_path / "cache"
    assert state(TORCH_NEURONX_CACHE_DIR=str(root)) == {"root": str(root), "state": "not made yet"}
    assert not root.exists()
    root.mkdir(mode=0o700)
    assert state(TORCH_NEURONX_CACHE_DIR=str(root))["entries"] == 0
    root.chmod(0o777)
    assert "others could have written" in str(state(TORCH_NEURONX_CACHE_DIR=str(root))["state"])


def test_packages_of_the_same_lineage_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "torch_xla-2.9.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-xla\nVersion: 2.9.0\n")
    done = info("--json", PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(tmp_path)]))
    package = json.loads(done.stdout)["package"]
    assert package["other Neuron and XLA packages"] == {"torch-xla": "2.9.0"}


def test_misspelt_prefixes_are_flagged() -> None:
    facts = json.loads(info("--json", TORCH_NEURON_TARGET="trn3", MY_NEURONS="7").stdout)
    assert facts["environment"]["problems"] == [
        "TORCH_NEURON_TARGET: unknown variable, it has no effect; "
        "did you mean TORCH_NEURONX_TARGET?"
    ]
