"""Starts the runtime at first use: plugin, client, devices, executable store."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from torch_neuronx import _C, config, plugins
from torch_neuronx.neuron import target

_lock = threading.Lock()


def device_count() -> int:
    """Devices this process has or will have; starts nothing."""
    return int(config.get("TORCH_NEURONX_NUM_DEVICES"))


def start() -> None:
    """Load the plugin and create the devices. Does nothing when that is done.

    Raises:
        PluginError: there is no such plugin.
        RuntimeError: the plugin cannot be loaded or gives no device.
    """
    from torch_neuronx.compiler import session

    with _lock:
        if _C.is_started():
            return
        path = str(plugins.resolve(config.get("TORCH_NEURONX_PJRT_PLUGIN")))
        devices = device_count()
        # XLA's CPU plugins make four devices unless told; others list what the machine has.
        is_cpu = os.path.realpath(path) in {
            os.path.realpath(p)
            for name, p in plugins.discover().items()
            if name in plugins.CPU_PLUGINS
        }
        options = {"cpu_device_count": devices} if is_cpu else {}
        threads = config.get("TORCH_NEURONX_CPU_THREADS")
        with _environment(NPROC=str(threads), TF_CPP_MIN_LOG_LEVEL=_log_level()):
            _C.start(
                path,
                options,
                devices,
                target.current().hbm_bytes,
                config.get("TORCH_NEURONX_EXECUTABLE_MEMORY_MB") << 20,
                config.get("NEURON_LAUNCH_BLOCKING"),
                sys.stderr.isatty() or config.get("TORCH_NEURONX_LOG_LEVEL") >= 1,
                session.reload,
            )
        atexit.register(_at_exit)


def _at_exit() -> None:
    if _C.in_bad_fork():
        return
    if _C.called_from_several_threads():
        _let_autograd_finish()
    _report_errors()


def _let_autograd_finish() -> None:
    """Send one more graph through autograd's device threads.

    ``backward()`` returns while such a thread is still letting go of the graph and of Python
    objects that it holds. If the interpreter ends meanwhile, the thread dies in the middle and
    takes the process with it (std::terminate; seen in 3 of 64 short programs on a busy machine).
    A thread takes a graph only after it has let go of the one before; this one holds nothing.
    """
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        for index in range(_C.device_count()):
            x = torch.empty(1, device=f"neuron:{index}", requires_grad=True)
            torch.autograd.grad(x.view(1), x, torch.empty(1, device=x.device))


def _report_errors() -> None:
    """Say what nobody asked for: the error of a launch after which nothing was read.

    Launches that still wait for a compile are dropped with the program.
    """
    for index in range(_C.device_count()):
        if _C.num_queued(index):
            continue
        try:
            _C.synchronize(index)
        except Exception as error:
            print(
                f"torchneuron: neuron:{index} had an error when the program ended: "
                f"{type(error).__name__}: {error}",
                file=sys.stderr,
            )


def _log_level() -> str:
    """The plugin's own log stays silent below fatal errors, unless somebody asks for it."""
    if config.get("TORCH_NEURONX_LOG_LEVEL") >= 3:
        return "0"
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Variables that the plugin reads while it starts: XLA's CPU plugin sizes its thread pool from
    NPROC (decision D18). The process's own environment is as before afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
