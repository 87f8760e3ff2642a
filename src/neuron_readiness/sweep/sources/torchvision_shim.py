"""Lets libraries import a torchvision whose compiled part was built for another torch.

Defines the two operator schemas that torchvision's import asks for; they have no kernels. The plain
import is tried first, and this changes nothing where it works.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

_kept: list[Any] = []  # a library's registrations end with it


def install() -> None:
    import torch

    if _kept or importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except (RuntimeError, ImportError, OSError):
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)


def why_not(library: str) -> str | None:
    """Why a library of models cannot be imported here, or None."""
    install()
    try:
        importlib.import_module(library)
    except Exception as error:  # a broken installation raises what it likes
        return f"{library} cannot be imported: {type(error).__name__}: {error}"
    return None
