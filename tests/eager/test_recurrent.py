"""Recurrent networks, eager and compiled, with and without biases, against CPU.

A layer and direction is one launch of ``neuron::rnn_layer`` forward and one backward.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

import torch_neuronx
from support import TOLERANCES, no_fallback

KINDS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]


def pair(kind: Callable[..., torch.nn.RNNBase], **options: Any) -> tuple[Any, Any]:
    """The same network on CPU and on the device."""
    torch.manual_seed(0)
    on_cpu = kind(3, 4, **options)
    return on_cpu, copy.deepcopy(on_cpu).to("neuron")


def loss(result: Any) -> torch.Tensor:
    """A number that depends on the output and on the last states, on each in its own way."""
    return sum((i + 1) * x.float().square().sum() for i, x in enumerate(tree_leaves(result)))


def close(got: Any, expected: Any, scale: float = 1.0) -> None:
    for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert a.dtype == b.dtype
        rtol, atol = TOLERANCES[b.dtype]
        torch.testing.assert_close(a.cpu(), b, rtol=scale * rtol, atol=scale * atol)


def gradients(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters()]


def layers_run() -> dict[str, int]:
    """Launches of our operators by name."""
    return {
        n: c
        for n, c in torch_neuronx._C.executed_overloads().items()
        if n.startswith("neuron::rnn")
    }


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("kind", [torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU])
def test_outputs_states_and_gradients(
    kind: type[torch.nn.RNNBase], bias: bool, compiled: bool
) -> None:
    torch.manual_seed(0)
    on_cpu = kind(3, 4, num_layers=2, bidirectional=True, bias=bias, batch_first=True)
    module = copy.deepcopy(on_cpu).to("neuron")
    run = torch.compile(module, backend="neuron") if compiled else module
    x = torch.randn(2, 5, 3)
    with no_fallback():
        expected, got = on_cpu(x)[0], run(x.to("neuron"))[0]
        expected.square().sum().backward()
        got.square().sum().backward()
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(module.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.nn.RNNCell, torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells(kind: type[torch.nn.RNNCellBase]) -> None:
    torch.manual_seed(0)
    on_cpu = kind(3, 4)
    cell = copy.deepcopy(on_cpu).to("neuron")
    x = torch.randn(2, 3)
    expected, got = on_cpu(x), cell(x.to("neuron"))
    for a, b in zip(
        torch.utils._pytree.tree_leaves(got),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    ):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "bidirectional": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "kind", [*KINDS, lambda *a, **k: torch.nn.RNN(*a, nonlinearity="relu", **k)]
)
def test_states_given_and_returned(kind: Any, options: dict[str, Any]) -> None:
    on_cpu, module = pair(kind, **options)
    runs = on_cpu.num_layers * (1 + on_cpu.bidirectional)
    x = torch.randn((2, 5, 3) if on_cpu.batch_first else (5, 2, 3))
    states = [torch.randn(runs, 2, 4) for _ in range(1 + (on_cpu.mode == "LSTM"))]
    results, leaves = [], []
    torch_neuronx._C.reset_overload_counts()
    for network, device in ((on_cpu, "cpu"), (module, "neuron")):
        own = [t.to(device).detach().requires_grad_() for t in (x, *states)]
        with no_fallback():
            result = network(own[0], tuple(own[1:]) if len(states) == 2 else own[1])
            loss(result).backward()
        results.append(result)
        leaves.append([t.grad for t in own])
    assert layers_run() == {"neuron::rnn_layer": runs, "neuron::rnn_layer_backward": runs}
    close(results[1], results[0])
    assert results[1][0].stride() == results[0][0].stride()
    close(leaves[1], leaves[0])
    close(gradients(module), gradients(on_cpu))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind: Any, dtype: torch.dtype) -> None:
    """Of reduced floats, CPU in float32 on the same rounded weights is the reference."""
    on_cpu, module = pair(kind)
    on_cpu, module = on_cpu.to(dtype), module.to(dtype)
    reference = on_cpu if dtype == torch.float64 else on_cpu.float()
    x = torch.randn(5, 2, 3, dtype=dtype)
    expected, got = reference(x.to(reference.weight_ih_l0.dtype)), module(x.to("neuron"))
    loss(expected).backward()
    loss(got).backward()
    assert all(t.dtype == dtype for t in tree_leaves((got, gradients(module))))
    close(got, torch.utils._pytree.tree_map(lambda t: t.to(dtype), expected))
    close(gradients(module), [g.to(dtype) for g in gradients(reference)], scale=2)


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_without_a_batch_and_without_gradients(kind: Any) -> None:
    on_cpu, module = pair(kind, num_layers=2)
    x = torch.randn(5, 3)
    with torch.no_grad():
        close(module(x.to("neuron")), on_cpu(x))
    with torch.inference_mode():
        close(module(x.to("neuron")), on_cpu(x))


def test_gradients_of_some_arguments_only() -> None:
    on_cpu, module = pair(torch.nn.LSTM)
    for network in (on_cpu, module):
        network.weight_ih_l0.requires_grad_(False)
        network.bias_hh_l0.requires_grad_(False)
    x = torch.randn(5, 2, 3)
    for network, device in ((on_cpu, "cpu"), (module, "neuron")):
        network(x.to(device))[1][1].sum().backward()  # of the last cell's state alone
    assert module.weight_ih_l0.grad is None and module.bias_hh_l0.grad is None
    close(module.weight_hh_l0.grad, on_cpu.weight_hh_l0.grad)
    close(module.bias_ih_l0.grad, on_cpu.bias_ih_l0.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(kind: Any) -> None:
    """The input is computed from the state: a gradient of one must not count the other's way."""
    on_cpu, module = pair(kind, bidirectional=True)
    start = torch.randn(2, 2, 4)
    found = []
    for network, device in ((on_cpu, "cpu"), (module, "neuron")):
        h = start.to(device).detach().requires_grad_()
        x = h.sum(0)[:, :3].expand(5, 2, 3).sin()
        result = network(x, (h, h.cos()) if network.mode == "LSTM" else h)
        first = torch.autograd.grad(loss(result), [h, *network.parameters()], create_graph=True)
        loss(first).backward()
        found.append([first, h.grad, gradients(network)])
    close(found[1], found[0], scale=5)


