"""Lets the tests run from a checkout without the package installed; shared pieces."""

import importlib.util
import pathlib
import sys

import pytest

if importlib.util.find_spec("torch_neuronx") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "src"))


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where a cache may be made; it does not exist yet."""
    return tmp_path / "cache"
