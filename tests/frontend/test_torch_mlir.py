"""Torch-MLIR as front end against our own rules, and what happens where it fails or dies."""

from __future__ import annotations

import collections
import importlib.util
import os
import pathlib
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.dynamo.test_models import CASES
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db

from support import assert_same, no_fallback, to_device
from torch_neuronx.compiler import ledger
from torch_neuronx.dynamo.function import CompilationError
from torch_neuronx.frontend import client, parts
from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.client import LoweringClient

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch_mlir") is None,
    reason="torch-mlir is not installed: pip install torchneuron[torch-mlir]",
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    ledger.reset()


def compiled(function: Callable[..., Any], frontend: str = "torch-mlir", **options: Any) -> Any:
    return torch.compile(function, backend="neuron", options={"frontend": frontend, **options})


def test_a_graph_gives_what_it_gives_in_eager() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.gelu(F.layer_norm(x @ w, (4,)))[i]
        x[1:].add_(1)
        return y.softmax(-1), y.transpose(0, 1), x[0]

    def make() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [torch.randn(5, 3), torch.randn(3, 4), torch.tensor([3, 0])]

    ours, theirs = to_device(make()), make()
    with no_fallback():
        assert_same(compiled(f)(*ours), f(*theirs))
    assert_same(ours[0], theirs[0])
    assert ledger.graphs()[0].frontend.startswith("torch-mlir ")


def test_numbers_that_change() -> None:
    """It takes them as operands where a tensor may stand, and must know them elsewhere."""

    def f(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        return x * k + k, x.clamp(max=k), x[k : k + 1] * 2, torch.add(x, x, alpha=k)

    x = torch.randn(5, 4)
    function = torch.compile(f, backend="neuron", dynamic=True, options={"frontend": "torch-mlir"})
    for k in (2, 3, 4):
        assert_same(function(x.to("neuron"), k), f(x, k))


def test_an_operator_without_a_lowering_is_named_with_its_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        return torch.linalg.qr(y)[0]

    x = torch.randn(3, 3).to("neuron")
    with pytest.raises(
        CompilationError,
        match=r"cannot lower aten::linalg_qr at .*test_torch_mlir\.py.*failed to legalize.*"
        r"Without options=",
    ):
        compiled(f)(x)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="operator by operator"):
        compiled(f, fallback_execution=True)(x)


def test_the_death_of_its_process_names_the_operator_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = client.default_client()
    real = process.ask

    def ask(request: bytes, *, attempts: int) -> Any:
        if b"aten::cosh" in request:
            process.start()
            os.kill(process.pids()[0], signal.SIGABRT)
        return real(request, attempts=attempts)

    monkeypatch.setattr(process, "ask", ask)
    x = torch.randn(3).to("neuron")
    with pytest.raises(CompilationError, match=r"status -6 on aten::cosh at .*test_torch_mlir\.py"):
        compiled(lambda a: (a + 1).cosh() * 2)(x)
    torch._dynamo.reset()
    assert_same(compiled(lambda a: a.sinh())(x), x.cpu().sinh())


def test_a_part_alone_reads_what_the_others_give() -> None:
    array = ir.Array("float32", (2, 3))
    nodes = (
        ir.Node("aten::exp", (ir.Input(0),), (array,)),
        ir.Node("aten::add.Tensor", (ir.Result(0), ir.Input(0), ir.Constant(1)), (array,)),
    )
    part = parts.Part(ir.Subgraph(nodes, (ir.Result(1),)), (array,), (7, 8))
    assert parts.Part.from_json(part.to_json()) == part
    alone = part.alone(1)
    assert (alone.inputs, alone.numbers) == ((array, array), (8,))
    assert alone.function.nodes[0].args[:2] == (ir.Input(0), ir.Input(1))
    assert "stablehlo.add" in client.translate(alone)[0]


def test_its_process_ends_after_idling() -> None:
    process = LoweringClient(idle_s=0.05, servers=1, module="torch_neuronx.frontend.server")
    process.start()
    (server,) = process._idle
    assert server.process.wait(timeout=120) == 0
    process.close()


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_models_give_what_our_own_rules_give(name: str) -> None:
    make_model, make_data = CASES[name]
    torch.manual_seed(0)
    model = make_model().to("neuron").eval()
    x = to_device(make_data()[0])
    with torch.no_grad(), no_fallback():
        want = compiled(model, "jax")(x)
        torch._dynamo.reset()
        got = compiled(model)(x)
    assert_same(got, _on_cpu(want))


