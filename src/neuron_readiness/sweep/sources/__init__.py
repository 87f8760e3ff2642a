"""Where architectures come from. A source lists names and builds one of them offline."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Protocol

NAMES = ("transformers", "causal_lm", "timm", "diffusers")


@dataclasses.dataclass
class Built:
    """A model on the CPU with inputs that it runs on, and how they were found."""

    model: Any
    kwargs: dict[str, Any]
    class_name: str
    recipe: str
    reduction: str
    parameters: int


class Source(Protocol):
    """A module of this package."""

    def available(self) -> str | None:
        """Why this source cannot be used here, or None."""

    def names(self) -> list[tuple[str, str]]:
        """(architecture, family), sorted; cheap, builds nothing."""

    def build(self, name: str) -> Built:
        """Builds one. Raises whatever the library raises, or ``CannotBuild``."""


class CannotBuild(RuntimeError):
    """No reduced configuration and inputs were found; the message says what was tried last."""


def load(name: str) -> Source:
    return importlib.import_module(f"neuron_readiness.sweep.sources.{name}")
