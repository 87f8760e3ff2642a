"""Executables among what ``torch.compiler.save_cache_artifacts`` saves and loads.

PyTorch's registry of artefacts is private, so this file alone knows it. Whoever loads artefacts
trusts them, as with any cache: an executable is code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this is imported with torch, and must be quick
    from torch_neuronx.compiler.compile import Compiler

_TYPE = "torchneuron"


def register() -> None:
    """Let ``torch.compiler.load_cache_artifacts`` know our entries. Idempotent.

    Raises:
        ImportError, AttributeError: this PyTorch has another registry.
    """
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

    if _TYPE in CacheArtifactFactory._artifact_types:
        return

    @CacheArtifactFactory.register
    class Executable(CacheArtifact):
        """One entry of our cache, as it lies there; its key is ``level/key``."""

        def populate_cache(self) -> None:
            from torch_neuronx.compiler.cache import CorruptEntryError, decode_entry, shared_cache

            level, _, key = self.key.partition("/")
            try:
                entry = decode_entry(key, self.content)
            except CorruptEntryError:
                return  # it is compiled again
            shared_cache().put(key, entry.meta, entry.payload, level)

        @staticmethod
        def type() -> str:
            return _TYPE


def listen(compiler: Compiler) -> None:
    """From now on, the compiler's executables are among the artefacts that PyTorch saves."""
    if _record not in compiler.listeners:
        compiler.listeners.append(_record)


def _record(entries: Sequence[tuple[str, str]]) -> None:
    from torch.compiler._cache import CacheArtifactManager

    from torch_neuronx.compiler.cache import shared_cache

    cache = shared_cache()
    for level, key in entries:
        if cache.get(key, level) is not None:  # what is corrupt is reported there
            with open(cache.path(key, level), "rb") as file:
                CacheArtifactManager.record_artifact(_TYPE, f"{level}/{key}", file.read())
