"""What PyTorch promises on every device works through its own code: function transforms,
checkpointing, parametrisation, FX, custom operators, modes and subclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torch_neuronx
from support import assert_same, no_fallback, to_device


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.default_generator.manual_seed(0)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3))


# --- torch.func


def f(x: Tensor) -> Tensor:
    """(3, 4) to (4,)."""
    return (torch.sin(x) * x.cumsum(0)).sum(0) + x.exp().mean()


def g(x: Tensor) -> Tensor:
    return f(x).square().sum()


def body(x: Tensor, y: Tensor) -> Tensor:
    return F.softmax(x @ y, -1) + x.sum() * y.t()[:, :1]


def per_sample_gradients(device: str) -> dict[str, Tensor]:
    """The gradient of each sample's loss, with functional_call."""
    torch.default_generator.manual_seed(1)
    model = network()
    x, target = torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])
    model.to(device)
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        out = torch.func.functional_call(model, parameters, (x[None],))
        return F.cross_entropy(out, target[None])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return gradients(parameters, x.to(device), target.to(device))


X, T = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.ones(3, 4)
TRANSFORMS: dict[str, Callable[[Tensor], Any]] = {
    "grad": torch.func.grad(g),
    "grad_and_value": torch.func.grad_and_value(g),
    "vjp": lambda x: torch.func.vjp(f, x)[1](x[0]),
    "jvp": lambda x: torch.func.jvp(f, (x,), (T.to(x.device),)),
    "jvp of in-place forms": lambda x: torch.func.jvp(
        lambda x: torch.quantile(x, 0.3).add_(1), (x,), (T.to(x.device),)
    ),
    "linearize": lambda x: torch.func.linearize(f, x)[1](T.to(x.device)),
    "jacrev": torch.func.jacrev(f),
    "jacfwd": torch.func.jacfwd(f),
    "hessian": torch.func.hessian(g),
    "grad of grad": torch.func.grad(lambda x: torch.func.grad(g)(x).square().sum()),
    "vmap": lambda x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
    "vmap over other dimensions": lambda x: torch.func.vmap(
        body, in_dims=(1, None), out_dims=1
    )(torch.stack([x, -x], 1), x.t()),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(g))(torch.stack([x, 2 * x])),
    "vmap in chunks": lambda x: torch.func.vmap(g, chunk_size=2)(torch.stack([x, -x, 2 * x])),
    "functionalize": torch.func.functionalize(lambda x: x.clone().add_(1).t().mul_(2)),
    "autograd.functional": lambda x: torch.autograd.functional.hessian(g, x),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    with no_fallback():
        assert_same(TRANSFORMS[name](X.to("neuron")), TRANSFORMS[name](X), strides=False)


def test_functional_call_under_vmap_of_grad() -> None:
    with no_fallback():
        actual = per_sample_gradients("neuron")
    expected = per_sample_gradients("cpu")
    assert actual.keys() == expected.keys()
    assert_same(list(actual.values()), list(expected.values()), strides=False)


def test_random_draws_under_vmap() -> None:
    x = torch.zeros(3, 5, device="neuron")
    draws = torch.func.vmap(lambda x: x + torch.rand(5, device="neuron"), randomness="different")(x)
    assert len({tuple(row) for row in draws.tolist()}) == 3
    same = torch.func.vmap(lambda x: x + torch.rand(5, device="neuron"), randomness="same")(x)
    assert len({tuple(row) for row in same.tolist()}) == 1
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda x: x + torch.rand(5, device="neuron"))(x)


def test_ensembles_of_stacked_modules() -> None:
    models = [network() for _ in range(3)]
    x = torch.randn(2, 4)
    expected = torch.stack([m(x) for m in models])
    parameters, buffers = torch.func.stack_module_state([m.to("neuron") for m in models])

    def call(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(models[0], (parameters, buffers), (x,))

    actual = torch.func.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x.to("neuron"))
    assert_same(actual, expected, strides=False)


# --- torch.autograd and torch.utils.checkpoint


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool) -> None:
    """Dropout of the second run repeats the first one's, so equal inputs give equal gradients."""
    model = network()
    x = torch.randn(2, 4)
    answers = []
    for device in ("cpu", "neuron"):
        model.to(device).zero_grad()
        y = x.to(device, copy=True).requires_grad_()
        checkpoint(model, y, use_reentrant=reentrant).square().sum().backward()
        answers.append([y.grad, *(p.grad.clone() for p in model.parameters())])
    assert_same(answers[1], answers[0])

    dropped = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)).to("neuron")
    grads = []
    for call in (dropped, lambda y: checkpoint(dropped, y, use_reentrant=reentrant)):
        y = x.to("neuron").requires_grad_()
        torch.neuron.manual_seed(3)
        call(y).sum().backward()
        grads.append(y.grad.cpu())
    assert torch.equal(*grads)


