"""What Dynamo hands over: breaks, numbers, constants, CPU tensors, dtypes, errors."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import torch_neuronx
from support import assert_same, no_fallback, to_device
from torch_neuronx import _C, config
from torch_neuronx.compiler import planning
from torch_neuronx.dynamo import graph as fx
from torch_neuronx.dynamo.function import CompilationError
from torch_neuronx.eager import tracking


def check(function: Callable[..., Any], *inputs: Any, **options: Any) -> None:
    """Compiled on the device equals eager on CPU, natively and as whole graphs."""
    with warnings.catch_warnings(), no_fallback():
        warnings.filterwarnings("error", message=".*operator by operator")
        actual = torch.compile(function, backend="neuron", **options)(*to_device(inputs))
        assert_same(actual, function(*inputs))


def test_print_between_breaks_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        b = a * 2
        print("between")
        return b + 1

    counters.clear()
    check(function, torch.randn(3))
    assert capsys.readouterr().out == "between\nbetween\n"
    assert sum(counters["graph_break"].values()) == 1


def test_between_two_graphs_values_stay_on_the_device() -> None:
    @torch._dynamo.disable
    def pause() -> None:
        pass

    def function(a: torch.Tensor) -> torch.Tensor:
        b = a * 2
        pause()
        return b + 1

    x = torch.randn(64).to("neuron")
    compiled = torch.compile(function, backend="neuron")
    compiled(x)
    torch.neuron.synchronize()
    before = _C.counters()
    result = compiled(x)
    torch.neuron.synchronize()
    after = _C.counters()
    # Two graphs; the plugin's launch and the device's are counted each.
    assert after["launches"] - before["launches"] == 4
    assert all(after[n] == before[n] for n in ("h2d_bytes", "d2h_bytes"))
    assert_same(result, function(x.cpu()))


def test_branch_on_data() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        return a * 2 if a.sum() > 0 else a - 1

    check(function, torch.ones(3))
    check(function, -torch.ones(3))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, backend="neuron", fullgraph=True)(torch.ones(3).to("neuron"))


def test_fullgraph_is_one_graph() -> None:
    counters.clear()
    check(lambda a: (a @ a.T).relu().sum(), torch.randn(3, 4), fullgraph=True)
    assert counters["stats"]["unique_graphs"] == 1


def test_planning_inside_a_broken_frame_is_not_traced() -> None:
    # The operator between the breaks is planned, in Python, while Dynamo traces this thread.
    def function(a: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return a.cumsum(0) * 3

    counters.clear()
    check(lambda a: function(a).argsort(stable=True), torch.randn(11))
    assert not any("torch_neuronx" in reason for reason in counters["graph_break"])


def test_python_numbers() -> None:
    check(lambda a, k, n, b: (a * k, k + 1, a[n], n, b), torch.randn(4), 2.5, 2, True)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a + torch.tensor([1.0, 2.0, 3.0], device=a.device),
        lambda a: a + torch.tensor(3.0),
        lambda a: a + torch.tensor(0.1, dtype=torch.float64) * 3,
        lambda a: a * torch.tensor([1.0, 2.0, 3.0]).to(a.device),
        lambda a: a + torch.arange(3, device=a.device),
        lambda a: a + torch.full((3,), 2.0, device=a.device) + torch.zeros_like(a),
        lambda a: (a, torch.ones(2, device=a.device)),
    ],
)
def test_constants(function: Callable[..., Any]) -> None:
    check(function, torch.randn(3))


def test_closure_over_a_tensor() -> None:
    held = torch.randn(3)
    on_device = held.to("neuron")
    function = torch.compile(lambda a: a + on_device, backend="neuron")
    for _ in range(2):
        assert_same(function(torch.ones(3).to("neuron")), held + 1)
        held.add_(1)
        on_device.add_(1)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float16]
)
def test_dtypes(dtype: torch.dtype) -> None:
    def function(a: torch.Tensor) -> Any:
        return a | a if dtype == torch.bool else a * 3 // 2, a.to(torch.float32), a.sum(), a == 1

    check(function, torch.randint(0, 4, (5,)).to(dtype))


def test_non_contiguous_inputs() -> None:
    base = torch.randn(4, 6, 2)
    for view in (base.transpose(0, 2), base[:, ::2], base[1:, :, :1], base[:1].expand(3, 6, 2)):
        check(lambda a: (a * 2, a.sum(0), a.contiguous()), view)


def test_nested_structures() -> None:
    def function(a: torch.Tensor, d: dict[str, Any]) -> Any:
        return [a * 2, (d["x"][0] + a, None)]

    check(function, torch.randn(3), {"x": [torch.randn(3)]})


class TestCpuTensors:
    def test_zero_dim_input_is_a_number(self) -> None:
        function = torch.compile(lambda a, k: a * k, backend="neuron")
        a = torch.randn(3)
        for k in (0.5, 2.0):
            assert_same(function(a.to("neuron"), torch.tensor(k)), a * k)

    def test_input_moved_inside_the_graph(self) -> None:
        function = torch.compile(lambda a, b: a + (b * 2).to(a.device), backend="neuron")
        a, b = torch.randn(3), torch.randn(3)
        for _ in range(2):
            assert_same(function(a.to("neuron"), b), a + b * 2)
            b.add_(1)

    def test_mutated_input_and_result(self) -> None:
        def function(a: torch.Tensor, step: torch.Tensor) -> Any:
            step.add_(1)
            return a * step, step / 3

        a, step = torch.randn(3), torch.tensor(0.0)
        compiled = torch.compile(function, backend="neuron")
        for i in range(1, 4):
            scaled, third = compiled(a.to("neuron"), step)
            assert step.item() == i
            assert third.device.type == "cpu" and third.item() == pytest.approx(i / 3)
            assert_same(scaled, a * i)

    def test_reading_the_device_runs_operator_by_operator(self) -> None:
        function = torch.compile(lambda a: (a * 2).cpu() + 1, backend="neuron")
        a = torch.randn(3)
        with pytest.warns(UserWarning, match="operator by operator"):
            result = function(a.to("neuron"))
        assert result.device.type == "cpu"
        torch.testing.assert_close(result, a * 2 + 1)


def test_operator_without_rule_runs_operator_by_operator_and_is_listed() -> None:
    a = torch.diag(torch.randn(3))
    torch_neuronx.clear_op_tracking()
    function = torch.compile(lambda a: torch.dequantize(a * 2), backend="neuron")
    with pytest.warns(UserWarning, match="operator by operator, because .*no lowering rule.*line"):
        values = function(a.to("neuron"))
    torch.testing.assert_close(values.cpu(), a * 2)
    assert "aten::dequantize.self" in torch_neuronx.get_fallback_ops()
    forbidden = config.override({"TORCH_NEURONX_FALLBACK": "error"})
    with forbidden, pytest.raises(tracking.FallbackError, match="dequantize"):
        function(a.to("neuron"))


def test_planning_error_names_node_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr(fx._Translator, "results", broken)
    function = torch.compile(lambda a: a.tanh() * 1.375, backend="neuron")
    with pytest.raises(CompilationError, match=r"tanh.*test_graphs\.py.*broken on purpose"):
        function(torch.randn(3, 11).to("neuron"))


def test_failed_lowering_raises_and_names_node_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fx._Translator.results

    def wrong(self: Any, value: Any, index: int, outputs: list[Any]) -> Any:
        result = real(self, value, index, outputs)
        outputs[0] = type(outputs[0])(outputs[0].dtype, (77,))  # no rule gives this shape
        return result

    monkeypatch.setattr(fx._Translator, "results", wrong)
    function = torch.compile(lambda a: a.cosh() * 1.375, backend="neuron")
    torch_neuronx.clear_op_tracking()
    with pytest.raises(CompilationError, match=r"cosh.*PyTorch says \(77,\).*test_graphs\.py"):
        function(torch.randn(3, 13).to("neuron"))
    assert torch_neuronx.get_fallback_ops() == []


def test_index_out_of_range_raises_as_on_cpu() -> None:
    function = torch.compile(lambda a, i: a[i], backend="neuron")
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 3"):
        function(torch.ones(3).to("neuron"), torch.tensor([5]).to("neuron")).cpu()


def test_reset_frees_compiled_functions() -> None:
    before = set(planning._planners)
    held = torch.randn(3).to("neuron")
    alive = weakref.ref(held)
    function = torch.compile(lambda a, b=held: (a * b).sum(), backend="neuron")
    a = torch.randn(3).to("neuron").requires_grad_()
    function(a).backward()
    assert len(set(planning._planners) - before) == 2  # forward and backward
    del function, held
    torch._dynamo.reset()
    gc.collect()
    assert set(planning._planners) <= before
    assert alive() is None


def test_an_assertion_is_part_of_the_graph() -> None:
    """An operator without a result: checked on the device, told at the next synchronisation."""

    def rows(classes: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(classes, 4) * 2

    compiled = torch.compile(rows, backend="neuron", fullgraph=True)
    classes = torch.tensor([1, 2, 0])
    assert_same(compiled(classes.to("neuron")), rows(classes))
    with pytest.raises(RuntimeError, match="Class values must be non-negative"):
        compiled(torch.tensor([1, -2, 0], device="neuron")).cpu()
    assert_same(compiled(classes.to("neuron")), rows(classes))  # the device goes on
