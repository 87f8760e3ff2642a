"""Lets the tests run from a checkout, without the package installed and from any folder."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # for tests.lowering.harness
if importlib.util.find_spec("torch_neuronx") is None:
    sys.path.insert(0, str(ROOT / "src"))
