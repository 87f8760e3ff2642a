"""Lets the tests run from a checkout without the package installed."""

import importlib.util
import pathlib
import sys

if importlib.util.find_spec("torch_neuronx") is None:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "src"))
