"""Convolution, pooling, resizing, normalisation, embedding."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regressions.both import both_raise, same_on_both


def test_convolution_of_a_channel_of_channels_last() -> None:
    def case(device: str) -> torch.Tensor:
        x = torch.arange(4.0).reshape(1, 2, 1, 2).contiguous(memory_format=torch.channels_last)
        weight = torch.full((1, 1, 1, 1), 2.0)
        return F.conv2d(x.to(device)[:, :1], weight.to(device))

    same_on_both(case)


@pytest.mark.parametrize("kind", ["train", "eval", "no affine"])
@pytest.mark.parametrize("layout", ["channels_last", "permuted", "sliced"])
def test_batch_norm_gradients_of_strided_inputs(kind: str, layout: str) -> None:
    def case(device: str) -> list[torch.Tensor]:
        norm = nn.BatchNorm2d(3, affine=kind != "no affine")
        norm.running_mean.add_(0.5)
        norm.train(kind != "eval").to(device)
        x = torch.randn(4, 6, 5, 5).to(device)
        if layout == "channels_last":
            x = x[:, :3].contiguous(memory_format=torch.channels_last)
        elif layout == "permuted":
            x = x[:, :3].permute(0, 1, 3, 2)
        else:
            x = x[:, ::2]
        x = x.detach().requires_grad_()
        y = norm(x)
        (y * torch.arange(y.numel(), device=device).view_as(y).sin()).sum().backward()
        results = [y.detach(), x.grad, norm.running_mean, norm.running_var]
        return results + [p.grad for p in norm.parameters()]

    same_on_both(case, scale=5)


def test_lstm_input_gradient_of_a_permuted_input() -> None:
    def case(device: str) -> torch.Tensor:
        lstm = nn.LSTM(4, 3).to(device)
        x = torch.randn(2, 5, 4).to(device).permute(1, 0, 2).requires_grad_()
        lstm(x)[0].square().sum().backward()
        return x.grad

    same_on_both(case)


def test_transposed_convolution_with_a_channels_last_weight() -> None:
    def case(device: str) -> torch.Tensor:
        layer = nn.ConvTranspose2d(1, 1, 3, bias=False).to(device)
        with torch.no_grad():
            layer.weight.fill_(1)
        layer = layer.to(memory_format=torch.channels_last)
        return layer(torch.ones(1, 1, 2, 2, device=device)).detach()

    assert same_on_both(case).max().item() == 4


def test_convolution_after_permuting() -> None:
    def case(device: str) -> list[torch.Tensor]:
        conv, norm = nn.Conv1d(4, 6, 3, padding=1).to(device), nn.LayerNorm(6).to(device)
        x = torch.randn(2, 7, 4).to(device).requires_grad_()
        norm(conv(x.transpose(1, 2)).transpose(1, 2)).square().sum().backward()
        return [x.grad, conv.weight.grad, norm.weight.grad]

    same_on_both(case, scale=10)


@pytest.mark.parametrize("mode", ["linear", "nearest", "nearest-exact"])
def test_resizing_one_dimension(mode: str) -> None:
    def case(device: str) -> list[torch.Tensor]:
        results = []
        for size, target in ((1, 3), (20, 11), (3, 7)):
            x = torch.arange(2.0 * size, device=device).reshape(1, 2, size)
            results.append(F.interpolate(x, size=target, mode=mode))
            results.append(F.interpolate(x, scale_factor=1.7, mode=mode))
            if mode == "linear":
                results.append(F.interpolate(x, size=target, mode=mode, align_corners=True))
        return results

    same_on_both(case)


def test_grid_sample_in_both_memory_formats_and_orders() -> None:
    def case(device: str) -> list[torch.Tensor]:
        x = torch.randn(2, 3, 4, 5).to(device)
        grid = F.affine_grid(torch.eye(2, 3).expand(2, 2, 3), [2, 3, 4, 5], True).to(device)
        formats = [torch.contiguous_format, torch.channels_last]
        results = []
        for order in (formats, formats[::-1]):
            for memory_format in order:
                y = x.contiguous(memory_format=memory_format)
                results.append(F.grid_sample(y, grid, align_corners=True))
                torch.testing.assert_close(results[-1], x, rtol=1e-4, atol=1e-4)
        return results

    same_on_both(case)


def test_resizing_then_convolving() -> None:
    def case(device: str) -> list[torch.Tensor]:
        layers = nn.Sequential(nn.Upsample(scale_factor=2, mode="linear"), nn.Conv1d(3, 2, 3))
        layers.to(device)
        x = torch.randn(2, 3, 8).to(device).requires_grad_()
        y = layers(x)
        y.square().sum().backward()
        return [y.detach(), x.grad]

    same_on_both(case, scale=5)


def test_bad_embedding_indices_are_refused() -> None:
    index_error = both_raise(
        lambda d: nn.Embedding(10, 2).to(d)(torch.tensor([10], device=d)).cpu(),
        "index out of range",
    )
    assert index_error is IndexError
    both_raise(lambda d: nn.EmbeddingBag(10, 2).to(d)(torch.tensor([[-1]], device=d)).cpu())


def test_one_operator_in_every_order_of_sizes_and_dtypes() -> None:
    """A cached result of another size, dtype, layout or number must not answer."""
    arguments = [
        (width, dtype, transposed, value)
        for width, dtype, transposed in itertools.product(
            (36, 48), (torch.float32, torch.int64), (False, True)
        )
        for value in (2, 3)
    ]

    def case(device: str) -> list[torch.Tensor]:
        results = []
        for width, dtype, transposed, value in [*arguments, *reversed(arguments)]:
            x = (torch.arange(3 * width) * 7 % 31).reshape(3, width).to(dtype).to(device)
            y = x.t() if transposed else x
            results += [torch.median(y, 1).values, (y * value).sum(), y.cumsum(1)]
        return results

    same_on_both(case)
