"""What the device's tests share: comparing with CPU, counting executables, child processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import torch

import torch_neuronx

# The plugin and PyTorch sum in different orders and use different polynomials: a few units in the
# last place of float32. float64 is computed in float32 (decision D6). Reduced floats round once on
# both sides, so that neighbouring values are the usual worst case; PyTorch rounds some of its own
# intermediate results, hence the margin.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {  # dtype: (rtol, atol)
    torch.float64: (1e-5, 1e-5),
    torch.float32: (2e-5, 2e-5),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
}


def to_device(value: Any) -> Any:
    """``value`` with its tensors, however nested, on the device, with the same strides."""
    if isinstance(value, torch.Tensor):
        moved = value.detach().to("neuron")  # dense, as on CUDA
        if moved.stride() != value.stride():
            size = value.storage_offset() + 1
            size += sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
            whole = torch.as_strided(value.detach(), (size,), (1,), 0).to("neuron")
            moved = whole.as_strided(value.shape, value.stride(), value.storage_offset())
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(v) for v in value)
    if isinstance(value, dict):
        return {k: to_device(v) for k, v in value.items()}
    if isinstance(value, torch.device) and value.type == "cpu":
        return torch.device("neuron")
    return value


def assert_same(
    actual: Any, expected: Any, *, strides: bool = True, scale: float = 1.0, where: str = "result"
) -> None:
    """Same structure, dtypes, shapes, strides, and values within ``TOLERANCES`` times ``scale``."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"{where}: {type(actual).__name__}"
        assert actual.device.type == "neuron", f"{where} is on {actual.device}"
        assert actual.dtype == expected.dtype, f"{where}: {actual.dtype}, CPU {expected.dtype}"
        assert actual.shape == expected.shape, f"{where}: {actual.shape}, CPU {expected.shape}"
        if strides and expected.numel():
            assert actual.stride() == expected.stride(), (
                f"{where}: strides {actual.stride()}, CPU {expected.stride()}"
            )
        rtol, atol = TOLERANCES.get(expected.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            actual.detach().cpu(),
            expected.detach(),
            rtol=rtol * scale,
            atol=atol * scale,
            equal_nan=True,
            msg=lambda text: f"{where}: {text}",
        )
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{where}: {len(actual)} items, CPU {len(expected)}"
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, e, strides=strides, scale=scale, where=f"{where}[{i}]")
    else:
        assert actual == expected, f"{where}: {actual!r}, CPU {expected!r}"


@contextlib.contextmanager
def no_fallback() -> Iterator[None]:
    """Fails if an operator of the block runs on the CPU."""
    torch_neuronx.clear_op_tracking()
    yield
    assert torch_neuronx.get_fallback_ops() == []


def last_event() -> int:
    """The number of the newest compile event, -1 before there is one."""
    torch.neuron.synchronize()
    return max((e["number"] for e in torch_neuronx.compile_events()), default=-1)


class Executables:
    """``with Executables() as new: ...; assert new.count <= 3``.

    Counts executables made or loaded, so a warm cache gives the same number as a cold one.
    """

    def __enter__(self) -> Executables:
        self._before = last_event()
        return self

    def __exit__(self, *_: object) -> None:
        torch.neuron.synchronize()
        self.names = [e["name"] for e in torch_neuronx.compile_events(self._before)]
        self.count = len(self.names)


def run_python(
    code: str, timeout_s: float = 300, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a process of its own, with further environment variables."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def output_of(code: str, timeout_s: float = 300, **environ: str) -> str:
    """Standard output of ``code`` in a process of its own, which must succeed."""
    done = run_python(code, timeout_s, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout
