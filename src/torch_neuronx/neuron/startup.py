"""Starts the runtime at first use: plugin, client, devices, executable store."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from torch_neuronx import _C, config, plugins
from torch_neuronx.neuron import eager_modes, target

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
    from torch_neuronx.compiler import host_kernels, session

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
        _C.set_compile_only(config.get("TORCH_NEURONX_COMPILE_ONLY"))
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
        if config.get("TORCH_NEURONX_HOST_KERNELS"):
            host_kernels.enabled()  # before a program is written that would be another with them
        # Compiled only, nothing runs, and so nothing is learnt from launches.
        if not config.get("TORCH_NEURONX_COMPILE_ONLY"):
            _C.set_eager_limits(
                config.get("TORCH_NEURONX_EAGER_BUDGET"), config.get("TORCH_NEURONX_EAGER_LONGEST")
            )
            _C.set_eager_mode(eager_modes.mode_of(config.get("TORCH_NEURONX_EAGER")))
        atexit.register(_at_exit)


def _at_exit() -> None:
    if _C.in_bad_fork():
        return
    _C.interpreter_ends_here()
    if _C.called_from_several_threads():
        # Autograd's device threads may still hold Python objects; letting go of them once the
        # interpreter ends would take the process with it.
        _C.let_autograd_finish()
    _report_errors()


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
