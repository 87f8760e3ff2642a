"""CPU tensors given to a compiled function are copied to the device, or refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from support import assert_same, no_fallback
from torch_neuronx import config


def test_inputs_on_the_cpu_meet_parameters_on_the_device() -> None:
    on_cpu = nn.Linear(3, 2)
    model = torch.compile(copy.deepcopy(on_cpu).to("neuron"), backend="neuron", dynamic=True)
    with no_fallback():
        for n in (2, 5):
            x = torch.randn(n, 3)
            assert_same(model(x), on_cpu(x))


def test_a_function_of_cpu_inputs_alone_runs_on_the_device() -> None:
    a, b = torch.randn(3), torch.randn(3)
    function = torch.compile(lambda a, b: (a * b + torch.ones(3), a[1:]), backend="neuron")
    with no_fallback():
        product, view = function(a, b)
    assert_same(product, a * b + 1)
    assert_same(view, a[1:])


def test_gradients_reach_parameters_on_the_cpu() -> None:
    expected, model = nn.Linear(3, 2), nn.Linear(3, 2)
    model.load_state_dict(expected.state_dict())
    x = torch.randn(4, 3)
    expected(x).square().sum().backward()
    torch.compile(model, backend="neuron")(x).square().sum().backward()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        assert p.grad.device.type == "cpu"
        torch.testing.assert_close(p.grad, q.grad)


def test_an_input_mutated_on_the_device_is_copied_back() -> None:
    x = torch.arange(4.0)
    result = torch.compile(lambda x: x.add_(1) * 2, backend="neuron")(x)
    assert torch.equal(x, torch.arange(4.0) + 1)
    assert_same(result, x * 2)


def test_results_stay_where_eager_has_them_on_request() -> None:
    x, y = torch.randn(3), torch.randn(3).to("neuron")
    function = torch.compile(lambda x, y: (x * 2, y * 2, x.sum().item() > 0), backend="neuron")
    with config.override({"TORCH_NEURONX_RETAIN_DEVICE_MODE": "1"}):
        on_cpu, on_device, positive = function(x, y)
    assert on_cpu.device.type == "cpu" and on_device.device.type == "neuron"
    torch.testing.assert_close(on_cpu, x * 2)
    assert positive == bool(x.sum() > 0)


def test_refused_by_the_variable_with_index_and_device() -> None:
    forbidden = {"TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY": "1"}
    function = torch.compile(lambda a, b: a + b, backend="neuron")
    text = r"input 1 \(shape \(3,\).*is on device cpu.*DISABLE_CPU_AUTOCOPY"
    with config.override(forbidden), pytest.raises(Exception, match=text):
        function(torch.ones(3).to("neuron"), torch.ones(3))
    with config.override(forbidden):  # a 0-d tensor is a number
        assert_same(function(torch.ones(3).to("neuron"), torch.tensor(2.0)), torch.full((3,), 3.0))
