"""MONAI: three-dimensional networks, a segmentation step and sliding-window inference."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from clients.common import library, numbers, same_as_cpu
from support import assert_same, no_fallback

CLIENTS = ("monai",)
pytestmark = pytest.mark.clients


def network(name: str) -> Any:
    nets = library("monai.networks.nets")
    torch.manual_seed(0)
    made = {
        "UNet": lambda: nets.UNet(3, 1, 2, channels=(4, 8), strides=(2,), num_res_units=1),
        "SegResNet": lambda: nets.SegResNet(
            3, init_filters=8, in_channels=1, out_channels=2, blocks_down=(1, 1), blocks_up=(1,)
        ),
        "AutoEncoder": lambda: nets.AutoEncoder(3, 1, 1, channels=(4, 8), strides=(2, 2)),
        "DenseNet": lambda: nets.DenseNet(
            3, 1, 2, init_features=8, growth_rate=4, block_config=(2,)
        ),
        "UNETR": lambda: nets.UNETR(
            1, 2, img_size=16, feature_size=4, hidden_size=16, mlp_dim=32, num_heads=4
        ),
    }[name]()
    return made.eval()


@pytest.mark.parametrize("name", ["UNet", "SegResNet", "AutoEncoder", "DenseNet", "UNETR"])
def test_networks_and_gradients(name: str) -> None:
    same_as_cpu(network(name), numbers(1, 1, 16, 16, 16), train=True, scale=20)


def test_segmentation_step_and_sliding_windows() -> None:
    losses, inferers = library("monai.losses"), library("monai.inferers")
    metrics = library("monai.metrics")
    volume, label = numbers(1, 1, 16, 16, 16), (numbers(1, 1, 16, 16, 16, seed=2) > 0).long()

    def run(model: Any, device: str) -> tuple[list[float], torch.Tensor, torch.Tensor]:
        criterion = losses.DiceCELoss(to_onehot_y=True, softmax=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        seen = []
        for _ in range(2):
            loss = criterion(model(volume.to(device)), label.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
        with torch.no_grad():
            whole = inferers.sliding_window_inference(
                numbers(1, 1, 20, 16, 16, seed=3).to(device), (16, 16, 16), 2, model
            )
        chosen = torch.nn.functional.one_hot(model(volume.to(device)).argmax(1), 2)
        truth = torch.nn.functional.one_hot(label.to(device)[:, 0], 2)
        dice = metrics.compute_dice(chosen.movedim(-1, 1), truth.movedim(-1, 1))
        return seen, whole, dice

    model = network("UNet").train()
    moved = copy.deepcopy(model).to("neuron")
    expected = run(model, "cpu")
    with no_fallback():
        got = run(moved, "neuron")
    assert got[0] == pytest.approx(expected[0], rel=1e-4)
    assert_same(got[1], expected[1], strides=False, scale=20)
    assert_same(got[2], expected[2], strides=False, scale=500)  # a voxel near a tie may change
