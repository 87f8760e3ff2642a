"""What went in: the model's identity and the distribution of each input, so that a claim can be
held against what it was tested on."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.pilot import Case

_PIECE = 1 << 26  # elements hashed at once


def identity(model: Any) -> dict[str, Any]:
    """Class, size, dtypes and a hash of the weights (names, dtypes, shapes and bytes)."""
    facts: dict[str, Any] = {
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "parameters": None,
        "dtypes": {},
        "sha256": None,
    }
    if not isinstance(model, torch.nn.Module):
        return facts
    digest = hashlib.sha256()
    dtypes: Counter[str] = Counter()
    for name, tensor in sorted(trees.named_tensors(dict(model.state_dict()), "")):
        kind = str(tensor.dtype).removeprefix("torch.")
        dtypes[kind] += tensor.numel()
        digest.update(f"{name} {kind} {list(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        for piece in flat.split(_PIECE):
            digest.update(piece.view(torch.uint8).numpy().tobytes())
    return facts | {
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtypes": dict(dtypes),
        "sha256": digest.hexdigest(),
    }


def distribution(case: Case) -> list[dict[str, Any]]:
    """One row for each tensor of a case: range, mean, spread, zeros, and what is not finite."""
    group = "hard" if case.hard else "train" if case.train else "ordinary"
    rows = []
    for name, tensor in trees.named_tensors((case.args, case.kwargs), ""):
        values = tensor.detach().cpu()
        wide = (values.abs() if values.is_complex() else values).double().flatten()
        finite = wide[wide.isfinite()]
        known = finite.numel() > 0
        rows.append(
            {
                "case": case.name,
                "group": group,
                "frequency": case.frequency,
                "input": _readable(name),
                "dtype": str(values.dtype).removeprefix("torch."),
                "shape": list(values.shape),
                "least": float(finite.min()) if known else None,
                "largest": float(finite.max()) if known else None,
                "mean": float(finite.mean()) if known else None,
                "spread": float(finite.std(correction=0)) if known else None,
                "zeros": float((wide == 0).double().mean()) if wide.numel() else None,
                "not_finite": wide.numel() - finite.numel(),
            }
        )
    return rows


def _readable(path: str) -> str:
    """``[0][1]`` -> ``args[1]``, ``[1].ids`` -> ``ids``: how the pilot wrote it."""
    if path.startswith("[0]"):
        return f"args{path[3:]}"
    return path.removeprefix("[1]").removeprefix(".")
