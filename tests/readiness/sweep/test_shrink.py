"""Reduced configurations: what is divided, what is counted down, what is left alone."""

from __future__ import annotations

from neuron_readiness.sweep.shrink import Plan, mend, reduced, shrink

LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "bos_token_id": 1,
    "eos_token_id": 128001,
    "pad_token_id": 128004,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def test_widths_are_divided_by_one_number_and_heads_are_kept() -> None:
    small = shrink(LLAMA, 16)
    assert (small["hidden_size"], small["intermediate_size"], small["head_dim"]) == (256, 688, 8)
    assert (small["num_attention_heads"], small["num_key_value_heads"]) == (32, 8)
    assert small["num_hidden_layers"] == 2
    assert (small["vocab_size"], small["max_position_embeddings"]) == (512, 512)
    for key in ("rope_theta", "rms_norm_eps", "tie_word_embeddings", "hidden_act"):
        assert small[key] == LLAMA[key]


def test_special_tokens_stay_distinct_and_below_the_vocabulary() -> None:
    small = shrink(LLAMA, 16)
    ids = [small[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")]
    assert ids[0] == 1 and len(set(ids)) == 3 and all(i < 512 for i in ids)


def test_every_kind_of_layer_is_kept_once() -> None:
    kinds = ["sliding", "sliding", "full", "sliding", "sliding", "full"]
    small = shrink({"layer_types": kinds, "num_hidden_layers": 6, "rates": [0.1] * 6}, 16)
    assert small["layer_types"] == ["sliding", "full"]
    assert small["num_hidden_layers"] == 2
    assert small["rates"] == [0.1, 0.1]


def test_experts_images_and_parts() -> None:
    config = {
        "num_local_experts": 64,
        "num_experts_per_tok": 8,
        "vision_config": {"image_size": 336, "patch_size": 14, "hidden_size": 1024},
        "hidden_sizes": [64, 128],
        "depths": [3, 4],
    }
    small = shrink(config, 8)
    assert (small["num_local_experts"], small["num_experts_per_tok"]) == (4, 2)
    assert small["vision_config"] == {"image_size": 56, "patch_size": 14, "hidden_size": 128}
    assert small["hidden_sizes"] == [8, 16] and small["depths"] == [1, 1]
    assert config["depths"] == [3, 4]  # a copy


def test_a_divisor_of_one_changes_no_width() -> None:
    assert shrink(LLAMA, 1)["hidden_size"] == 4096


def test_depth_can_be_kept_for_who_picks_layers_by_number() -> None:
    config = {"num_hidden_layers": 12, "out_features": ["stage4"], "hidden_size": 768}
    assert shrink(config, 16) == {"num_hidden_layers": 2, "hidden_size": 48}
    kept = {"num_hidden_layers": 12, "out_features": ["stage4"], "hidden_size": 48}
    assert shrink(config, 16, keep_depth=True) == kept


def test_heads_can_become_fewer_instead_of_smaller() -> None:
    small = shrink(LLAMA, 16, fewer_heads=True)
    assert (small["num_attention_heads"], small["num_key_value_heads"]) == (2, 1)
    assert (small["head_dim"], small["hidden_size"]) == (128, 256)


def test_windows_of_attention_shrink_with_the_image() -> None:
    small = shrink({"image_size": 224, "patch_size": 4, "window_size": 7}, 16)
    assert small == {"image_size": 64, "patch_size": 4, "window_size": 2}


def test_an_intermediate_width_that_no_divisor_fits_is_rounded() -> None:
    assert shrink({"moe_intermediate_size": 1407}, 16) == {"moe_intermediate_size": 80}


def test_what_a_class_leaves_at_none_is_filled() -> None:
    kinds = ["full_attention", "sliding_attention"]
    config = {"hidden_size": 64, "num_experts_per_tok": None, "text_config": {"vocab_size": None}}
    rotary = {"layer_types": kinds, "rope_parameters": {}}
    filled = reduced({**config, **rotary}, Plan(16, fill=True))
    assert (filled["num_experts_per_tok"], filled["text_config"]["vocab_size"]) == (2, 512)
    assert set(filled["rope_parameters"]) == set(kinds)
    assert reduced(config, Plan(16))["num_experts_per_tok"] is None
    assert str(Plan(8, fewer_heads=True, fill=True)) == "1/8, fewer heads, defaults filled"


def test_an_entry_that_a_class_lacks_is_given_to_the_part_that_lacks_it() -> None:
    class TextConfig:
        num_attention_heads = 6

    class WholeConfig:
        def __init__(self) -> None:
            self.text_config = TextConfig()

    whole = WholeConfig()
    lacks = AttributeError("'TextConfig' object has no attribute 'num_key_value_heads'")
    assert mend(whole, lacks)
    assert whole.text_config.num_key_value_heads == 6  # type: ignore[attr-defined]
    assert not mend(whole, lacks)  # it has it now
    assert not mend(whole, AttributeError("'TextConfig' object has no attribute 'anything'"))
    assert not mend(whole, ValueError("'TextConfig' object has no attribute 'dropout'"))


def test_a_decoder_that_makes_its_steps_in_one_forward_makes_few() -> None:
    assert shrink({"max_text_length": 500}, 16) == {"max_text_length": 8}


def test_sides_of_images_without_patches_have_a_bound() -> None:
    assert shrink({"image_size": 600}, 16) == {"image_size": 256}
    assert shrink({"image_size": 224}, 16) == {"image_size": 224}


def test_coefficients_are_reduced_and_not_what_they_multiply() -> None:
    tables = {"in_channels": [32, 16], "out_channels": [16, 192]}
    config = {**tables, "width_coefficient": 2.0, "depth_coefficient": 3.1, "hidden_dim": 2560}
    small = {**tables, "width_coefficient": 0.125, "hidden_dim": 160}
    assert shrink(config, 16) == {**small, "depth_coefficient": 1.0}
    assert shrink(config, 16, keep_depth=True) == {**small, "depth_coefficient": 3.1}
