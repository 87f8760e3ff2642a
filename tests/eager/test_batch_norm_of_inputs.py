"""Batch norm as a first layer, whose input needs no gradient; gradients of any strides."""

from __future__ import annotations

import copy

import pytest
import torch


def pair(channels: int, train: bool) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The same batch norm on the CPU and on the device."""
    torch.manual_seed(0)
    reference = torch.nn.BatchNorm2d(channels).train(train)
    return reference, copy.deepcopy(reference).to("neuron")


def check_gradients(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, check_device=False)


@pytest.mark.parametrize("train", [True, False])
def test_the_input_may_need_no_gradient(train: bool) -> None:
    reference, model = pair(3, train)
    x = torch.randn(2, 3, 4, 4)
    (reference(x) ** 2).sum().backward()
    (model(x.to("neuron")) ** 2).sum().backward()
    check_gradients(model, reference)


@pytest.mark.parametrize("train", [True, False])
def test_the_strides_of_the_gradient_change_nothing(train: bool) -> None:
    """The CPU's own kernel of PyTorch 2.13 does differ, so it is given a contiguous gradient."""
    reference, model = pair(24, train)
    x = torch.randn(1, 24, 2, 2)
    gradient = torch.randn(1, 4, 24).permute(0, 2, 1).view(1, 24, 2, 2)
    assert not gradient.is_contiguous()
    reference(x).backward(gradient.contiguous())
    model(x.to("neuron")).backward(gradient.to("neuron"))
    check_gradients(model, reference)
