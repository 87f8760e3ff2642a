"""TorchMetrics: values over several batches are CPU's, on the device throughout; its functions
compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clients.common import library, numbers
from support import assert_same, no_fallback, to_device

CLIENTS = ("torchmetrics",)
pytestmark = pytest.mark.clients

CLASSES = {"num_classes": 4}
# Name: (module, arguments, kind of data).
METRICS: dict[str, tuple[str, dict[str, Any], str]] = {
    "MulticlassAccuracy": ("classification", CLASSES, "classes"),
    "MulticlassF1Score": ("classification", {**CLASSES, "average": "macro"}, "classes"),
    "MulticlassAUROC": ("classification", CLASSES, "classes"),
    "MulticlassConfusionMatrix": ("classification", CLASSES, "classes"),
    "MulticlassAveragePrecision": ("classification", {**CLASSES, "thresholds": 11}, "classes"),
    "MulticlassCalibrationError": ("classification", CLASSES, "classes"),
    "BinaryAUROC": ("classification", {}, "binary"),
    "BinaryPrecisionRecallCurve": ("classification", {}, "binary"),
    "BinaryMatthewsCorrCoef": ("classification", {}, "binary"),
    "MultilabelF1Score": ("classification", {"num_labels": 4}, "labels"),
    "MeanSquaredError": ("regression", {}, "pairs"),
    "R2Score": ("regression", {}, "pairs"),
    "PearsonCorrCoef": ("regression", {}, "pairs"),
    "SpearmanCorrCoef": ("regression", {}, "pairs"),
    "ExplainedVariance": ("regression", {}, "pairs"),
    "CosineSimilarity": ("regression", {}, "rows"),
    "MeanMetric": ("aggregation", {}, "values"),
    "MaxMetric": ("aggregation", {}, "values"),
    "CatMetric": ("aggregation", {}, "values"),
    "RetrievalMAP": ("retrieval", {}, "retrieval"),
    "RetrievalNormalizedDCG": ("retrieval", {}, "retrieval"),
    "PeakSignalNoiseRatio": ("image", {"data_range": 3.0}, "images"),
    "StructuralSimilarityIndexMeasure": ("image", {"data_range": 3.0}, "images"),
    "Perplexity": ("text", {}, "text"),
}


def batch(kind: str, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)

    def chosen(count: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, count, shape, generator=generator)

    if kind == "classes":
        return numbers(20, 4, seed=seed).softmax(1), chosen(4, 20)
    if kind == "binary":
        return numbers(20, seed=seed).sigmoid(), chosen(2, 20)
    if kind == "labels":
        return numbers(20, 4, seed=seed).sigmoid(), chosen(2, 20, 4)
    if kind == "pairs":
        return numbers(20, seed=seed), numbers(20, seed=seed + 50)
    if kind == "rows":
        return numbers(20, 3, seed=seed), numbers(20, 3, seed=seed + 50)
    if kind == "values":
        return (numbers(7, seed=seed),)
    if kind == "retrieval":
        return numbers(20, seed=seed).sigmoid(), chosen(2, 20), chosen(3, 20)
    if kind == "images":
        return numbers(2, 3, 16, 16, seed=seed), numbers(2, 3, 16, 16, seed=seed + 50)
    return numbers(2, 6, 5, seed=seed).log_softmax(-1), chosen(5, 2, 6)


@pytest.mark.parametrize("name", METRICS)
def test_values(name: str) -> None:
    module, options, kind = METRICS[name]
    make = getattr(library(f"torchmetrics.{module}"), name)
    on_cpu, on_device = make(**options), make(**options).to("neuron")
    for seed in (1, 2):
        given = batch(kind, seed)
        on_cpu.update(*given)
        with no_fallback():
            on_device.update(*to_device(given))
    with no_fallback():
        got = on_device.compute()
    assert_same(got, on_cpu.compute(), strides=False, scale=5)
    on_device.reset()
    on_device.update(*to_device(batch(kind, 1)))
    on_cpu.reset()
    on_cpu.update(*batch(kind, 1))
    assert_same(on_device.compute(), on_cpu.compute(), strides=False, scale=5)


@pytest.mark.parametrize(
    "name",
    [
        "multiclass_accuracy",
        "multiclass_f1_score",
        "multiclass_confusion_matrix",
        "mean_squared_error",
        "r2_score",
        "pearson_corrcoef",
        "peak_signal_noise_ratio",
    ],
)
def test_compiled_functions(name: str) -> None:
    functional = library("torchmetrics.functional")
    kind = "classes" if name.startswith("multiclass") else "pairs"
    options: dict[str, Any] = {"num_classes": 4} if kind == "classes" else {}
    if name.startswith("peak"):
        options["data_range"] = 3.0
    if kind == "classes":
        options["validate_args"] = False
    function = getattr(functional, name, None) or getattr(functional.classification, name)
    given = batch(kind, 1)
    # First: the library looks for torch_xla at its first call, in a way that Dynamo cannot trace.
    expected = function(*given, **options)
    with no_fallback():
        compiled = torch.compile(lambda *a: function(*a, **options), backend="neuron")
        got = compiled(*to_device(given))
    assert_same(got, expected, strides=False, scale=5)


def test_collections_and_their_state() -> None:
    metrics = library("torchmetrics")

    def made() -> Any:
        return metrics.MetricCollection(
            {
                "accuracy": metrics.classification.MulticlassAccuracy(num_classes=4),
                "f1": metrics.classification.MulticlassF1Score(num_classes=4),
            }
        )

    on_cpu, on_device = made(), made().to("neuron")
    on_device.persistent(True)
    for seed in (1, 2):
        on_cpu.update(*batch("classes", seed))
        on_device.update(*to_device(batch("classes", seed)))
    loaded = made().to("neuron")
    loaded.persistent(True)
    loaded.load_state_dict(on_device.state_dict())
    for name, value in on_cpu.compute().items():
        assert_same(on_device.compute()[name], value, where=name)
    assert all(v.device.type == "neuron" for v in loaded.state_dict().values())
