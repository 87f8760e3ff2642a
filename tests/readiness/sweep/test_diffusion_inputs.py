"""Inputs that are corrected by what a model says of them; toy models in diffusers' manner."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
from torch import nn

from neuron_readiness.sweep.sources import diffusers, diffusion_corrections, diffusion_inputs


class Tokens(nn.Module):
    """Image tokens and two texts, whose widths its configuration does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"in_channels": 12, "pooled_projection_dim": 20}
        self.image, self.text = nn.Linear(12, 32), nn.Linear(24, 32)
        self.norm, self.time = nn.LayerNorm(40), nn.Linear(1, 32)
        self.pooled = nn.Linear(20, 32)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_t5: torch.Tensor,
        timestep: torch.LongTensor,
        pooled_projections: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> torch.Tensor:
        assert hidden_states.dim() == 3 and pooled_projections is not None
        hidden = self.image(hidden_states) + self.text(encoder_hidden_states).mean(1, keepdim=True)
        hidden = hidden + self.norm(encoder_hidden_states_t5).mean()
        return hidden + self.time(timestep[:, None])[:, None] + self.pooled(pooled_projections)


class Video(nn.Module):
    """Frames before channels, and a list of texts without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"in_channels": 4, "sample_size": 8}
        self.stem, self.text = nn.Conv2d(4, 8, 3), nn.Linear(24, 8)

    def forward(self, sample: torch.Tensor, cap_feats: list[torch.Tensor]) -> torch.Tensor:
        batch, frames, channels, height, width = sample.shape
        assert isinstance(cap_feats, list) and cap_feats[0].dim() == 2
        condition = self.text(cap_feats[0]).mean(0)[:, None, None]
        return self.stem(sample.reshape(batch * frames, channels, height, width)) + condition


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = {"in_channels": 3}
        self.classes = nn.Embedding(10, 3)

    def forward(
        self, sample: torch.Tensor, class_labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        return sample + self.classes(class_labels)[..., None, None]


def found(model: Any) -> tuple[str, dict[str, Any]]:
    for recipe, guess in diffusion_inputs.candidates(model):
        try:
            return recipe, diffusion_corrections.runs(model, guess, diffusion_inputs.axis(recipe))
        except Exception:
            continue
    raise AssertionError("no inputs were found")


def test_unknown_widths_are_learnt_from_errors() -> None:
    recipe, inputs = found(Tokens())
    assert recipe == "tokens"
    shapes = {name: tuple(value.shape) for name, value in inputs.items()}
    assert shapes == {
        "hidden_states": (1, 16, 12),
        "encoder_hidden_states": (1, 8, 24),
        "encoder_hidden_states_t5": (1, 8, 40),
        "timestep": (1,),
        "pooled_projections": (1, 20),
    }


def test_lists_are_given_without_a_batch() -> None:
    recipe, inputs = found(Video())
    assert recipe == "frames"
    assert inputs["cap_feats"][0].shape == (8, 24)


def test_unknown_channels_are_learnt_from_errors() -> None:
    model = nn.Conv2d(6, 8, 3)
    inputs = diffusion_corrections.runs(model, {"input": torch.ones(1, 61, 8, 8)})
    assert inputs["input"].shape == (1, 6, 8, 8)


def test_labels_are_given_where_nothing_else_helps() -> None:
    recipe, inputs = found(Labelled())
    assert recipe == "image latents, all, labels" and inputs["class_labels"].dtype == torch.int64


def test_widths_of_norms_are_learnt_from_errors() -> None:
    for norm in (nn.LayerNorm(12), nn.RMSNorm(12)):
        inputs = diffusion_corrections.runs(
            norm, {next(iter(signature(norm.forward).parameters)): torch.ones(2, 3, 61)}
        )
        assert next(iter(inputs.values())).shape == (2, 3, 12)


def test_what_teaches_nothing_is_raised() -> None:
    class Refuses(nn.Module):
        def forward(self, sample: torch.Tensor) -> torch.Tensor:
            raise ValueError("never")

    with pytest.raises(ValueError, match="never"):
        diffusion_corrections.runs(Refuses(), {"sample": torch.ones(1, 2)})


def test_a_size_that_two_arguments_have_is_not_corrected() -> None:
    """Which of them is wrong cannot be told."""
    model = nn.Bilinear(4, 6, 2)
    inputs = {"input1": torch.ones(3, 5), "input2": torch.ones(3, 5)}
    with pytest.raises(RuntimeError):
        diffusion_corrections.runs(model, inputs)


class Particular(nn.Module):
    """Layers of texts, time by frames, an option that it refuses, channels last joined with a mask,
    tokens as many as patches, and places in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"in_channels": 16, "num_text_layers": 3}
        self.patches, self.text = nn.Linear(4 * 17, 8), nn.Linear(24, 8)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        prior_token_id: torch.Tensor,
        position_ids: torch.Tensor,
        visual_token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if visual_token_type_ids is not None:
            raise ValueError("`visual_token_type_ids` requires `visual_token_types > 0`")
        batch, frames, height, width, channels = hidden_states.shape
        batch, _seq_len, num_text_layers, _dim = encoder_hidden_states.shape
        _batch_size, num_frames = timestep.shape
        assert num_frames == frames and num_text_layers == 3
        if position_ids.dim() != 3:
            raise ValueError("`position_ids` must have shape (B, L, 3)")
        grouped = hidden_states.view(batch, frames, height // 2, 2, width // 2, 2, channels)
        patches = self.patches(grouped.movedim(3, 4).flatten(4))
        tokens = patches.flatten(1, 3) + prior_token_id[..., None]
        assert encoder_hidden_states.shape[1] == 8
        return tokens.sum(1) + self.text(encoder_hidden_states).sum((1, 2))


def test_what_errors_say_of_arguments_is_heeded() -> None:
    recipe, inputs = found(Particular())
    assert recipe == "video, channels last"
    shapes = {name: tuple(value.shape) for name, value in inputs.items()}
    assert shapes == {
        "hidden_states": (1, 5, 16, 16, 17),
        "encoder_hidden_states": (1, 8, 3, 24),
        "timestep": (1, 5),
        "prior_token_id": (1, 320),
        "position_ids": (1, 24, 3),
    }
    everything = dict(diffusion_inputs.candidates(Particular()))["video, channels last, all"]
    assert "visual_token_type_ids" in everything
    corrected = diffusion_corrections.runs(Particular(), everything, -1)
    assert {n: tuple(v.shape) for n, v in corrected.items()} == shapes


def test_each_argument_that_can_be_meant_is_tried() -> None:
    class Second(nn.Module):
        def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return x.expand(1, 6, 4) + b

    inputs = {"x": torch.ones(1, 1, 4), "a": torch.ones(1, 8, 4), "b": torch.ones(1, 8, 4)}
    corrected = diffusion_corrections.runs(Second(), inputs)
    assert corrected["b"].shape == (1, 6, 4)


def test_corrections_that_go_round_in_a_circle_end() -> None:
    calls = []

    class Circle(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(x.shape[-1])
            raise RuntimeError(
                f"mat1 and mat2 shapes cannot be multiplied (1x{x.shape[-1]} and "
                f"{5 if x.shape[-1] == 4 else 4}x2)"
            )

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        diffusion_corrections.runs(Circle(), {"x": torch.ones(1, 4)})
    assert calls == [4, 5]


def test_widths_stay_multiples_of_groups() -> None:
    small = {"channels": (20, 40), "width": 20, "kept": 48}
    whole = {"channels": (320, 640), "width": 320, "kept": 48}
    assert diffusers._grouped(small, whole, 32) == {"channels": (32, 64), "width": 32, "kept": 48}
