"""What each layer puts out, by forward hooks, in the order in which layers run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from neuron_readiness import trees

See = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]  # name, args, kwargs, output


def leaves(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules without children, by name."""
    return {n: m for n, m in model.named_modules() if not any(m.children())}


@contextlib.contextmanager
def watching(
    model: torch.nn.Module,
    see: See,
    only: set[str] | None = None,
) -> Iterator[None]:
    """Calls ``see(name, args, kwargs, output)`` after each leaf; a module that runs twice is seen
    as ``name`` and ``name#2``."""
    runs: dict[str, int] = {}
    handles = []

    def hook_for(name: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            runs[name] = runs.get(name, 0) + 1
            unique = name if runs[name] == 1 else f"{name}#{runs[name]}"
            if only is None or unique in only:
                see(unique, args, kwargs, output)

        return hook

    for name, module in leaves(model).items():
        handles.append(module.register_forward_hook(hook_for(name), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def on_host(value: Any) -> Any:
    """A copy of a nested value on the CPU that later in-place operators do not change."""
    return trees.map_tensors(lambda t: t.detach().cpu().clone(), value)
