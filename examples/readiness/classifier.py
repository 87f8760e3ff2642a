"""A classifier that is ready: the pilot of docs/readiness.md.

neuron-readiness run examples/readiness/classifier.py --device neuron
"""

import torch

from neuron_readiness.pilot import Case

name = "classifier"
concurrency = 2
effort = {"lines_changed": 1, "note": "the device's name"}


def model():
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 5)
    )


def inputs(split):
    make = torch.Generator().manual_seed(1)
    if split == "requests":
        for rows, share in ((1, 0.8), (16, 0.2)):
            yield Case(f"{rows} rows", (torch.randn(rows, 32, generator=make),), frequency=share)


def scores(output):
    return output


def loss(output, x):
    return torch.nn.functional.cross_entropy(output, torch.arange(len(x), device=x.device) % 5)


def task_metric(outputs, cases):
    """Share of rows whose decision is class 0."""
    chosen = torch.cat([o.argmax(-1) for o in outputs])
    return {"class 0": float((chosen == 0).float().mean())}
