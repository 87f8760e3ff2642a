"""Where PJRT plugins lie: discovery and the choice of one. Loads nothing.

The default is the CPU plugin of ``lammps-jax-pjrt-cpu``, always; any other is chosen explicitly,
by a name that ``discover`` lists or by a path (``TORCH_NEURONX_PJRT_PLUGIN``, decision D1).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

DEFAULT = "lammps_jax_pjrt_cpu"

# CPU plugins that pip ships: name -> (module that carries it, file in the module's folder).
CPU_PLUGINS: dict[str, tuple[str, str]] = {
    DEFAULT: ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    "fastatomstruct_xla_cpu": ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
    "xla_cpu_pjrt": ("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so"),
}

# Entry-point groups by which other distributions announce a plugin.
ENTRY_POINT_GROUPS = ("jax_plugins", "xla_plugins")


class PluginError(RuntimeError):
    """No plugin is where one was expected; the message says what to do."""


def discover() -> dict[str, Path]:
    """Installed plugins: name -> path of the shared library, the default first.

    Names are those of ``CPU_PLUGINS`` and of the entry points in ``ENTRY_POINT_GROUPS``. Imports
    none of the modules concerned (a plugin's module may initialise hardware).
    """
    found = {}
    for name in CPU_PLUGINS:
        path = _cpu_plugin(name)
        if path is not None:
            found[name] = path
    for group in ENTRY_POINT_GROUPS:
        for entry in importlib.metadata.entry_points(group=group):
            if entry.name not in found and entry.dist is not None:
                path = _library_of(entry.dist)
                if path is not None:
                    found[entry.name] = path
    return found


def accelerators(found: dict[str, Path]) -> list[str]:
    """Names in ``found`` that are not one of the known CPU plugins."""
    return [name for name in found if name not in CPU_PLUGINS]


def resolve(value: str | None = None) -> Path:
    """The shared library that ``value`` means: a path, a name from ``discover``, or the default.

    Text that contains a slash or ends in ``.so`` is a path (``~`` is expanded); None and "" give
    the default CPU plugin, whatever else is installed.

    Raises:
        PluginError: nothing is there. Whether the file is a working plugin shows when it is loaded.
    """
    if not value:
        path = _cpu_plugin(DEFAULT)
        if path is None:
            raise PluginError(
                f"expected the default PJRT plugin in module {CPU_PLUGINS[DEFAULT][0]}, which is "
                "not installed. Run `pip install lammps-jax-pjrt-cpu==0.11.2`, or set "
                "TORCH_NEURONX_PJRT_PLUGIN to the path of another plugin."
            )
        return path
    if "/" in value or value.endswith(".so"):
        path = Path(value).expanduser().absolute()
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "does not exist"
            raise PluginError(
                f"expected a PJRT plugin (a shared library) at {path}, which {kind}. Correct "
                "TORCH_NEURONX_PJRT_PLUGIN, or unset it for the default CPU plugin."
            )
        return path
    found = discover()
    if value not in found:
        raise PluginError(
            f"no PJRT plugin is called {value!r}; installed: {', '.join(found) or 'none'}. Set "
            "TORCH_NEURONX_PJRT_PLUGIN to one of these or to a path that contains a slash."
        )
    return found[value]


def _cpu_plugin(name: str) -> Path | None:
    module, file = CPU_PLUGINS[name]
    try:
        spec = importlib.util.find_spec(module)  # a dotted name imports its (namespace) parent
    except ImportError:
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place, file)
        if path.is_file():
            return path
    return None


def _library_of(distribution: importlib.metadata.Distribution) -> Path | None:
    """The distribution's library whose name says that it is a plugin, the shortest such path."""
    files = [
        file
        for file in distribution.files or []
        if re.search(r"(pjrt|plugin|libtpu)[^/]*\.so$", str(file), re.IGNORECASE)
    ]
    paths = [Path(str(f.locate())) for f in sorted(files, key=lambda f: len(str(f)))]
    return next((p for p in paths if p.is_file()), None)


def version(name: str) -> str:
    """Version of the distribution that ships a CPU plugin, or "" when that is not known."""
    module = CPU_PLUGINS.get(name, (name, ""))[0].rpartition(".")[2]
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return ""
