"""The classifier with a branch that few requests take, and a host operator hidden in it.

A demonstration with ordinary requests never shows it: one request in two hundred has a row that is
out of range, and the branch for those calls an operator that the device has no kernel for.
"""

import torch

from neuron_readiness.pilot import Case

name = "classifier with a rare branch"
compile = False  # the branch reads a value


@torch.library.custom_op("clinic::spectral_radius", mutates_args=(), device_types="cpu")
def spectral_radius(x: torch.Tensor) -> torch.Tensor:
    """Largest absolute eigenvalue: an operator of this workload's own, written for the CPU."""
    return torch.linalg.eigvals(x).abs().amax()


@spectral_radius.register_fake
def _(x):
    return x.new_empty(())


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5)
        )

    def forward(self, x):
        if x.shape[-2] > 4:
            # Repairs a long request by its spectrum.
            x = x / spectral_radius(x.mT @ x).sqrt()
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
