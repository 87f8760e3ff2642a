"""The pilot: a Python file that says what the workload is.

``model()`` and ``inputs(split)`` are required. Everything else has a default, and the record says
which parts were the pilot's and which were defaults. See docs/readiness.md for the protocol.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from neuron_readiness.protocol import OPTIONAL, complaint
from neuron_readiness.run import guard

SPLITS = ("requests", "hard", "train")
_LONG = 6  # letters of a part from which a name that is close to it is hardly another word


class PilotError(ValueError):
    """The pilot file breaks the protocol; the message says which part and what was expected."""


@dataclasses.dataclass
class Case:
    """One representative request or batch.

    ``frequency`` is its share of production traffic, in any unit (1000 requests a day, 0.2): only
    ratios count. ``hard`` marks a difficult case (large, tiny or tied values), which is reported
    apart from ordinary ones; ``train`` a batch of ``train_step``.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    frequency: float = 1.0
    hard: bool = False
    train: bool = False


_GIVEN = {f.name for f in dataclasses.fields(Case)} - {"train"}  # what a pilot may say of a case


def as_case(value: Any, index: int, split: str) -> Case:
    """A case from what ``inputs`` may yield: a Case or an object like one, a tensor, a tuple (args)
    or a dict (kwargs)."""
    if isinstance(value, Case):
        case = dataclasses.replace(value, args=tuple(value.args))
    elif hasattr(value, "args") or hasattr(value, "kwargs"):
        case = _like(value, index, split)
    elif isinstance(value, Mapping):
        if {"args", "kwargs"} & set(value) and set(value) <= _GIVEN:
            raise PilotError(
                f"inputs({split!r}): a dict is keyword arguments of the model, and this one has "
                f"{sorted(value)}; for a named case give a types.SimpleNamespace(**case)"
            )
        case = Case(f"{split}-{index}", (), dict(value))
    elif isinstance(value, (tuple, list)):
        case = Case(f"{split}-{index}", tuple(value))
    else:
        case = Case(f"{split}-{index}", (value,))
    if not isinstance(case.frequency, (int, float)) or not case.frequency >= 0:
        raise PilotError(
            f"case {case.name!r}: frequency is {case.frequency!r}, expected a number >= 0"
        )
    return dataclasses.replace(case, hard=case.hard or split == "hard", train=split == "train")


def _like(value: Any, index: int, split: str) -> Case:
    """A case from any object with its attributes, so that a pilot need not import this package."""
    unknown = sorted(set(getattr(value, "__dict__", ())) - _GIVEN)
    if unknown:
        raise PilotError(
            f"inputs({split!r}): a case with {unknown}; expected only {', '.join(sorted(_GIVEN))}"
        )
    given = {name: getattr(value, name) for name in _GIVEN if hasattr(value, name)}
    case = Case(**{"name": f"{split}-{index}", **given})
    return dataclasses.replace(case, args=tuple(case.args), kwargs=dict(case.kwargs))


