"""Any accelerator that PyTorch knows by name: cuda, xpu, mps, or another backend's device."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from neuron_readiness.adapters.base import Adapter


class AcceleratorAdapter(Adapter):
    """Uses ``torch.get_device_module(kind)`` and asks for each function before calling it."""

    def _module(self) -> Any:
        import torch

        return torch.get_device_module(self.kind)

    def _call(self, name: str, *args: Any, default: Any = None) -> Any:
        try:
            return getattr(self._module(), name)(*args)
        except (NotImplementedError, RuntimeError, TypeError, AssertionError, AttributeError):
            return default  # a function, or a whole device, that this torch does not have

    def absent(self) -> str | None:
        import torch

        try:
            torch.device(self.device)
            module = self._module()
        except (RuntimeError, AttributeError) as error:
            return f"torch {torch.__version__} has no device {self.device!r}: {_first(error)}"
        if not getattr(module, "is_available", lambda: True)():
            return f"torch.{self.kind}.is_available() is False"
        try:
            torch.zeros(1, device=self.device).cpu()
        except Exception as error:  # whatever the backend raises is the reason
            return f"{type(error).__name__}: {_first(error)}"
        return None

    def synchronize(self) -> None:
        self._call("synchronize")

    def identity(self) -> dict[str, Any]:
        import torch

        return {
            "backend package": f"torch {torch.__version__}",
            "lineage": f"torch.{self.kind}",
            "device name": str(self._call("get_device_name", default="")),
            "driver": driver(*_DRIVERS.get(self.kind, ())),
        }

    def memory(self) -> dict[str, int] | None:
        allocated = self._call("memory_allocated")
        if allocated is None:
            allocated = self._call("current_allocated_memory")  # mps
        if allocated is None:
            return None
        figures = {"allocated": int(allocated)}
        peak = self._call("max_memory_allocated")
        if peak is not None:
            figures["peak"] = int(peak)
        info = self._call("mem_get_info")
        if info is not None:
            figures["capacity"] = int(info[1])
        return figures

    def reset_peak_memory(self) -> None:
        self._call("reset_peak_memory_stats")


class CudaAdapter(AcceleratorAdapter):
    """CUDA and ROCm: an operator without a kernel raises, so nothing falls back."""

    may_fall_back = False

    def identity(self) -> dict[str, Any]:
        import torch

        versions = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
        built = next((f"{name} {v}" for name, v in versions.items() if v), None)
        return {
            **super().identity(),
            "runtime": built,
            "compiler": f"Inductor with triton {_version('triton')}",
            "lineage": "PyTorch's own CUDA kernels" if built else "none",
            "lineage because": f"torch is built for {built or 'neither CUDA nor ROCm'}",
        }

    def route(self) -> tuple[bool | None, str]:
        import torch

        if torch.version.cuda or torch.version.hip:
            return None, "compare driver and runtime with PyTorch's table of supported versions"
        return False, f"torch {torch.__version__} is built without CUDA and ROCm"

    def supports(self, overload: str) -> bool | None:
        return None

    def cache_environment(self, folder: Path) -> dict[str, str] | None:
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }


_MODULES = Path("/sys/module")
# Kernel modules whose version is the driver's.
_DRIVERS = {
    "cuda": ("nvidia", "amdgpu"),
    "xpu": ("xe", "i915"),
    "neuron": ("neuron",),
}


def driver(*modules: str) -> str | None:
    """Name and version of the kernel module that drives a device, or None if none is loaded."""
    for name in modules:
        try:
            version = (_MODULES / name / "version").read_text(encoding="ascii")
        except OSError:
            continue
        return f"{name} {version.strip()}"
    return None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
