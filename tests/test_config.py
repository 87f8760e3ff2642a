"""Options are declared once, read once or each time, and wrong values say so."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from torch_neuronx import config

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_frozen", {})
    for name in config.OPTIONS:
        monkeypatch.delenv(name, raising=False)


def test_defaults_have_the_declared_kind() -> None:
    types = {"bool": bool, "int": int, "float": float, "str": str, "path": str, "choice": str}
    for option in config.OPTIONS.values():
        value = config.get(option.name)
        assert value is None or type(value) is types[option.kind], option.name
        if option.kind == "choice":
            assert value in option.choices


def test_value_is_frozen_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_TARGET", "host")
    assert config.get("TORCH_NEURONX_TARGET") == "host"
    monkeypatch.setenv("TORCH_NEURONX_TARGET", "trn3")
    assert config.get("TORCH_NEURONX_TARGET") == "host"


def test_live_value_is_read_at_every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.get("TORCH_NEURONX_DYNAMIC") == "accept"
    monkeypatch.setenv("TORCH_NEURONX_DYNAMIC", "reject")
    assert config.get("TORCH_NEURONX_DYNAMIC") == "reject"
    with config.override({"TORCH_NEURONX_DYNAMIC": "accept"}):
        assert config.get("TORCH_NEURONX_DYNAMIC") == "accept"


def test_undeclared_name_raises_and_suggests() -> None:
    with pytest.raises(KeyError, match="did you mean TORCH_NEURONX_CACHE_DIR"):
        config.get("TORCH_NEURONX_CACHEDIR")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("TORCH_NEURONX_TARGET", "trn9", "one of trn2, trn3, host"),
        ("TORCH_NEURONX_NUM_DEVICES", "0", "an integer of at least 1"),
        ("TORCH_NEURONX_NUM_DEVICES", "two", "an integer of at least 1"),
        ("TORCH_NEURONX_LOG_LEVEL", "4", "an integer from 0 to 3"),
        ("NEURON_LAUNCH_BLOCKING", "maybe", "0 or 1"),
        ("TORCH_NEURONX_LOWERING_IDLE_S", "nan", "a number of at least"),
    ],
)
def test_bad_value_names_variable_expectation_and_value(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(config.ConfigError) as caught:
        config.get(name)
    message = str(caught.value)
    assert name in message and expected in message and repr(text) in message


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("off", False)])
def test_booleans(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("NEURON_LAUNCH_BLOCKING", text)
    assert config.get("NEURON_LAUNCH_BLOCKING") is value


def test_empty_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_TARGET", "")
    assert config.get("TORCH_NEURONX_TARGET") == "trn2"


def test_alias_of_the_cache_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    assert config.get("TORCH_NEURONX_CACHE_DIR") == str(tmp_path)
    assert config.get("TORCH_NEURONX_NEFF_CACHE_DIR") == str(tmp_path)


def test_alias_that_differs_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "a"))
    monkeypatch.setenv("TORCH_NEURONX_CACHE_DIR", str(tmp_path / "b"))
    with pytest.raises(config.ConfigError, match="Unset one of them"):
        config.get("TORCH_NEURONX_CACHE_DIR")


def test_cache_directory_follows_xdg(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert config.get("TORCH_NEURONX_CACHE_DIR") == str(tmp_path / "torchneuron")


def test_relative_xdg_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.get("TORCH_NEURONX_CACHE_DIR") == str(tmp_path / ".cache" / "torchneuron")


def test_thread_and_device_counts_follow_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert config.get("TORCH_NEURONX_CPU_THREADS") == 3
    assert config.get("TORCH_NEURONX_NUM_DEVICES") == 4


def test_override_is_scoped_and_checked() -> None:
    with config.override({"TORCH_NEURONX_FALLBACK": "error"}):
        assert config.get("TORCH_NEURONX_FALLBACK") == "error"
    assert config.get("TORCH_NEURONX_FALLBACK") == "warn"
    with (
        pytest.raises(config.ConfigError),
        config.override({"TORCH_NEURONX_FALLBACK": "never"}),
    ):
        pass


def test_keyed_options() -> None:
    assert [name for name, _ in config.keyed()] == [
        "TORCH_NEURONX_TARGET",
        "TORCH_NEURONX_FLOAT64",
    ]


def test_unknown_variables_and_closest_names() -> None:
    environ = {
        "TORCH_NEURONX_CACHE_DIRS": "x",
        "NEURON_LAUNCH_BLOCKNG": "1",
        "NKI_ZZZ": "1",
        "TORCH_NEURONX_TARGET": "host",
        "PATH": "/bin",
    }
    assert config.unknown_variables(environ) == [
        config.Unknown("NEURON_LAUNCH_BLOCKNG", "NEURON_LAUNCH_BLOCKING"),
        config.Unknown("NKI_ZZZ", None),
        config.Unknown("TORCH_NEURONX_CACHE_DIRS", "TORCH_NEURONX_CACHE_DIR"),
    ]


def test_problems_lists_bad_values_and_unknown_names() -> None:
    texts = config.problems({"TORCH_NEURONX_TARGET": "x", "TORCH_NEURONX_TARGT": "host"})
    assert len(texts) == 2
    assert texts[0].startswith("TORCH_NEURONX_TARGET: expected one of")
    assert texts[1].endswith("did you mean TORCH_NEURONX_TARGET?")


def test_documentation_is_fresh() -> None:
    text = (ROOT / "docs" / "environment.md").read_text()
    assert text == config.markdown(), "run: python -m torch_neuronx.config > docs/environment.md"
    for name in config.OPTIONS:
        assert f"`{name}`" in text


def test_every_variable_that_the_sources_read_is_declared() -> None:
    calls, prefixes = r"(?:config\.get|environ\.get|getenv)", r"(?:TORCH_NEURONX|NEURON|NKI)"
    reads = re.compile(rf'{calls}\(\s*"({prefixes}_\w+)')
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("csrc/**/*.cpp"), *ROOT.glob("csrc/**/*.h")]
    found = {name for path in sources for name in reads.findall(path.read_text())}
    assert "TORCH_NEURONX_CACHE_DIR" in found
    assert found <= set(config.OPTIONS), found - set(config.OPTIONS)


def test_module_imports_neither_torch_nor_jax() -> None:
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('config', {config.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['config'] = module\n"
        "spec.loader.exec_module(module)\n"
        "module.get('TORCH_NEURONX_CACHE_DIR')\n"
        "heavy = {'torch', 'jax', 'numpy', 'json', 'logging', 'difflib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, env=dict(os.environ))
