"""Which versions of client libraries the integrations were tested with."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from types import ModuleType

# Distribution: the first and the last version that the tests marked `clients` passed with
# (docs/clients.md). requirements/clients.txt installs the last.
TESTED: dict[str, tuple[str, str]] = {
    "lightning": ("2.6.6", "2.6.6"),
    "pytorch-lightning": ("2.6.6", "2.6.6"),
    "safetensors": ("0.8.0", "0.8.0"),
    "sentence-transformers": ("6.2.0", "6.2.0"),
    "torch": ("2.13.0", "2.13.0"),  # flex_attention calls what PyTorch keeps private
    "transformers": ("5.24.0", "5.24.0"),
}


class UntestedVersionWarning(UserWarning):
    """A client library is older or newer than what its integration was tested with."""


def require(distribution: str, integration: str = "") -> ModuleType:
    """The module of a client library, which need not be installed.

    Args:
        distribution: its name on the package index, a key of ``TESTED``.
        integration: the module that asks, where it is not called as the library.

    Raises:
        ImportError: it is not installed; names the extra that installs it.
    """
    name = distribution.replace("-", "_")
    asking = f"torch_neuronx.integrations.{integration or name}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(
            f"{asking} needs the package {distribution}, which is not "
            "installed. Install the extra `clients`: pip install 'torchneuron[clients]'",
            name=name,
        ) from error
    version = _version(distribution, module)
    first, last = TESTED[distribution]
    if not _numbers(first) <= _numbers(version) <= _numbers(last):
        tested = first if first == last else f"{first} to {last}"
        warnings.warn(
            f"{asking} was tested with {distribution} {tested}; "
            f"{version} is installed. It may work; if it does not, install a tested version.",
            UntestedVersionWarning,
            stacklevel=3,
        )
    return module


def _version(distribution: str, module: ModuleType) -> str:
    """Of what is installed; of a checkout on the path, which has no metadata, what it says."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "an unknown version"))


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release, "2.6.6.post1" as (2, 6, 6)."""
    parts = []
    for part in version.split("+")[0].split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)
