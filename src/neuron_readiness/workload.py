"""The pilot's workload on one device: the path of a request and of a training step, in phases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from neuron_readiness import trees
from neuron_readiness.adapters import Adapter
from neuron_readiness.pilot import Case, Pilot
from neuron_readiness.run import guard

Phase = Callable[[str], contextlib.AbstractContextManager[Any]]
PHASES = ("data", "host-to-device", "device", "post-processing", "logging")


@contextlib.contextmanager
def no_phase(_: str) -> Iterator[None]:
    yield


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class Workload:
    """A model on a device and the path that requests and batches take through it."""

    def __init__(self, pilot: Pilot, adapter: Adapter, *, model: Any = None) -> None:
        self.pilot = pilot
        self.adapter = adapter
        self.model = pilot.build() if model is None else model
        if isinstance(self.model, torch.nn.Module):
            self.model = self.model.to(adapter.device).eval()
        self.optimizer: Any = None
        # Whether steps train a model of their own, so that this one keeps its weights.
        self.keeps_weights = False
        self._trainer: Workload | None = None
        # How the model is called, eagerly or compiled; its parameters are the same.
        self.wrap: Callable[[Any], Any] = lambda model: model
        self._wrapped: Any = None

    def prepared(self, case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the case's inputs after the pilot's own preprocessing, on the host:
        a workload may write to what it is given, and a case is used again."""
        preprocess = self.pilot.part("preprocess")
        with _disable_current_modes():  # no work of the pilot's, which a recorder would count
            args, kwargs = trees.map_tensors(_copy, (case.args, case.kwargs))
        if preprocess is None:
            return args, kwargs
        args, kwargs = preprocess(*args, **kwargs)
        return tuple(args), dict(kwargs)

    @property
    def callable(self) -> Any:
        """The model as requests and steps call it."""
        if self._wrapped is None:
            self._wrapped = self.wrap(self.model)
        return self._wrapped

    def compile(self, keywords: dict[str, Any]) -> None:
        """From now on requests and steps go through ``torch.compile``."""
        self.wrap = lambda model: torch.compile(model, **keywords)
        self._wrapped = None

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], model: Any = None) -> Any:
        """The model's output for inputs that are on the device."""
        forward = self.pilot.part("forward")
        model = self.callable if model is None else model
        return forward(model, *args, **kwargs) if forward else model(*args, **kwargs)

    def request(self, case: Case, phase: Phase = no_phase, model: Any = None) -> Any:
        """One request from its inputs to its result, without gradients; or one training step, if
        that is what the case is for."""
        if case.train:
            return self._step(case, phase)
        with torch.no_grad():
            with phase("data"):
                inputs = self.prepared(case)
            with phase("host-to-device"):
                args, kwargs = trees.move(inputs, self.adapter.device)
            with phase("device"):
                output = self.call(args, kwargs, model)
            guard.end_copies()
            with phase("post-processing"):
                function = self.pilot.part("postprocess")
                output = output if function is None else function(output)
            with phase("logging"):
                if self.pilot.part("log") is not None:
                    self.pilot.part("log")(output)
            return output

    def _step(self, case: Case, phase: Phase) -> float:
        if self.keeps_weights:
            if self._trainer is None:
                self._trainer = Workload(self.pilot, self.adapter)
                self._trainer.wrap = self.wrap
            return self._trainer._step(case, phase)
        self._begin_training()
        with phase("data"):
            inputs = self.prepared(case)
        with phase("host-to-device"):
            args, kwargs = trees.move(inputs, self.adapter.device)
        with phase("device"):
            step = self.pilot.part("train_step")
            loss = step(self.callable, self.optimizer, *args, **kwargs)
        guard.end_copies()
        with phase("logging"):
            if self.pilot.part("log") is not None:
                self.pilot.part("log")(loss)
        with phase("post-processing"), _disable_current_modes():  # read for the record, as above
            if isinstance(loss, torch.Tensor):
                loss = loss.detach()
            return float(loss) if loss is not None else float("nan")

    def _begin_training(self) -> None:
        if self.optimizer is None:
            if isinstance(self.model, torch.nn.Module):
                self.model.train()
            self.optimizer = self.pilot.optimizer(self.model)

    def output(self, case: Case, model: Any = None) -> Any:
        """The model's raw output for a case, without gradients, seeded."""
        torch.manual_seed(self.pilot.seed)
        with torch.no_grad():
            args, kwargs = trees.move(self.prepared(case), self.adapter.device)
            return self.call(args, kwargs, model)

    def loss(self, case: Case, model: Any = None) -> torch.Tensor | None:
        """The pilot's loss for a case with gradients enabled, or None if it declares none.

        A Hugging Face output with a ``loss`` needs no declaration.
        """
        torch.manual_seed(self.pilot.seed)
        args, kwargs = trees.move(self.prepared(case), self.adapter.device)
        output = self.call(args, kwargs, model)
        function = self.pilot.part("loss")
        if function is not None:
            result: torch.Tensor = function(output, *args, **kwargs)
            return result
        own = getattr(output, "loss", None)
        return own if isinstance(own, torch.Tensor) else None

    def train(self, case: Case) -> float:
        """One step of the pilot's ``train_step``; makes the optimizer at the first."""
        return self._step(case, no_phase)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, none for a callable that is no module."""
        return dict(self.model.state_dict()) if isinstance(self.model, torch.nn.Module) else {}


def on_path(pilot: Pilot, adapter: Adapter, *, compiled: bool = True) -> Workload:
    """The workload on the path that it takes in production: compiled where the pilot says so."""
    workload = Workload(pilot, adapter)
    if compiled and pilot.compiles is not None:
        workload.compile({"backend": adapter.compile_backend, **pilot.compiles})
    return workload


def path_name(pilot: Pilot, adapter: Adapter) -> str:
    """The path in words, for what is written beside a figure."""
    if pilot.compiles is None:
        return "eager"
    settings = {"backend": adapter.compile_backend, **pilot.compiles}
    return f"torch.compile({', '.join(f'{k}={v}' for k, v in settings.items())})"


def pair(pilot: Pilot, device: Adapter, reference: Adapter) -> tuple[Workload, Workload]:
    """The workload on the device and on the reference, with equal weights."""
    expected = Workload(pilot, reference)
    actual = Workload(pilot, device)
    actual.keeps_weights = True
    if isinstance(actual.model, torch.nn.Module):
        # Also where model() draws without the seed: what is compared is the device, not the draw.
        actual.model.load_state_dict(expected.parameters())
    return actual, expected


def still(workload: Workload) -> tuple[Workload, int]:
    """The workload with its dropout layers at 0, and how many that changed."""
    changed = 0
    for module in workload.model.modules() if isinstance(workload.model, torch.nn.Module) else ():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            module.p, changed = 0.0, changed + 1
    return workload, changed
