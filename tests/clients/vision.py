"""timm with a torchvision whose compiled part may fit another torch (requirements/vision.txt)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_readiness.sweep.sources import torchvision_shim


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
    torchvision_shim.install()
    return importlib.import_module("timm")
