"""Plugin discovery and choice: nothing is loaded here."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_neuronx import plugins


def announce(site: Path, group: str, name: str, library: str) -> Path:
    """A distribution in ``site`` that announces a plugin whose library is ``library``."""
    path = site / library
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    folder = site / f"{name}_dist-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}_module\n")
    (folder / "RECORD").write_text(f"{library},,\n{name}_module/helper.so,,\n")
    return path


def test_default_is_the_cpu_plugin_of_lammps_jax_pjrt_cpu() -> None:
    path = plugins.resolve(None)
    assert path == plugins.resolve("") == plugins.resolve(plugins.DEFAULT)
    assert path.parent.name == "lammps_jax_pjrt_cpu"
    assert next(iter(plugins.discover())) == plugins.DEFAULT


def test_discovery_lists_the_installed_cpu_plugins() -> None:
    found = plugins.discover()
    assert {"fastatomstruct_xla_cpu", "xla_cpu_pjrt"} <= found.keys()
    assert all(path.is_file() for path in found.values())
    assert not set(plugins.accelerators(found)) & plugins.CPU_PLUGINS.keys()


@pytest.mark.parametrize("group", plugins.ENTRY_POINT_GROUPS)
def test_announced_accelerator_is_listed_and_never_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    path = announce(tmp_path, group, "brand", "brand_module/lib/pjrt_plugin_brand.so")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = plugins.discover()
    assert found["brand"] == path
    assert "brand" in plugins.accelerators(found)
    assert plugins.resolve("brand") == path
    assert plugins.resolve(None).parent.name == "lammps_jax_pjrt_cpu"


def test_unknown_name_lists_what_is_installed() -> None:
    with pytest.raises(plugins.PluginError, match=r"'tpu9'; installed: lammps_jax_pjrt_cpu"):
        plugins.resolve("tpu9")


def test_missing_file_and_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(plugins.PluginError, match=r"at .*/none\.so, which does not exist"):
        plugins.resolve(str(tmp_path / "none.so"))
    with pytest.raises(plugins.PluginError, match="which is a folder"):
        plugins.resolve(str(tmp_path))


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.so").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert plugins.resolve("mine.so") == tmp_path / "mine.so"


def test_missing_default_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {plugins.DEFAULT: ("no_such_parent.no_such_module", "x.so")}
    monkeypatch.setattr(plugins, "CPU_PLUGINS", absent)
    with pytest.raises(plugins.PluginError, match="pip install lammps-jax-pjrt-cpu"):
        plugins.resolve(None)
