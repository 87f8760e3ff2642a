"""What each optional part of a pilot is, and what it must look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TOLERANCES = ("output", "gradient", "trajectory", "metric")

OPTIONAL: dict[str, str] = {
    "name": "title of the report (default: the file's name)",
    "seed": "seed of every run (default 0)",
    "preprocess": "preprocess(*args, **kwargs) -> (args, kwargs), on the host",
    "forward": "forward(model, *args, **kwargs) (default: model(*args, **kwargs))",
    "postprocess": "postprocess(output) -> result of the request",
    "loss": "loss(output, *args, **kwargs) -> scalar, for the comparison of gradients",
    "log": "log(output): what a request or step writes to logs",
    "decide": "decide(output) -> integer tensor: the decisions taken",
    "scores": "scores(output) -> float tensor (items, classes): what decisions are taken from",
    "threshold": "a decision is scores > threshold, instead of the largest score",
    "task_metric": "task_metric(outputs, cases) -> number or {name: number}",
    "tolerances": "{'output'|'gradient'|'trajectory'|'metric': {'rtol', 'atol', 'why'}}",
    "optimizer": "optimizer(model) (default AdamW, lr 1e-3)",
    "train_step": "train_step(model, optimizer, *args, **kwargs) -> loss",
    "save_checkpoint": "save_checkpoint(path, model, optimizer, position)",
    "load_checkpoint": "load_checkpoint(path, model, optimizer) -> position",
    "pad": "pad(args, kwargs, shapes) -> (args, kwargs): a request padded to a bucket's shapes",
    "unpad": "unpad(output, args, kwargs) -> output without what padding added",
    "compile": "True or keyword arguments of torch.compile: that path is timed; False: eager only",
    "accepted_fallbacks": "{'aten::name': 'why running it on the host is acceptable'}",
    "kernels": "[{'name', 'owner', 'test'}]: custom kernels and who keeps them",
    "concurrency": "requests in flight at once in production (default 1)",
    "operations_per_worker": "requests that a short-lived worker serves (default 10)",
    "hbm_bytes": "memory of the target where the adapter does not know it",
    "simplified": "what this pilot leaves out of the real workload, in words",
    "baseline": "git revision before the migration, for the count of changed lines",
    "effort": "{'lines_changed', 'hours', 'note'}: effort where no git baseline is at hand",
    "code": "further files or folders of the workload that the inventory reads",
    "launch": "launch(rank, world_size, folder, resume, step_done) -> dict: a distributed job",
    "world_size": "ranks of `launch` (default 2)",
    "gates": "{'gate': {'level', 'limit'}}: this workload's requirements over the default gates",
}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _tolerances(value: Any) -> bool:
    """Nothing but known names: an acceptance rule that is misspelt must not be one that is not
    there."""
    return isinstance(value, Mapping) and all(
        kind in TOLERANCES
        and isinstance(entries, Mapping)
        and set(entries) <= {"rtol", "atol", "why"}
        and all(_number(entries.get(k, 0.0)) for k in ("rtol", "atol"))
        for kind, entries in value.items()
    )


def _reasons(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(w, str) and w for w in value.values())


def _kernels(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(k, Mapping) and isinstance(k.get("name"), str) for k in value
    )


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(value: Any) -> bool:
    return isinstance(value, Mapping)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "name": _text,
    "seed": lambda v: isinstance(v, int),
    "threshold": _number,
    "tolerances": _tolerances,
    "compile": lambda v: isinstance(v, (bool, Mapping)),
    "accepted_fallbacks": _reasons,
    "kernels": _kernels,
    "concurrency": _count,
    "operations_per_worker": _count,
    "hbm_bytes": _count,
    "simplified": _text,
    "baseline": _text,
    "effort": _table,
    "code": lambda v: isinstance(v, (list, tuple)) and all(map(_text, v)),
    "world_size": _count,
    "gates": lambda v: _table(v) and all(map(_table, v.values())),
}


def complaint(name: str, value: Any) -> str | None:
    """What is wrong with an optional part, or None. Parts without a check are functions."""
    if value is None or _CHECKS.get(name, callable)(value):
        return None
    return f"`{name}` is {value!r:.200}; expected {OPTIONAL[name]}"
