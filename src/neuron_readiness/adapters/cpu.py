"""The host itself: the usual reference."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from neuron_readiness.adapters.base import Adapter


class CpuAdapter(Adapter):
    """PyTorch's own CPU kernels, and Inductor where a C++ compiler is installed."""

    may_fall_back = False

    def absent(self) -> str | None:
        return None

    def identity(self) -> dict[str, Any]:
        import torch

        return {
            "backend package": f"torch {torch.__version__}",
            "lineage": "PyTorch's own CPU kernels",
            "device name": platform.processor() or platform.machine(),
        }

    def route(self) -> tuple[bool | None, str]:
        return True, "the CPU is part of PyTorch"

    def supports(self, overload: str) -> bool | None:
        return True

    def cache_environment(self, folder: Path) -> dict[str, str] | None:
        return {"TORCHINDUCTOR_CACHE_DIR": str(folder)}
