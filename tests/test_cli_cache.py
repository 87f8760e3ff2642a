"""``torchneuron cache``: list, verify, prune."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_neuronx.compiler.cache import DiskCache

KEYS = ("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cache = DiskCache(tmp_path / "cache")
    for i, key in enumerate(KEYS):
        assert cache.put(key, {"name": key[0]}, bytes(1 << 20), "hlo")
        os.utime(cache.path(key, "hlo"), (1000 + i, 1000 + i))
    return tmp_path / "cache"


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_neuronx.cli", "cache", *arguments],
        env={**os.environ, "TORCH_NEURONX_CACHE_DIR": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_an_action_the_help_is_printed(root: Path) -> None:
    done = run(root)
    assert done.returncode == 0
    assert "usage: torchneuron cache" in done.stdout and "prune" in done.stdout
    assert run(root, "nothing").returncode == 2


def test_list_names_every_entry_and_the_total(root: Path) -> None:
    lines = run(root, "list", "--json").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == list(KEYS)
    text = run(root, "list").stdout
    assert "3 entries, 3.0 MiB" in text


def test_verify_removes_what_is_corrupt_and_says_so(root: Path) -> None:
    assert run(root, "verify").returncode == 0
    path = Path(DiskCache(root).path(KEYS[1], "hlo"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = run(root, "verify")
    assert done.returncode == 1
    assert "3 entries read, 1 removed" in done.stdout
    assert not path.exists()


def test_prune_keeps_the_most_recently_used(root: Path) -> None:
    done = run(root, "prune", "--max-mb", "1.5")
    assert done.returncode == 0
    cache = DiskCache(root)
    assert [cache.contains(k, "hlo") for k in KEYS] == [False, False, True]


def test_an_unusable_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file", "list")
    assert done.returncode == 1
    assert "no usable cache" in done.stderr
