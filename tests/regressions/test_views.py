"""Views, strides, storage, in-place writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regressions.both import same_on_both
from support import to_device


def test_rebinding_data_leaves_older_views_alone() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.arange(4.0, device=device)
        y = x.view(2, 2)
        x.data.add_(1)
        shared = y.clone()
        x.data = x.data + 1
        return [shared, y, x]

    same_on_both(case)


def test_data_of_another_length_while_a_view_lives() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.arange(12.0, device=device).reshape(3, 4)
        y = x.view(-1)
        x.data = y[:5] + 1
        return [x, y]

    x, _ = same_on_both(case)
    assert x.shape == (5,)


@pytest.mark.parametrize("force", [lambda t: t.cpu(), lambda t: torch.accelerator.synchronize()])
def test_a_view_still_reaches_its_base_after_a_synchronisation(force: Any) -> None:
    def case(device: str) -> torch.Tensor:
        base = torch.zeros(3, 4, device=device)
        view = base.t()[1:3]
        force(view)
        view.add_(1)
        force(base)
        view[0].mul_(5)
        return base

    same_on_both(case)


def test_gradient_after_overwriting_a_slice_of_an_intermediate() -> None:
    def case(device: str) -> torch.Tensor:
        layer = torch.nn.Linear(3, 5)
        x = torch.randn(4, 3)
        layer, x = layer.to(device), x.to(device)
        y = layer(x)
        y[:, :2] = 0
        y.sum().backward()
        return layer.weight.grad

    grad = same_on_both(case)
    assert not grad[:2].any() and grad[2:].all()


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("direction", ["down", "up", "across"])
def test_copies_between_equally_strided_views_leave_the_gaps(step: int, direction: str) -> None:
    def case(device: str) -> list[torch.Tensor]:
        source_device = "cpu" if direction == "up" else device
        target_device = "cpu" if direction == "down" else device
        source = torch.arange(24.0, device=source_device)
        target = -torch.ones(24, device=target_device)
        target[1::step].copy_(source[1::step])
        matrix = -torch.ones(4, 6, device=target_device)
        matrix[::2, 1::step].copy_(source.view(4, 6)[::2, 1::step])
        return [target.to(device), matrix.to(device)]

    same_on_both(case)


def test_a_slice_of_a_slice() -> None:
    def case(device: str) -> torch.Tensor:
        x = torch.arange(24.0, device=device).reshape(2, 3, 4)[:1]
        return x[:, 0:1, 0:1] * x[:, 1:2, 1:2]

    assert same_on_both(case).shape == (1, 1, 1)


def test_reductions_over_a_slice_of_the_last_dimension() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.arange(40.0, device=device).reshape(5, 8) / 10
        part = x[..., :4]
        return [torch.softmax(part, 1)[..., 0], part.sum(-1), part.amax(-1), part.std(-1)]

    same_on_both(case)


def test_tensors_of_strided_arrays() -> None:
    def case(device: str) -> list[torch.Tensor]:
        array = np.arange(9).reshape(3, 3)
        return [
            torch.tensor(array[:, :2], device=device),
            torch.from_numpy(array[:, :2]).to(device),
            torch.from_numpy(array.T).to(device),
            torch.as_tensor(array[::2, ::-1].copy(), device=device),
        ]

    same_on_both(case)


LAYOUTS = {
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "transposed": lambda x: x.transpose(1, 3),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "flipped": lambda x: x.flip(1, 3),
    "sliced": lambda x: x[:, 1:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moving_strided_tensors(layout: str) -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = LAYOUTS[layout](torch.arange(120).reshape(2, 3, 4, 5))
        moved = x.to(device)
        # As on CUDA: dense tensors keep their strides, others become dense.
        if device != "cpu":
            assert moved.stride() == x.clone(memory_format=torch.preserve_format).stride()
        return [moved, moved.cpu().to(device), moved + 0]

    same_on_both(case)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64, torch.complex64]
)
def test_assigning_one_element(dtype: torch.dtype) -> None:
    def case(device: str) -> torch.Tensor:
        x = torch.zeros(9, dtype=dtype, device=device)
        for i in (0, 1, 8, -3):
            x[i] = True
        return x

    assert same_on_both(case).sum().item() == 4


def test_elements_and_initialisers_of_views() -> None:
    def case(device: str) -> list[torch.Tensor]:
        w = torch.zeros(2, 3, 3, 3, device=device)
        w[0, 1, 0, 0] = 3
        dirac = torch.nn.init.dirac_(torch.empty(2, 3, 3, 3, device=device))
        chain = torch.zeros(4, 6, device=device)
        chain.view(2, 2, 6)[1].t()[::2].view(3, 2).fill_(7)
        return [w, dirac, chain]

    same_on_both(case)


def test_gradients_as_views_of_a_bucket() -> None:
    # What DistributedDataParallel(gradient_as_bucket_view=True) does.
    def case(device: str) -> list[torch.Tensor]:
        layer = torch.nn.Linear(3, 2)
        x = torch.randn(5, 3).to(device)
        layer.to(device)
        bucket = torch.zeros(8, device=device)
        layer.weight.grad = bucket[:6].view(2, 3)
        layer.bias.grad = bucket[6:].view(2)
        layer(x).square().sum().backward()
        bucket.div_(2)
        torch.optim.SGD(layer.parameters(), lr=1.0).step()
        return [bucket, layer.weight.detach(), layer.bias.detach()]

    same_on_both(case)


def test_a_strided_argument_keeps_its_meaning_in_every_position() -> None:
    x = torch.arange(48.0).reshape(4, 12)[:, 1::2]

    def case(device: str) -> list[torch.Tensor]:
        a = to_device(x) if device == "neuron" else x
        other = torch.ones(6, 4, device=device)
        return [a @ other, other @ a, torch.cat([a, other.t()]), torch.where(a > 9, a, other.t())]

    same_on_both(case)
