"""Inputs that are corrected by what a model says of them; toy models in diffusers' manner."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neuron_readiness.sweep.sources import diffusion_inputs


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
            return recipe, diffusion_inputs.runs(model, guess)
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
    inputs = diffusion_inputs.runs(model, {"input": torch.ones(1, 61, 8, 8)})
    assert inputs["input"].shape == (1, 6, 8, 8)


def test_labels_are_given_where_nothing_else_helps() -> None:
    recipe, inputs = found(Labelled())
    assert recipe == "image latents, all, labels" and inputs["class_labels"].dtype == torch.int64


def test_what_teaches_nothing_is_raised() -> None:
    class Refuses(nn.Module):
        def forward(self, sample: torch.Tensor) -> torch.Tensor:
            raise ValueError("never")

    with pytest.raises(ValueError, match="never"):
        diffusion_inputs.runs(Refuses(), {"sample": torch.ones(1, 2)})


def test_a_size_that_two_arguments_have_is_not_corrected() -> None:
    """Which of them is wrong cannot be told."""
    model = nn.Bilinear(4, 6, 2)
    inputs = {"input1": torch.ones(3, 5), "input2": torch.ones(3, 5)}
    with pytest.raises(RuntimeError):
        diffusion_inputs.runs(model, inputs)