def _example(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.nn.Module, Any]:
    root = pathlib.Path(__file__).resolve().parents[2]
    for folder in ("benchmarks", "examples"):
        monkeypatch.syspath_prepend(root / folder)
    if name == "train_gpt":
        script = importlib.import_module(name)
        tokens = torch.randint(script.VOCABULARY, (2, 4, script.CONTEXT))
        return script.GPT(), (tokens[0], tokens[1])
    model, data = importlib.import_module("_models").CASES[name]()
    return model, data()


EXAMPLES = (
    "gpt", "llama", "bert", "vit", "resnet50", "unet", "moe", "lstm", "train_gpt",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_models_give_what_our_own_rules_give(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models that benchmarks/compile.py measures, and the example's; none is refused."""
    torch.manual_seed(0)
    model, inputs = _example(name, monkeypatch)
    model, moved = model.to("neuron").eval(), to_device(inputs)
    with torch.no_grad(), no_fallback():
        want = compiled(model, "jax")(*moved)
        torch._dynamo.reset()
        ledger.reset()
        got = compiled(model)(*moved)
    assert_same(got, _on_cpu(want), scale=10)
    # PyTorch captures nothing of nn.LSTM, on any device.
    fronts = [g.frontend.split()[0] for g in ledger.graphs()]
    assert fronts == ([] if name == "lstm" else ["torch-mlir"])
    assert all(g.obstacle is None for g in ledger.graphs())


def _on_cpu(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), value)


# Results that mean nothing, and OpInfos that no device but CUDA runs.
SKIPPED = ("empty", "new_empty", "jiterator")
SAMPLE = [
    "T", "addmm", "cat", "clamp", "cumsum", "gather", "index_select", "logcumsumexp",
    "max_reduction_no_dim", "masked_fill", "nn.functional.conv2d", "nn.functional.layer_norm",
    "nn.functional.linear",
    "bmm", "addcmul", "nn.functional.gelu",
    "scatter_add", "slice_scatter", "softmax", "where",
]  # fmt: skip
# Entries that gave what our rules give, of each part, less two.
EQUAL = (58, 50, 59, 59, 62, 62, 54, 55)


def compare(op: Any) -> str:
    """What becomes of an OpInfo's first sample: "equal", "refused", or why it is not compared."""
    dtypes = op.supported_dtypes("cpu")
    try:
        dtype = next(d for d in (torch.float32, torch.int64, torch.bool, *dtypes) if d in dtypes)
        sample = next(iter(op.sample_inputs("cpu", dtype)))
        args, kwargs = to_device([sample.input, *sample.args]), to_device(sample.kwargs)
    except (StopIteration, RuntimeError):
        return "no sample of dense tensors"

    def run(frontend: str) -> Any:
        torch._dynamo.reset()
        torch.manual_seed(0)
        result = compiled(lambda *a, **k: op.op(*a, **k), frontend)(*args, **kwargs)
        torch.neuron.synchronize()
        return _on_cpu(result)

    try:
        want = run("jax")
    except Exception as error:
        return f"not by our rules: {type(error).__name__}"
    try:
        got = run("torch-mlir")
    except CompilationError as refusal:
        assert re.search(r"aten::\w+.* at `%.*call_function", str(refusal)), str(refusal)
        return "refused"
    # Polynomials and orders of sums differ.
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
    return "equal"


def entries() -> list[Any]:
    every = [o for o in op_db if not o.name.startswith(SKIPPED)]
    return sorted(every, key=lambda o: (o.name, o.variant_test_name))


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_gives_what_our_own_rules_give(name: str) -> None:
    op = next(o for o in op_db if f"{o.name}_{o.variant_test_name}".strip("_") == name)
    assert compare(op) == "equal"


@pytest.mark.full
@pytest.mark.parametrize("part", range(len(EQUAL)))
def test_every_sample_gives_what_our_own_rules_give_or_is_refused(part: int) -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    wrong = []
    for op in entries()[part :: len(EQUAL)]:
        try:
            outcomes[compare(op)] += 1
        except AssertionError as error:
            wrong.append(f"{op.name} {op.variant_test_name}: {error}")
    print(part, dict(outcomes))
    assert not wrong, "\n\n".join(wrong)
    assert outcomes["equal"] >= EQUAL[part]
