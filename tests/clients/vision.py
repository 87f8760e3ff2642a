"""timm with a torchvision whose compiled part may fit another torch (requirements/vision.txt)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

_kept: list[torch.library.Library] = []  # a library's schemas end with it


def timm() -> Any:
    """timm; the test is skipped where it is not installed.

    torchvision's import asks for two operators of its compiled part. Where that does not load they
    are declared, without a kernel; timm's models do not call them.
    """
    folder = Path(sys.prefix) / "vision"
    if importlib.util.find_spec("timm") is None:
        if not folder.is_dir():
            pytest.skip("timm is not installed: make test-full installs requirements/vision.txt")
        sys.path.append(str(folder))
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, ImportError, OSError):
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
    return importlib.import_module("timm")
