"""diffusers: a UNet and a transformer with schedulers, a training step with an average of weights,
an autoencoder; saved and loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.common import library, numbers, same_as_cpu
from support import assert_same, no_fallback, to_device

CLIENTS = ("diffusers",)
pytestmark = pytest.mark.clients


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    library("diffusers").utils.logging.set_verbosity_error()
    yield


def unet() -> Any:
    torch.manual_seed(0)
    return (
        library("diffusers")
        .UNet2DConditionModel(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            layers_per_block=1,
            block_out_channels=(16, 32),
            norm_num_groups=8,
            cross_attention_dim=16,
            attention_head_dim=4,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        )
        .eval()
    )


def transformer(name: str) -> Any:
    torch.manual_seed(0)
    options: dict[str, dict[str, Any]] = {
        "DiTTransformer2DModel": {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 2,
            "norm_num_groups": 4,
            "sample_size": 8,
            "patch_size": 2,
            "num_embeds_ada_norm": 10,
        },
        "FluxTransformer2DModel": {
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": [4, 4, 8],
        },
    }
    return getattr(library("diffusers"), name)(**options[name]).eval()


def steps(
    model: Any, scheduler_name: str, device: str, callee: Any = None, count: int = 4
) -> torch.Tensor:
    """The sample after a few steps from a noise that a CPU generator draws."""
    diffusers = library("diffusers")
    scheduler = getattr(diffusers, scheduler_name)(num_train_timesteps=100)
    scheduler.set_timesteps(count, device=device)
    generator = torch.Generator().manual_seed(2)
    randn = diffusers.utils.torch_utils.randn_tensor
    sample = randn((2, 4, 8, 8), generator=generator, device=torch.device(device))
    sample = sample * scheduler.init_noise_sigma
    text = numbers(2, 5, 16).to(device)
    for t in scheduler.timesteps:
        scaled = scheduler.scale_model_input(sample, t)
        noise = (model if callee is None else callee)(scaled, t, encoder_hidden_states=text).sample
        extra = {} if "Scheduler" not in scheduler_name else _generator(scheduler, generator)
        sample = scheduler.step(noise, t, sample, **extra).prev_sample
    return sample


def _generator(scheduler: Any, generator: torch.Generator) -> dict[str, Any]:
    """The generator, where the scheduler draws noise of its own."""
    return {"generator": generator} if "generator" in scheduler.step.__code__.co_varnames else {}


@pytest.mark.parametrize(
    "name",
    [
        "DDIMScheduler",
        "EulerDiscreteScheduler",
        "EulerAncestralDiscreteScheduler",
        "DDPMScheduler",
        "PNDMScheduler",
        "DPMSolverMultistepScheduler",
        "UniPCMultistepScheduler",
        "HeunDiscreteScheduler",
        "LCMScheduler",
    ],
)
@torch.no_grad()
def test_sampling(name: str) -> None:
    model = unet()
    expected = steps(model, name, "cpu")
    with no_fallback():
        actual = steps(copy.deepcopy(model).to("neuron"), name, "neuron")
    assert_same(actual, expected, strides=False, scale=50)


@torch.no_grad()
def test_sampling_with_the_compiled_model() -> None:
    model = unet()
    expected = steps(model, "DDIMScheduler", "cpu")
    moved = copy.deepcopy(model).to("neuron")
    with no_fallback():
        compiled = torch.compile(moved, backend="neuron")
        actual = steps(moved, "DDIMScheduler", "neuron", compiled)
    assert_same(actual, expected, strides=False, scale=50)


def test_unet_and_its_gradients() -> None:
    same_as_cpu(
        unet(),
        numbers(2, 4, 8, 8),
        torch.tensor([3, 70]),
        numbers(2, 5, 16),
        run=lambda m, *given: m(*given).sample,
        train=True,
        scale=10,
    )


def test_dit() -> None:
    same_as_cpu(
        transformer("DiTTransformer2DModel"),
        numbers(2, 4, 8, 8),
        timestep=torch.tensor([3, 70]),
        class_labels=torch.tensor([1, 4]),
        run=lambda m, *given, **named: m(*given, **named).sample,
        train=True,
        scale=10,
    )


def test_flux_with_rotary_positions() -> None:
    same_as_cpu(
        transformer("FluxTransformer2DModel"),
        hidden_states=numbers(1, 16, 4),
        encoder_hidden_states=numbers(1, 6, 32, seed=2),
        pooled_projections=numbers(1, 32, seed=3),
        timestep=torch.tensor([0.5]),
        img_ids=torch.randint(0, 4, (16, 3), generator=torch.Generator().manual_seed(0)).float(),
        txt_ids=torch.zeros(6, 3),
        run=lambda m, **named: m(**named).sample,
        train=True,
        scale=10,
    )


def autoencoder() -> Any:
    torch.manual_seed(0)
    return (
        library("diffusers")
        .AutoencoderKL(
            block_out_channels=(8, 16),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=16,
        )
        .eval()
    )


def test_autoencoder() -> None:
    def run(model: Any, pixels: torch.Tensor) -> torch.Tensor:
        latents = model.encode(pixels).latent_dist.mode()
        result: torch.Tensor = model.decode(latents).sample
        return result

    torch.manual_seed(0)
    model = autoencoder()
    expected = run(model, numbers(2, 3, 16, 16)).detach()
    for compiled in (False, True):
        moved = copy.deepcopy(model).to("neuron")
        if compiled:
            moved.encode = torch.compile(moved.encode, backend="neuron")
            moved.decode = torch.compile(moved.decode, backend="neuron")
        with no_fallback():
            got = run(moved, numbers(2, 3, 16, 16).to("neuron"))
        assert_same(got.detach(), expected, strides=False, scale=10)


def test_training_with_an_average_of_the_weights() -> None:
    training = library("diffusers.training_utils")
    diffusers = library("diffusers")
    model = unet().train()
    moved = copy.deepcopy(model).to("neuron")

    def train(model: Any, device: str) -> tuple[list[float], Any]:
        scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
        average = training.EMAModel(model.parameters(), decay=0.9, use_ema_warmup=True)
        average.to(device)
        # Adam's default eps makes a full step of the rounding of a gradient near zero.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
        losses = []
        for i in range(2):
            clean, noise = (numbers(2, 4, 8, 8, seed=s).to(device) for s in (i, 10 + i))
            t = torch.tensor([3, 70], device=device)
            noisy = scheduler.add_noise(clean, noise, t)
            predicted = model(noisy, t, numbers(2, 5, 16).to(device)).sample
            loss = torch.nn.functional.mse_loss(predicted, noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            average.step(model.parameters())
            losses.append(loss.item())
        return losses, average

    expected, cpu_average = train(model, "cpu")
    with no_fallback():
        got, average = train(moved, "neuron")
    assert got == pytest.approx(expected, rel=1e-4)
    for a, b in zip(average.shadow_params, cpu_average.shadow_params, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_saved_and_loaded_onto_the_device(tmp_path: Path) -> None:
    model = unet().to("neuron")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, device_map="neuron").eval()
    assert loaded.device.type == "neuron"
    given = to_device((numbers(2, 4, 8, 8), torch.tensor(7), numbers(2, 5, 16)))
    assert torch.equal(loaded(*given).sample, model(*given).sample)