class Pilot:
    """A loaded pilot file: the protocol's parts with their defaults."""

    def __init__(self, module: ModuleType, path: Path) -> None:
        self.module = module
        self.path = path
        for required in ("model", "inputs"):
            if not callable(getattr(module, required, None)):
                raise PilotError(
                    f"{path}: expected a function `{required}`; a pilot defines `model()` and "
                    "`inputs(split)`. `neuron-readiness init` writes one."
                )
        for name in OPTIONAL:
            wrong = complaint(name, self.part(name))
            if wrong is not None:
                raise PilotError(f"{path}: {wrong}")

    def misspelt(self) -> list[tuple[str, str]]:
        """Names of the file that look like an optional part and are none, and that part."""
        names = [
            n for n, v in vars(self.module).items()
            if not n.startswith("_") and not isinstance(v, ModuleType)
        ]  # fmt: skip
        pairs = ((n, difflib.get_close_matches(n, OPTIONAL, 1, 0.8)) for n in names)
        return [(n, close[0]) for n, close in pairs if close and n not in OPTIONAL]

    def refuse_misspelt(self) -> None:
        """A part that is misspelt would be left out of the run, and nobody would miss it.

        Raises:
            PilotError: a name of the file is close to a part that the file does not define. Close
                to a short part (`name`, `pad`) there are words of one's own, and beside the part
                itself it is a helper of it: these are only told.
        """
        own = vars(self.module)
        for name, part in self.misspelt():
            here = getattr(own[name], "__module__", self.module.__name__) == self.module.__name__
            if here and len(part) >= _LONG and part not in own:
                raise PilotError(
                    f"{self.path}: `{name}` is no part of a pilot, and would be ignored; expected "
                    f"`{part}`: {OPTIONAL[part]}. A helper of your own begins with an underscore."
                )

    def part(self, name: str) -> Any:
        """An optional part, or None."""
        return getattr(self.module, name, None)

    def setting(self, name: str, default: Any) -> Any:
        value = self.part(name)
        return default if value is None else value

    @property
    def name(self) -> str:
        return str(self.setting("name", self.path.stem))

    @property
    def seed(self) -> int:
        return int(self.setting("seed", 0))

    @property
    def trains(self) -> bool:
        return callable(self.part("train_step"))

    @property
    def compiles(self) -> dict[str, Any] | None:
        """Keyword arguments of torch.compile if the workload runs compiled, None if eagerly. A
        pilot that says nothing of it runs eagerly, and is compiled once to see what would come."""
        wanted = self.part("compile")
        if isinstance(wanted, Mapping):
            return dict(wanted)
        return {} if wanted is True else None

    @property
    def provided(self) -> list[str]:
        """Optional parts that the file defines."""
        return [name for name in OPTIONAL if self.part(name) is not None]

    def cases(self, split: str) -> list[Case]:
        """The cases of a split, names made unique.

        Raises:
            PilotError: two cases have one name, or there are neither requests nor a training step.
        """
        produced: Iterable[Any] | None = self.module.inputs(split)
        if produced is not None and not isinstance(produced, Iterable):
            raise PilotError(
                f"inputs({split!r}) returned {type(produced).__name__}; expected a list or a "
                "generator of cases"
            )
        found = [as_case(v, i, split) for i, v in enumerate(produced or ())]
        guard.end_copies()
        names = [str(c.name) for c in found]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise PilotError(f"inputs({split!r}): names {twice} are used twice; make them differ")
        if split == "requests" and not found and not self.trains:
            raise PilotError(
                "inputs('requests') yields no case; expected at least one, or a `train_step`"
            )
        return found

    def operations(self) -> list[Case]:
        """What the workload does again and again: steps of a training job, else requests."""
        return (self.cases("train") if self.trains else []) or self.cases("requests")

    def build(self) -> Any:
        """The model, on the CPU, seeded: two calls give equal weights for a deterministic pilot."""
        import torch

        torch.manual_seed(self.seed)
        model = self.module.model()
        guard.end_copies()
        if not callable(model):
            raise PilotError(f"model() returned {type(model).__name__}, expected a callable model")
        return model

    def optimizer(self, model: Any) -> Any:
        """The pilot's optimizer, by default AdamW with a learning rate of 1e-3."""
        import torch

        make: Callable[[Any], Any] | None = self.part("optimizer")
        return make(model) if make else torch.optim.AdamW(model.parameters(), lr=1e-3)


def load(path: Path) -> Pilot:
    """Imports a pilot file; its own folder comes first on the import path, as with ``python file``.

    Raises:
        PilotError: the file is missing or breaks the protocol. What the file itself raises passes.
    """
    path = path.resolve()
    if not path.is_file():
        raise PilotError(f"{path} is not a file; expected a pilot, a Python file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"_pilot_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    guard.end_copies()
    return Pilot(module, path)


def digest(path: Path) -> str:
    """Hash of the pilot's text: a record is resumed only with the file that began it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