def test_selective_checkpoint_runs_the_rest_again() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = op == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    x, w = torch.randn(3, 4), torch.randn(4, 4)
    answers, ran = [], []
    for device in ("cpu", "neuron"):
        a, b = (t.to(device, copy=True).requires_grad_() for t in (x, w))
        torch_neuronx.clear_op_tracking()
        checkpoint(
            lambda a, b: torch.sin(a @ b).exp(), a, b, use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(policy),
        ).sum().backward()  # fmt: skip
        answers.append([a.grad, b.grad])
        ran.append(torch_neuronx.get_executed_ops())
    assert_same(answers[1], answers[0])
    assert "aten::sin" in ran[1]


class Cube(torch.autograd.Function):
    """A user's own autograd function with everything it may define."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3 * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 3 * ctx.saved_tensors[0] ** 2


def test_autograd_functions_hooks_and_saved_tensors() -> None:
    answers = []
    for device in ("cpu", "neuron"):
        x = X.to(device, copy=True).requires_grad_()
        seen: list[Tensor] = []
        x.register_hook(seen.append)
        with torch.autograd.graph.save_on_cpu():
            y = Cube.apply(x.sin())
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), x)
        batched = torch.func.vmap(torch.func.grad(lambda r: Cube.apply(r).sum()))(x.detach())
        tangent = torch.func.jvp(Cube.apply, (x.detach(),), (x.detach(),))[1]
        answers.append([y, grad, second, batched, tangent, *seen])
    assert_same(answers[1], answers[0], strides=False)


def test_anomaly_mode_names_the_forward_line() -> None:
    x = torch.zeros(2, device="neuron", requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning, match="sqrt"):
        y = torch.sqrt(x) * 0
        with pytest.raises(RuntimeError, match=r"SqrtBackward0.* returned nan"):
            y.sum().backward()


# --- torch.nn.utils


def parametrized(device: str) -> list[Tensor]:
    torch.default_generator.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))

    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).mT

        def right_inverse(self, x: Tensor) -> Tensor:
            return x.triu()

    nn.utils.parametrize.register_parametrization(model[0], "weight", Symmetric())
    nn.utils.parametrizations.weight_norm(model[1])
    nn.utils.parametrizations.orthogonal(model[2])
    model.to(device)
    model[0].weight = torch.eye(4, device=device)  # through right_inverse
    x = torch.arange(8.0).reshape(2, 4).to(device)
    model(x).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    vector = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
    with nn.utils.parametrize.cached():
        weights = [layer.weight.detach() for layer in model]
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    return [vector, *weights, model(x)]


def test_parametrize() -> None:
    with no_fallback():
        actual = parametrized("neuron")
    assert_same(actual, parametrized("cpu"), strides=False, scale=5)


# --- torch.fx


def test_fx_traces_and_runs_modules() -> None:
    model = network()
    x = torch.randn(2, 4)
    traced = torch.fx.symbolic_trace(model)
    expected = traced(x)
    traced.to("neuron")
    assert_same(traced(x.to("neuron")), expected)
    for node in traced.graph.nodes:
        if node.op == "call_module" and isinstance(traced.get_submodule(node.target), nn.Tanh):
            with traced.graph.inserting_after(node):
                node.replace_all_uses_with(traced.graph.call_function(torch.sin, (node.args[0],)))
            traced.graph.erase_node(node)
            break
    traced.recompile()
    on_device = traced(x.to("neuron"))
    interpreted = torch.fx.Interpreter(traced).run(x.to("neuron"))
    assert_same(on_device, traced.cpu()(x))
    assert_same(interpreted, on_device.cpu())


def test_make_fx_records_aten_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(torch.func.grad(g))(X.to("neuron"))
    assert all(n.op != "call_function" or "aten" in str(n.target) for n in graph.graph.nodes)
    assert_same(graph(2 * X.to("neuron")), torch.func.grad(g)(2 * X))


def test_export_runs_on_the_device() -> None:
    model = network().to("neuron")
    x = torch.randn(2, 4)
    program = torch.export.export(model, (x.to("neuron"),))
    assert_same(program.module()(x.to("neuron")), model.cpu()(x))


# --- torch.library


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("stock_code", "FRAGMENT")
    yield made
    made._destroy()


def test_operator_with_only_a_cpu_kernel_falls_back(library: torch.library.Library) -> None:
    devices = []

    def sinc(x: Tensor, scale: float) -> Tensor:
        devices.append(x.device.type)
        return torch.sinc(x * scale)

    library.define("sinc_on_cpu(Tensor x, float scale) -> Tensor")
    library.impl("sinc_on_cpu", sinc, "CPU")
    x = torch.randn(3, 4)
    torch_neuronx.clear_op_tracking()
    with pytest.warns(UserWarning, match=r"stock_code::sinc_on_cpu .*float32.*\(3, 4\)"):
        actual = torch.ops.stock_code.sinc_on_cpu(x.to("neuron"), 2.0)
    assert_same(actual, torch.sinc(2 * x))
    assert torch_neuronx.get_fallback_ops() == ["stock_code::sinc_on_cpu"]
    assert devices == ["cpu"]


def test_custom_operators_with_gradients() -> None:
    """One with a kernel for all devices, which runs on the device, and one for CPU tensors only."""
    kernels: dict[str, Any] = {}
    for name, devices in (("all", None), ("cpu", "cpu")):
        op = torch.library.custom_op(
            f"stock_code::twice_{name}", lambda x: 2 * x, mutates_args=(), device_types=devices,
            schema="(Tensor x) -> Tensor",
        )  # fmt: skip
        op.register_fake(torch.empty_like)
        op.register_autograd(lambda ctx, grad: 2 * grad)
        kernels[name] = op
    for name, op in kernels.items():
        x = torch.randn(3, device="neuron", requires_grad=True)
        torch_neuronx.clear_op_tracking()
        y = op(x)
        y.sum().backward()
        assert_same([y, x.grad], [2 * x.detach().cpu(), torch.full((3,), 2.0)])
        fell = torch_neuronx.get_fallback_ops()
        assert fell == ([f"stock_code::twice_{name}"] if name == "cpu" else [])
        compiled = torch.compile(lambda x, op=op: op(x) + 1, backend="neuron")
        assert_same(compiled(x.detach()), 2 * x.detach().cpu() + 1)


def test_a_kernel_of_ones_own_for_the_device(library: torch.library.Library) -> None:
    library.define("plus_one(Tensor x) -> Tensor")
    library.impl("plus_one", lambda x: x + 1, "PrivateUse1")
    with no_fallback():
        assert torch.ops.stock_code.plus_one(torch.zeros(2, device="neuron")).tolist() == [1, 1]


# --- modes and subclasses


class Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_modes_see_the_same_calls_as_on_cpu() -> None:
    seen = []
    for device in ("cpu", "neuron"):
        x = X.to(device, copy=True).requires_grad_()
        with Calls() as calls, Dispatches() as dispatches:
            F.layer_norm(torch.tanh(x @ x.t()), (3,)).sum().backward()
        seen.append((calls.names, dispatches.names, x.grad))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] == seen[1][1]
    assert_same(seen[1][2], seen[0][2], strides=False)


def test_flops_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = network()
    counts = []
    for device in ("cpu", "neuron"):
        with FlopCounterMode(display=False) as counter:
            model.to(device)(torch.ones(2, 4, device=device)).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_device_contexts() -> None:
    with torch.device("neuron"):
        assert torch.zeros(2).device.type == "neuron"
        assert nn.Linear(2, 2).weight.device.type == "neuron"


class Tagged(Tensor):
    """A subclass that only has a name."""


class Scaled(Tensor):
    """A wrapper of a tensor and a factor; every operator sees the product."""

    @staticmethod
    def __new__(cls, inner: Tensor, factor: float) -> Scaled:
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor, factor: float) -> None:
        self.inner, self.factor = inner, factor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = pytree.tree_map_only(cls, lambda s: s.inner * s.factor, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def test_subclasses() -> None:
    tagged = X.to("neuron").as_subclass(Tagged)
    assert isinstance(tagged.sin() + 1, Tagged)
    assert_same((tagged.sin() + 1).as_subclass(Tensor), X.sin() + 1)
    assert isinstance(nn.Parameter(tagged), nn.Parameter)

    scaled = Scaled(X.to("neuron"), 3.0)
    assert scaled.device.type == "neuron"
    assert_same(scaled @ scaled.t(), 9 * X @ X.t(), strides=False)
    assert_same(torch.cat([scaled, X.to("neuron")]), torch.cat([3 * X, X]))


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = to_device(X)
        y = x.mul(2)
    assert y.is_inference()
    with pytest.raises(RuntimeError, match="inference tensor"):
        y.requires_grad_()
    assert_same(y.clone(), 2 * X)
