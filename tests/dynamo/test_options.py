"""torch.compile's ``options`` and ``mode``, the default backend, and the fallback execution."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch

import torch_neuronx
from support import assert_same
from torch_neuronx import config
from torch_neuronx.dynamo import graph as fx
from torch_neuronx.dynamo import options as backend_options
from torch_neuronx.dynamo.function import CompilationError


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_options, "_said", set())


def run(**arguments: Any) -> None:
    function = torch.compile(lambda a: a + 1, backend="neuron", **arguments)
    assert_same(function(torch.ones(2).to("neuron")), torch.full((2,), 2.0))


def test_the_callers_options_are_not_changed_and_may_be_read_only() -> None:
    options = {"model_name": "mine", "fallback_execution": True, "dynamic": None}
    run(options=types.MappingProxyType(options))
    assert options == {"model_name": "mine", "fallback_execution": True, "dynamic": None}


def test_model_name_begins_the_graphs_name() -> None:
    torch.neuron.reset_dynamo_metrics()
    run(options={"model_name": "mine"})
    (record,) = torch.neuron.get_dynamo_metrics()
    assert record["model_name"] == "mine"
    assert record["graph_name"].startswith(f"mine_{record['graph_id']}_inference_")


@pytest.mark.parametrize(
    "options", [{"model_name": 3}, {"fallback_execution": "yes"}, {"frontend": "mlir"}]
)
def test_wrong_value_names_option_expectation_and_value(options: dict[str, Any]) -> None:
    (name, value) = next(iter(options.items()))
    with pytest.raises(Exception, match=rf"options\['{name}'\].*expected.*got {value!r}"):
        run(options=options)


@pytest.mark.parametrize("options", ["model_name", [("model_name", "x")], {3: True}])
def test_options_of_another_type_say_what_was_expected(options: Any) -> None:
    with pytest.raises(Exception, match=r"options of torch\.compile: expected a dict with names"):
        run(options=options)


def test_foreign_options_are_ignored_and_said_once() -> None:
    with pytest.warns(UserWarning, match=r"ignores the options max_autotune, model_nam \(did you"):
        run(options={"max_autotune": True, "model_nam": "x"})
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(options={"max_autotune": True, "model_nam": "x"})


def test_mode_is_said_once_to_have_no_effect() -> None:
    with pytest.warns(UserWarning, match="mode='max-autotune' has no effect"):
        run(mode="max-autotune")
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(mode="reduce-overhead")
        run(mode="default")


def test_default_backend_is_the_users_choice() -> None:
    assert torch.compiler.get_default_backend() == "inductor"
    torch.neuron.reset_dynamo_metrics()
    torch.compiler.set_default_backend("neuron")
    try:
        assert_same(torch.compile(lambda a: a * 3)(torch.ones(2).to("neuron")), torch.ones(2) * 3)
    finally:
        torch.compiler.set_default_backend(None)
    assert len(torch.neuron.get_dynamo_metrics()) == 1


@pytest.fixture
def unplannable(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr(fx._Translator, "results", broken)


@pytest.mark.usefixtures("unplannable")
class TestGraphThatCannotBeCompiled:
    def test_raises_with_node_line_and_remedy(self) -> None:
        function = torch.compile(lambda a: a.tanh() * 1.125, backend="neuron")
        text = r"tanh.*test_options\.py.*broken on purpose.*fallback_execution"
        with pytest.raises(CompilationError, match=text):
            function(torch.randn(3, 5).to("neuron"))

    @pytest.mark.parametrize("by_option", [True, False])
    def test_runs_operator_by_operator_where_allowed(self, by_option: bool) -> None:
        torch_neuronx.clear_op_tracking()
        options = {"fallback_execution": True} if by_option else None
        variable = "1" if by_option else "0"  # the option comes first
        with config.override({"TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": variable}):
            function = torch.compile(
                lambda a: a.tanh().mul_(1.25), backend="neuron", options=options
            )
            x = torch.randn(3, 5)
            with pytest.warns(UserWarning, match="operator by operator, because it cannot be"):
                assert_same(function(x.to("neuron")), x.tanh() * 1.25)
            assert_same(function(x.to("neuron")), x.tanh() * 1.25)
        assert {"aten::tanh", "aten::mul.Tensor"} <= set(torch_neuronx.get_executed_ops())

    def test_option_false_comes_before_the_variable(self) -> None:
        function = torch.compile(
            lambda a: a.tanh() * 1.5, backend="neuron", options={"fallback_execution": False}
        )
        allowed = config.override({"TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": "0"})
        with allowed, pytest.raises(CompilationError, match="broken on purpose"):
            function(torch.randn(3, 5).to("neuron"))
