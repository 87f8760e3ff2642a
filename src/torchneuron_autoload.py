"""The ``torch.backends`` entry point: what ``import torch`` calls.

It stands outside the package on purpose: another distribution may own the import name
``torch_neuronx`` (and have replaced or shadowed our files), and loading an entry point inside the
package would then raise in the middle of ``import torch``. Everything else is in
``torch_neuronx._autoload``.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path


def autoload() -> None:
    """Registers the device ``neuron`` with torch, or warns (RuntimeWarning). Never raises."""
    try:
        reason = _shadowed()
        if reason is None:
            from torch_neuronx import _autoload

            _autoload.autoload()
            return
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    warn(f"torchneuron: device 'neuron' is not registered: {reason}")


def warn(message: str) -> None:
    """Warns once; under ``-W error`` writes to stderr instead of raising into ``import torch``."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(message, file=sys.stderr)


def _shadowed() -> str | None:
    """Why ``torch_neuronx`` is not our package, or None; imports nothing."""
    ours = Path(__file__).resolve().parent / "torch_neuronx"
    spec = importlib.util.find_spec("torch_neuronx")
    places = [Path(p).resolve() for p in (spec.submodule_search_locations or [])] if spec else []
    if ours in places[:1]:
        return None
    found = places[0] if places else "nothing"
    return (
        f"the import name torch_neuronx leads to {found}, expected {ours}. Uninstall the other "
        "distribution, or use torchneuron in an environment of its own."
    )
