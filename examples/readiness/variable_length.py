"""Requests of many lengths: every new length compiles, and bucketing has a price.

The traffic is what a chat service sees: short requests often, long ones rarely.
"""

import torch

from neuron_readiness.pilot import Case

name = "variable-length requests"
LENGTHS = {7: 30, 9: 20, 12: 14, 15: 10, 19: 8, 24: 6, 30: 4, 37: 3, 48: 2, 64: 1}


class Tagger(torch.nn.Module):
    """A tag for each token."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(100, 32)
        self.mix = torch.nn.Linear(32, 32)
        self.tags = torch.nn.Linear(32, 7)

    def forward(self, ids):
        return self.tags(torch.tanh(self.mix(self.embed(ids))))


def model():
    return Tagger()


def inputs(split):
    make = torch.Generator().manual_seed(1)
    if split == "requests":
        for length, count in LENGTHS.items():
            ids = torch.randint(1, 100, (1, length), generator=make)
            yield Case(f"{length} tokens", (ids,), frequency=count)


def scores(output):
    return output[0]


def pad(args, kwargs, shapes):
    """The ids padded with 0 to the bucket's length."""
    (ids,) = args
    return (torch.nn.functional.pad(ids, (0, shapes[0][1] - ids.shape[1])),), kwargs


def unpad(output, args, kwargs):
    """The output without the rows that padding added; ``args``: the request before padding."""
    return output[:, : args[0].shape[1]]
