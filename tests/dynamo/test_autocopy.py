"""CPU tensors given to a compiled function are copied to the device, or refused."""

from __future__ import annotations

import copy
from typing import Any

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


def _memory() -> torch.Tensor:
    return torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    ("function", "views"),
    [
        (lambda x, y: x.add_(1) * 0 + y.sum() * 2, lambda b: (b, b[1:3])),
        (lambda x, y: y.mul_(5).sum() + x * 2, lambda b: (b, b.view(-1)[2:6])),
        (lambda x, y: (y.mul_(5), x.add_(1), x * 2, y * 3)[2:], lambda b: (b.t(), b[2])),
        (lambda x, y: (x.add_(1), y * 2)[1], lambda b: (b[:, :3], b[:, 3:])),
        (
            lambda x, y, far, z: (x.mul_(2), y.add_(far), z.copy_(z + 1), x * 1, y * 1)[3:],
            lambda b: (b.t(), b[1:3], torch.ones(6), b[3]),
        ),
    ],
)
def test_inputs_that_share_memory_share_it_on_the_device(function: Any, views: Any) -> None:
    base, expected_base = _memory(), _memory()
    expected = function(*views(expected_base))
    results = torch.compile(function, backend="neuron")(*views(base))
    assert torch.equal(base, expected_base)
    for result, wanted in zip(
        results if isinstance(results, tuple) else [results],
        expected if isinstance(expected, tuple) else [expected],
        strict=True,
    ):
        assert_same(result, wanted)


def test_shared_memory_keeps_symbolic_sizes() -> None:
    function = torch.compile(lambda x, y: (x.add_(1), y * 2)[1], backend="neuron", dynamic=True)
    for n in (8, 12, 20):
        base = torch.arange(float(n))
        result = function(base, base[1 : n - 2])
        assert torch.equal(base, torch.arange(float(n)) + 1)
        assert_same(result, base[1 : n - 2] * 2)


@pytest.mark.parametrize("other", ["another dtype", "gradients", "another storage"])
def test_a_write_to_memory_that_cannot_be_copied_as_one_is_refused(other: str) -> None:
    base = torch.arange(8.0)
    x, y = {
        "another dtype": lambda: (base, base.view(torch.int32)),
        "gradients": lambda: (base.detach(), base.requires_grad_()),
        "another storage": lambda: (base, torch.from_numpy(base.numpy()[2:6])),
    }[other]()
    function = torch.compile(lambda x, y: (x.add_(1), y * 2)[1], backend="neuron")
    with pytest.raises(RuntimeError, match=r"writes into CPU input 0 .*memory with CPU input 1"):
        function(x, y)
    assert torch.equal(base.detach(), torch.arange(8.0))
    reading = torch.compile(lambda x, y: x.sum() + y.sum(), backend="neuron")
    assert_same(reading(x, y), x.sum() + y.sum())


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