def test_dropout_between_layers_repeats_with_the_seed() -> None:
    _, module = pair(torch.nn.LSTM, num_layers=2, dropout=0.5)
    x = torch.randn(5, 2, 3, device="neuron")
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(module(x)[0].cpu())
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    without = copy.deepcopy(module).eval()
    on_cpu = copy.deepcopy(without).cpu()
    close(without(x)[0], on_cpu(x.cpu())[0])


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_runs_all_of_it_in_the_lower_precision(kind: Any) -> None:
    on_cpu, module = pair(kind)
    x = torch.randn(5, 2, 3)
    with torch.autocast("neuron", torch.bfloat16):
        got = module(x.to("neuron"))
    loss(got).backward()
    expected = on_cpu(x)
    loss(expected).backward()
    close(got, torch.utils._pytree.tree_map(lambda t: t.bfloat16(), expected), scale=2)
    for a, b in zip(gradients(module), gradients(on_cpu), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.cpu(), b, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode_and_torch_func(kind: Any) -> None:
    on_cpu, module = pair(kind)
    x, tangent = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    step = 1e-3
    with torch.no_grad():
        slope = (on_cpu(x + step * tangent)[0] - on_cpu(x - step * tangent)[0]) / (2 * step)
    with forward_ad.dual_level():
        dual = module(forward_ad.make_dual(x.to("neuron"), tangent.to("neuron")))[0]
        got = forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(got.cpu(), slope, rtol=1e-3, atol=1e-3)

    def of(network: torch.nn.Module) -> Callable[..., torch.Tensor]:
        return lambda p, x: loss(torch.func.functional_call(network, p, (x,)))

    weights = dict(module.named_parameters())
    xs = torch.stack([x, tangent])
    several = torch.func.vmap(torch.func.grad(of(module)), (None, 0))(weights, xs.to("neuron"))
    for i, one in enumerate(xs):
        on_cpu.zero_grad()
        loss(on_cpu(one)).backward()
        close([g[i] for g in several.values()], gradients(on_cpu))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_and_projections_go_step_by_step(kind: Any) -> None:
    on_cpu, module = pair(kind, **({"proj_size": 2} if kind is torch.nn.LSTM else {}))
    x = torch.randn(5, 2, 3)
    torch_neuronx._C.reset_overload_counts()
    for network, device in ((on_cpu, "cpu"), (module, "neuron")):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(device), [5, 3])
        loss([network(packed)[0].data, network(packed)[1]]).backward()
    if kind is torch.nn.LSTM:
        close(module(x.to("neuron")), on_cpu(x))
    assert not layers_run()
    close(gradients(module), gradients(on_cpu))


def test_wrong_arguments_raise_as_on_cpu() -> None:
    on_cpu, module = pair(torch.nn.GRU)
    for network, device in ((on_cpu, "cpu"), (module, "neuron")):
        x, h = torch.randn(5, 2, 3, device=device), torch.zeros(1, 2, 5, device=device)
        with pytest.raises(RuntimeError):
            torch.gru(x, h, network._flat_weights, True, 1, 0.0, False, False, False)
    with pytest.raises(RuntimeError, match="device"):
        module(torch.randn(5, 2, 3))


def test_traced_graphs_hold_one_operator_a_layer_and_direction() -> None:
    on_cpu, module = pair(torch.nn.LSTM, num_layers=2)
    x = torch.randn(5, 2, 3)
    with torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(lambda x: module(x), backend="neuron", fullgraph=True)
        result = run(x.to("neuron"))
    loss(result).backward()
    expected = on_cpu(x)
    loss(expected).backward()
    close(result, expected)
    close(gradients(module), gradients(on_cpu))
    native = [set(g.native) for g in torch_neuronx.compiler.ledger.graphs()[-2:]]
    assert "neuron::rnn_layer" in native[0] and "neuron::rnn_layer_backward" in native[1]
