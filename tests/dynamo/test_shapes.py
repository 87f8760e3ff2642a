"""Changing shapes: one capture, one executable a shape (decision D13)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from support import Executables, assert_same
from torch_neuronx import config
from torch_neuronx.compiler import ledger


def scaled(a: torch.Tensor) -> Any:
    return (a * a.shape[0]).sum(0), a.reshape(-1), a.shape[0] * 2, a.numel()


@pytest.mark.parametrize(
    "dynamic, sizes, captures",
    [(True, range(2, 22), 1), (None, range(2, 22), 2), (False, range(2, 6), 4)],
)
def test_captures(dynamic: bool | None, sizes: range, captures: int) -> None:
    counter = CompileCounterWithBackend("neuron")
    function = torch.compile(scaled, backend=counter, dynamic=dynamic)
    with Executables() as new:
        for n in sizes:
            x = torch.randn(n, 3)
            assert_same(function(x.to("neuron")), scaled(x))
    assert counter.frame_count == captures
    assert new.names and new.count == len(sizes)
    for n in sizes:  # nothing new
        function(torch.randn(n, 3).to("neuron"))
    assert counter.frame_count == captures


def test_static_shapes_hit_dynamos_limit_and_go_eager() -> None:
    counter = CompileCounterWithBackend("neuron")
    function = torch.compile(scaled, backend=counter, dynamic=False)
    for n in range(2, 14):
        x = torch.randn(n, 3)
        assert_same(function(x.to("neuron")), scaled(x))
    assert counter.frame_count == torch._dynamo.config.recompile_limit
    (frame,) = [f for f in ledger.eager_frames() if "'scaled'" in f.function]
    assert "recompile_limit" in frame.limit and "size mismatch" in frame.reason


@pytest.mark.full
def test_two_hundred_lengths_are_captured_twice() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        return (a * a.shape[0]).sum(0)

    counter = CompileCounterWithBackend("neuron")
    compiled = torch.compile(function, backend=counter)
    with Executables() as new:
        for n in range(2, 202):
            x = torch.arange(float(n))
            assert_same(compiled(x.to("neuron")), function(x))
    assert counter.frame_count == 2 and new.count == 200


def test_sizes_zero_and_one() -> None:
    function = torch.compile(lambda a: (a * 2, a.sum(0), a.softmax(-1)), backend="neuron")
    for shape in [(3, 2), (0, 2), (1, 2), (1, 1), (2, 0), (5, 7)]:
        x = torch.randn(shape)
        assert_same(function(x.to("neuron")), (x * 2, x.sum(0), x.softmax(-1)))


@pytest.mark.parametrize("dynamic", [True, None])
def test_training_with_changing_batches(dynamic: bool | None) -> None:
    on_cpu = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2))
    on_device = copy.deepcopy(on_cpu).to("neuron")
    compiled = torch.compile(on_device, backend="neuron", dynamic=dynamic)
    for batch in (4, 2, 3, 7, 1):
        x = torch.randn(batch, 6)
        on_cpu.zero_grad()
        on_device.zero_grad()
        on_cpu(x).square().mean().backward()
        compiled(x.to("neuron")).square().mean().backward()
        for p, q in zip(on_device.parameters(), on_cpu.parameters(), strict=True):
            assert_same(p.grad, q.grad)


def test_changing_float_argument() -> None:
    function = torch.compile(lambda a, k: (a * k, k + 1), backend="neuron", dynamic=True)
    x = torch.randn(3)
    for k in (0.5, 1.25, -2.0):
        assert_same(function(x.to("neuron"), k), (x * k, k + 1))


def test_changing_int_argument() -> None:
    function = torch.compile(lambda a, k: (a * k, k + 1, a[k % 3]), backend="neuron")
    x = torch.randn(3)
    for k in (1, 2, 5, 9, 0):
        assert_same(function(x.to("neuron"), k), (x * k, k + 1, x[k % 3]))


def test_views_with_symbolic_sizes() -> None:
    def views(a: torch.Tensor) -> Any:
        y = a.view(2, a.shape[0] // 2, -1)
        return y, y[1], y.transpose(0, 1)

    function = torch.compile(views, backend="neuron", dynamic=True)
    for n in (4, 6, 10):
        x = torch.randn(n, 3)
        moved = x.to("neuron")
        actual = function(moved)
        assert_same(actual, views(x))
        assert all(t.untyped_storage().data_ptr() == moved.data_ptr() for t in actual)


def test_reject_refuses_dynamic_shapes() -> None:
    x = torch.randn(4, 3).to("neuron")
    with config.override({"TORCH_NEURONX_DYNAMIC": "reject"}):
        static = torch.compile(lambda a: a + 1, backend="neuron", dynamic=False)
        static(x)
        dynamic = torch.compile(lambda a: a + 1, backend="neuron", dynamic=True)
        with pytest.raises(Exception, match=r"dynamic shape.*TORCH_NEURONX_DYNAMIC=reject"):
            dynamic(x)


def test_reject_is_read_whenever_a_graph_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 3).to("neuron")
    torch.compile(lambda a: a + 1, backend="neuron", dynamic=True)(x)
    monkeypatch.setenv("TORCH_NEURONX_DYNAMIC", "reject")
    with pytest.raises(Exception, match=r"dynamic shape.*TORCH_NEURONX_DYNAMIC=reject"):
        torch.compile(lambda a: a + 2, backend="neuron", dynamic=True)(x)
    monkeypatch.delenv("TORCH_NEURONX_DYNAMIC")
    torch.compile(lambda a: a + 3, backend="neuron", dynamic=True)(x)


def test_size_that_depends_on_data_runs_operator_by_operator() -> None:
    x = torch.tensor([1.0, -1.0, 2.0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        function = torch.compile(lambda a: a[a > 0] * 2, backend="neuron")
        with pytest.warns(UserWarning, match="operator by operator, because .* depends on data"):
            assert_same(function(x.to("neuron")), x[x > 0] * 2)
