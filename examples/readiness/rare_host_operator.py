"""The classifier with a branch that few requests take, and a host operator hidden in it.

A demonstration with ordinary requests never shows it: one request in two hundred has a row that is
out of range, and the branch for those calls an operator that the device has no kernel for.
"""

import torch

from neuron_readiness.pilot import Case

name = "classifier with a rare branch"
compile = False  # the branch reads a value


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5)
        )

    def forward(self, x):
        if x.shape[-2] > 4:
            # Repairs a long request by its spectrum.
            size = torch.linalg.eigvals(x.mT @ x).abs().amax()
            x = x / size.sqrt()
        return self.layers(x)


def model():
    return Model()


def inputs(split):
    make = torch.Generator().manual_seed(1)
    if split == "requests":
        yield Case("ordinary", (torch.randn(2, 8, generator=make),), frequency=199)
        yield Case("long", (torch.randn(8, 8, generator=make),), frequency=1)


def scores(output):
    return output
