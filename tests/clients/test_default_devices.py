"""Pipelines and sentence-transformers' models that choose the device by themselves."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from clients.common import library, tiny_llama, word_tokenizer
from clients.test_sentence_transformers import tiny

CLIENTS = ("transformers", "sentence-transformers")
pytestmark = pytest.mark.clients


def test_a_pipeline() -> None:
    transformers = library("transformers")
    pipeline = library("torch_neuronx.integrations.transformers").pipeline
    given = {"model": tiny_llama(), "tokenizer": word_tokenizer()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert transformers.pipeline("text-generation", **given).device.type == "cpu"
        made = pipeline("text-generation", **given)
        assert made.device.type == "neuron" and made.model.device.type == "neuron"
        assert pipeline("text-generation", **given, device="cpu").device.type == "cpu"


def test_a_sentence_transformer(tmp_path: Path) -> None:
    tiny(tmp_path, 0.0).save(str(tmp_path / "saved"))
    models = library("torch_neuronx.integrations.sentence_transformers")
    plain = library("sentence_transformers").SentenceTransformer(str(tmp_path / "saved"))
    assert plain.device.type == "cpu"
    made = models.SentenceTransformer(str(tmp_path / "saved"))
    assert made.device.type == "neuron"
    text = ["w7 w9", "w30 w31 w32"]
    torch.testing.assert_close(
        made.encode(text, convert_to_tensor=True).cpu(),
        plain.encode(text, convert_to_tensor=True),
        rtol=1e-4,
        atol=1e-5,
    )
    assert models.SentenceTransformer(str(tmp_path / "saved"), device="cpu").device.type == "cpu"
