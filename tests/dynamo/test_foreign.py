"""``options={"frontend": "torch-mlir"}``: what goes there, and what stays with our own rules.

Torch-MLIR itself is in tests/frontend. Here our own rules stand in for it, so that what is around
its modules is tested where it is not installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import uuid
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch.nn import functional as F

import torch_neuronx
from support import assert_same, no_fallback, to_device
from torch_neuronx.compiler import ledger
from torch_neuronx.dynamo import foreign, function
from torch_neuronx.dynamo.function import CompilationError
from torch_neuronx.frontend import client, parts
from torch_neuronx.lowering import build, table
from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.dtypes import np_dtype
from torch_neuronx.lowering.errors import LoweringError


def as_program(part: parts.Part) -> ir.Program:
    """A part as a program that reads its inputs whole."""

    def read(ref: Any) -> Any:
        if isinstance(ref, tuple):
            return tuple(read(r) for r in ref)
        if not isinstance(ref, ir.Input):
            return ref
        array = part.inputs[ref.index]
        strides = torch.empty(array.shape, device="meta").stride()
        return ir.Read(ref.index, ir.View(array.dtype, array.shape, tuple(strides)))

    nodes = tuple(ir.Node(n.op, read(n.args), n.outputs) for n in part.function.nodes)
    outputs = tuple(ir.Output(read(r)) for r in part.function.results)
    return ir.Program(part.inputs, nodes, outputs)


class StandIn:
    """Lowers parts with our rules, and keeps them."""

    def __init__(self) -> None:
        self.parts: list[parts.Part] = []
        self.fails: str | None = None
        self.name = f"torch-mlir {uuid.uuid4()}"  # no executable of another run is found

    def __call__(self, part: parts.Part) -> tuple[str, float]:
        self.parts.append(part)
        for node, number in zip(part.function.nodes, part.numbers, strict=True):
            if node.op == self.fails:
                raise LoweringError(f"it cannot lower {node.op} (node {number})")
        program = as_program(part)
        count = len(program.outputs)
        with jax.enable_x64(True):
            shapes = [jax.ShapeDtypeStruct(p.shape, np_dtype(p.dtype)) for p in program.params]

            def walk(*inputs: Any) -> list[Any]:
                return build.evaluate(program, *inputs)[:count]  # without our checks

            return jax.jit(walk, keep_unused=True).lower(*shapes).as_text(), 0.5

    def ops(self) -> list[list[str]]:
        return [[n.op.removeprefix("aten::") for n in p.function.nodes] for p in self.parts]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    table.load_rules()
    monkeypatch.setattr(client, "translate", stand_in)
    monkeypatch.setattr(foreign, "chosen", lambda name: stand_in.name)
    ledger.reset()
    return stand_in


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    given = {"frontend": "torch-mlir", **options}
    return torch.compile(function, backend="neuron", fullgraph=True, options=given)


def test_a_graph_becomes_one_part_and_gives_the_same(stand_in: StandIn) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.gelu(x @ w)
        return y, y.sum(0)

    x, w = torch.randn(5, 3), torch.randn(3, 4)
    with no_fallback():
        assert_same(compiled(f)(*to_device([x, w])), f(x, w))
    assert stand_in.ops() == [["mm", "gelu", "sum.dim_IntList"]]
    (graph,) = ledger.graphs()
    assert (graph.frontend, graph.own_rules) == (stand_in.name, ())
    assert graph.specialisations[0].lower_s >= 0.5


def test_views_writes_and_layouts_stay_with_our_lowering(stand_in: StandIn) -> None:
    def f(base: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        base[1:3].mul_(x)
        return base.t() + 1, base[0]

    base, x = torch.randn(4, 3)[:, ::2], torch.randn(2, 2).t()
    got, other = to_device([base, x])
    result = compiled(f)(got, other)
    assert_same(result, f(base, x))
    assert_same(got, base)
    assert result[1]._base is not None  # a view, as in eager


def test_random_numbers_are_those_of_eager_and_split_the_graph(stand_in: StandIn) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.exp(), 0.5) * 2

    x = torch.randn(64).to("neuron")
    torch.manual_seed(3)
    want = f(x).cpu()
    torch.manual_seed(3)
    assert torch.equal(compiled(f)(x).cpu(), want)
    assert stand_in.ops() == [["exp"], ["mul.Tensor"]]
    assert ledger.graphs()[0].own_rules == ("aten::native_dropout",)


def test_a_bad_index_is_refused_though_the_part_does_not_look(stand_in: StandIn) -> None:
    f = compiled(lambda t, i: F.embedding(i + 1, t))
    table_, index = torch.randn(4, 2), torch.tensor([0, 2])
    assert_same(f(*to_device([table_, index])), table_[[1, 3]])
    assert stand_in.ops() == [["add.Tensor", "embedding"]]
    f(*to_device([table_, index + 1]))
    with pytest.raises(IndexError, match="index out of range"):
        torch.neuron.synchronize()


def test_control_flow_stays_with_our_rules(stand_in: StandIn) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, (x.sin(),))

    x = torch.tensor([1.0, 2.0])
    assert_same(compiled(f)(x.to("neuron")), x.sin() + 1)
    assert ledger.graphs()[0].own_rules == ("higher_order::cond",)


def test_backward_graphs_are_lowered_by_our_rules_and_the_report_says_so(
    stand_in: StandIn,
) -> None:
    x = torch.randn(3, 3, requires_grad=True)
    on_device = to_device(x)
    compiled(lambda a: a.tanh().sum())(on_device).backward()
    x.tanh().sum().backward()
    assert_same(on_device.grad, x.grad)
    assert [(g.kind, g.frontend) for g in ledger.graphs()] == [
        ("forward", stand_in.name), ("backward", "jax")]  # fmt: skip
    report = torch_neuronx.explain(compiled(lambda a: a + 3), on_device)
    assert f"lowered by {stand_in.name}" in str(report)


def test_what_cannot_be_lowered_is_named_with_its_line(stand_in: StandIn) -> None:
    stand_in.fails = "aten::cosh"
    x = torch.randn(3).to("neuron")

    def f(a: torch.Tensor) -> torch.Tensor:
        b = a + 1
        return b.cosh() * 2

    with pytest.raises(CompilationError, match=r"cannot lower aten::cosh at .*test_foreign\.py"):
        compiled(f)(x)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="operator by operator, because it cannot be compiled"):
        assert_same(compiled(f, fallback_execution=True)(x), f(x.cpu()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_float64_is_refused_where_the_device_computes_it_otherwise(
    stand_in: StandIn, dtype: torch.dtype
) -> None:
    x = torch.ones(2, dtype=dtype).to("neuron")
    with pytest.raises(CompilationError, match=r"computes in (float64|complex128).*test_foreign"):
        compiled(lambda a: a * 2)(x)
    assert stand_in.parts == []


def test_the_front_end_and_its_version_are_part_of_the_key(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2).to("neuron")
    digests = set()
    original = function._register

    def register(compiled_function: Any) -> None:
        digests.add(compiled_function._digest)
        original(compiled_function)

    monkeypatch.setattr(function, "_register", register)
    for name in ("jax", "torch-mlir 1", "torch-mlir 2"):
        monkeypatch.setattr(foreign, "chosen", lambda _, name=name: name)
        torch._dynamo.reset()
        assert_same(compiled(lambda a: a * 3)(x), torch.full((2,), 3.0))
    assert len(digests) == 3


def test_a_front_end_that_is_not_installed_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"Install torchneuron\[torch-mlir\]"):
        foreign.chosen("torch-mlir")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "7")
    assert foreign.chosen("torch-mlir") == "torch-mlir 7"
    assert foreign.chosen("jax") == "jax"
