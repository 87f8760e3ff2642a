"""Results are channels last where their inputs are, as on CPU, and so are their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

IMAGE = (2, 4, 6, 6)
CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "conv2d": (F.conv2d, (IMAGE, (8, 4, 3, 3))),
    "conv2d of one": (F.conv2d, (IMAGE, (8, 4, 1, 1))),
    "conv3d": (F.conv3d, ((2, 4, 5, 6, 7), (8, 4, 3, 3, 3))),
    "transposed": (F.conv_transpose2d, (IMAGE, (4, 8, 3, 3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, (4, 1, 3, 3))),
    "reflect": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), (IMAGE,)),
    "replicate": (lambda x: F.pad(x, (1, 1, 1, 1), "replicate"), (IMAGE,)),
    "roll": (lambda x: x.roll((1, 2), (0, 2)), (IMAGE,)),
    "max_pool": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (IMAGE,)),
}


def inputs(shapes: tuple[tuple[int, ...], ...], layouts: str) -> list[Tensor]:
    torch.manual_seed(0)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return [
        torch.randn(s).to(memory_format=formats[len(s)] if which == "l" else torch.preserve_format)
        for s, which in zip(shapes, layouts, strict=False)
    ]


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        (name, layouts)
        for name, (_, shapes) in CASES.items()
        for layouts in (("ll", "lc", "cl", "cc") if len(shapes) == 2 else ("l", "c"))
        # Such a weight lies in both orders; the input decides.
        if not (name in ("conv2d of one", "depthwise") and layouts == "cl")
    ],
)
def test_strides_and_values_are_cpus(name: str, layouts: str) -> None:
    function, shapes = CASES[name]
    on_cpu = [x.requires_grad_() for x in inputs(shapes, layouts)]
    on_device = [x.detach().to("neuron").requires_grad_() for x in on_cpu]
    expected, got = function(*on_cpu), function(*on_device)
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got.cpu(), expected, rtol=2e-5, atol=2e-5)
    for a, b in zip(
        torch.autograd.grad(got.square().sum(), on_device),
        torch.autograd.grad(expected.square().sum(), on_cpu),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=2e-5, atol=2e-4)


def test_a_network_stays_channels_last() -> None:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)
    ).to("neuron", memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to("neuron", memory_format=torch.channels_last)
    assert network(x).is_contiguous(memory_format=torch.channels_last)
