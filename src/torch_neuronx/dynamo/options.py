"""What torch.compile passes on to the backend: ``options`` and ``mode``."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Mapping
from typing import Any

from torch_neuronx import config
from torch_neuronx.dynamo import buckets, foreign

OWN = ("model_name", "fallback_execution", "buckets", "frontend", "dynamic")

_said: set[Any] = set()


@dataclasses.dataclass(frozen=True)
class Options:
    """The backend's options, read from the caller's mapping, which is never written to.

    ``model_name`` begins the names of graphs and artefacts. ``fallback_execution``: a graph that
    cannot be compiled runs operator by operator instead of raising. ``buckets``: the sizes that
    changing dimensions are padded to (``buckets.Spec``), by dimension. ``frontend`` is what lowers
    to StableHLO: "jax", which is our own rules, or "torch-mlir" with its version (``foreign``).
    """

    model_name: str = "model_default"
    fallback_execution: bool = False
    buckets: buckets.Specs = dataclasses.field(default_factory=dict)
    frontend: str = "jax"

    @staticmethod
    def read(given: Mapping[str, Any] | None, mode: str | None) -> Options:
        """Raises ValueError for a value that an option does not take; foreign keys are named once.

        Also TypeError for what is no mapping with texts as keys, and ImportError for a front end
        that is not installed.

        ``dynamic`` is TorchNeuron's own note to itself and has no effect.
        """
        given = {} if given is None else given
        if not isinstance(given, Mapping) or not all(isinstance(k, str) for k in given):
            raise TypeError(
                "options of torch.compile: expected a dict with names as keys, such as "
                f"{{'model_name': 'gpt'}}, or None; got {given!r}"
            )
        _notice_mode(mode)
        _notice_foreign(tuple(k for k in given if k not in OWN))
        name = given.get("model_name", "model_default")
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(
                f"options['model_name'] of torch.compile: expected a text without '/', got {name!r}"
            )
        fallback = given.get("fallback_execution")
        if fallback is None:
            fallback = not config.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION")
        if not isinstance(fallback, bool):
            raise ValueError(
                f"options['fallback_execution'] of torch.compile: expected True or False, got "
                f"{fallback!r}"
            )
        frontend = foreign.chosen(given.get("frontend", "jax"))
        return Options(name, fallback, buckets.read(given.get("buckets")), frontend)


def _once(key: Any, text: str) -> None:
    if key not in _said:
        _said.add(key)
        warnings.warn(text, UserWarning, stacklevel=2)


def _notice_mode(mode: str | None) -> None:
    if mode not in (None, "default"):
        _once(
            "mode",
            f"torch.compile(backend='neuron'): mode={mode!r} has no effect here; it compiles as "
            "mode='default'. Said once.",
        )


def _notice_foreign(names: tuple[str, ...]) -> None:
    if not names:
        return
    hints = []
    for name in names:
        close = difflib.get_close_matches(name, OWN, n=1, cutoff=0.7)
        hints.append(f"{name} (did you mean {close[0]}?)" if close else name)
    _once(
        names,
        f"torch.compile(backend='neuron') ignores the options {', '.join(hints)}: they are not "
        f"this backend's (those are {', '.join(OWN[:-1])}). Said once.",
    )
