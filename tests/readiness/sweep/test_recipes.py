"""Inputs that are found from a forward's signature and a configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from neuron_readiness.sweep.recipes import candidates


def recipes_of(forward: Any, **config: Any) -> dict[str, dict[str, Any]]:
    return dict(candidates(SimpleNamespace(forward=forward), SimpleNamespace(**config)))


def test_text_comes_with_a_mask_and_ids_from_the_middle_of_the_vocabulary() -> None:
    def forward(input_ids: Any, attention_mask: Any = None) -> None: ...

    ids = recipes_of(forward, vocab_size=512)["ids"]
    assert ids["input_ids"].shape == ids["attention_mask"].shape == (1, 8)
    assert ids["input_ids"].min() >= 128 and ids["input_ids"].max() < 256


def test_what_is_required_comes_with_it_and_what_is_optional_in_a_second_try() -> None:
    def forward(pixel_values: Any, pixel_position_ids: Any, spatial_shapes: Any = None) -> None: ...

    found = recipes_of(forward, image_size=64, patch_size=16, num_channels=3)
    rows = found["rows of patches"]
    assert rows["pixel_values"].shape == (1, 16, 3 * 16 * 16)
    assert rows["pixel_position_ids"].tolist()[0][5] == [1, 1] and "spatial_shapes" not in rows
    assert found["rows of patches, all"]["spatial_shapes"].tolist() == [[4, 4]]


def test_a_vision_tower_gets_patches_with_their_grid() -> None:
    def forward(hidden_states: Any, grid_thw: Any) -> None: ...

    found = recipes_of(forward, patch_size=14, in_channels=3, spatial_merge_size=2)
    assert found["patches"]["grid_thw"].tolist() == [[1, 8, 8]]
    assert found["patches"]["hidden_states"].shape[0] == 64

    def merging(pixel_values: Any, grid_thw: Any, merge_sizes: Any) -> None: ...

    assert recipes_of(merging, patch_size=14)["patches"]["merge_sizes"].tolist() == [1]


class WithImages:
    """As many image tokens among the ids as the image has features."""

    def forward(
        self, input_ids: Any, pixel_values: Any = None, mm_token_type_ids: Any = None
    ) -> Any:
        del pixel_values, mm_token_type_ids
        return input_ids

    def get_image_features(self, pixel_values: torch.Tensor) -> Any:
        if pixel_values.dim() != 4:
            raise ValueError("expected images")
        return SimpleNamespace(pooler_output=torch.zeros(1, 5, 32))


def test_ids_hold_a_token_for_each_feature_of_an_image() -> None:
    text = SimpleNamespace(hidden_size=32, vocab_size=512)
    config = SimpleNamespace(image_token_id=7, text_config=text, image_size=64)
    name, inputs = next(candidates(WithImages(), config))
    assert name == "ids+pixels"
    assert (inputs["input_ids"] == 7).sum() == 5 and inputs["input_ids"].shape == (1, 13)
    assert inputs["mm_token_type_ids"].sum() == 5 and inputs["pixel_values"].shape[-1] == 64
