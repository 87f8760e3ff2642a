"""Text generation and pipelines of transformers: greedy, beams, seeded sampling; growing and static
caches; an encoder with a decoder; the forward pass compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from clients.common import VOCABULARY, library, same_as_cpu, tiny_llama, token_ids, word_tokenizer
from support import Executables, no_fallback

CLIENTS = ("transformers", "tokenizers")
pytestmark = pytest.mark.clients


def prompts() -> dict[str, torch.Tensor]:
    """Two prompts, one of them padded on the left."""
    ids = token_ids(2, 7)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    ids[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model: Any, new_tokens: int = 6, **options: Any) -> torch.Tensor:
    given = {k: v.to(model.device) for k, v in prompts().items()}
    result: torch.Tensor = model.generate(**given, max_new_tokens=new_tokens, **options)
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2, "no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.3, "cache_implementation": "static"},
        {"use_cache": False},
    ],
    ids=["greedy", "beams", "beams without repeats", "static cache", "no cache"],
)
def test_the_tokens_are_cpus(options: dict[str, Any]) -> None:
    model = tiny_llama()
    expected = generate(model, do_sample=False, **options)
    with no_fallback():
        got = generate(model.to("neuron"), do_sample=False, **options)
    assert got.device.type == "neuron"
    assert got.tolist() == expected.tolist()


def test_the_compiled_model_gives_the_same_tokens() -> None:
    """With a static cache every step has one shape, and so one executable."""
    model = tiny_llama()
    options = {"do_sample": False, "cache_implementation": "static"}
    expected = generate(model, **options)
    model.to("neuron")
    model.forward = torch.compile(model.forward, backend="neuron")
    with no_fallback():
        assert generate(model, **options).tolist() == expected.tolist()
        with Executables() as new:
            assert generate(model, **options).tolist() == expected.tolist()
    assert new.count == 0, new.names


def test_sampling_follows_the_seed_with_every_cache() -> None:
    model = tiny_llama().to("neuron")

    def draw(seed: int, **options: Any) -> list[list[int]]:
        torch.manual_seed(seed)
        return generate(
            model, do_sample=True, temperature=3.0, top_k=50, top_p=0.95, **options
        ).tolist()

    with no_fallback():
        first = draw(5)
        assert draw(5) == first
        assert draw(6) != first
        assert draw(5, cache_implementation="static") == first
    ids = prompts()["input_ids"].tolist()
    assert [row[:7] for row in first] == ids


def test_sampling_from_one_choice_is_greedy() -> None:
    model = tiny_llama().to("neuron")
    assert torch.equal(generate(model, do_sample=True, top_k=1), generate(model, do_sample=False))


def test_a_second_generation_compiles_nothing() -> None:
    model = tiny_llama().to("neuron")
    generate(model, 4, do_sample=False, cache_implementation="static")
    with Executables() as new:
        generate(model, 4, do_sample=False, cache_implementation="static")
    assert new.count == 0, new.names


@pytest.mark.parametrize("name", ["GPT2", "T5", "Bart", "Mixtral", "Mamba"])
def test_other_architectures(name: str) -> None:
    transformers = library("transformers")
    sizes = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    layers = {"num_hidden_layers": 2, "hidden_size": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    options: dict[str, Any] = {
        "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        "T5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        "Bart": {"d_model": 32, "max_position_embeddings": 64}
        | {f"{side}_layers": 2 for side in ("encoder", "decoder")}
        | {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
        | {f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
        "Mixtral": {**layers, **heads, "intermediate_size": 48, "num_local_experts": 4},
        "Mamba": {**layers, "state_size": 4},
    }[name]
    if name in ("T5", "Bart"):
        options["decoder_start_token_id"] = 2
    config = getattr(transformers, f"{name}Config")(**sizes, **options)
    kind = "ForConditionalGeneration" if name in ("T5", "Bart") else "ForCausalLM"
    kind = "LMHeadModel" if name == "GPT2" else kind
    torch.manual_seed(0)
    model = getattr(transformers, name + kind)(config).eval()
    for parameter in model.parameters():  # far from ties
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    expected = generate(model, 4, do_sample=False)
    with no_fallback():
        got = generate(copy.deepcopy(model).to("neuron"), 4, do_sample=False)
    assert got.tolist() == expected.tolist()


def test_the_forward_pass_and_its_gradients() -> None:
    same_as_cpu(
        tiny_llama(),
        **prompts(),
        run=lambda m, **inputs: m(**inputs, use_cache=False).logits[0],
        train=True,
        scale=20,  # logits of several units, after two layers of large weights
    )


def pipeline(task: str, model: Any, **options: Any) -> Any:
    return library("transformers").pipeline(
        task, model=model, tokenizer=word_tokenizer(), device="neuron", **options
    )


def test_text_generation_pipeline() -> None:
    model = tiny_llama()
    given = {"max_new_tokens": 5, "do_sample": False, "return_full_text": False}
    expected = library("transformers").pipeline(
        "text-generation", model=model, tokenizer=word_tokenizer(), device="cpu"
    )("w7 w9 w30", **given)
    with no_fallback():
        made = pipeline("text-generation", copy.deepcopy(model))
        assert made.device.type == "neuron"
        assert made("w7 w9 w30", **given) == expected
    assert expected[0]["generated_text"]


@pytest.mark.parametrize("task", ["text-classification", "token-classification", "fill-mask"])
def test_encoder_pipelines(task: str) -> None:
    transformers = library("transformers")
    head = {
        "text-classification": "SequenceClassification",
        "token-classification": "TokenClassification",
        "fill-mask": "MaskedLM",
    }[task]
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"BertFor{head}")(config).eval()
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "w5"})
    text = "w7 w5 w30" if task == "fill-mask" else ["w7 w9 w30", "w8"]

    def run(device: str) -> Any:
        made = transformers.pipeline(
            task, model=copy.deepcopy(model), tokenizer=tokenizer, device=device
        )
        return made(text)

    with no_fallback():
        got = run("neuron")
    assert rounded(got) == rounded(run("cpu"))


def rounded(value: Any) -> Any:
    """Scores to four digits."""
    if isinstance(value, list):
        return [rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return round(float(value), 4) if isinstance(value, float) or hasattr(value, "item") else value
