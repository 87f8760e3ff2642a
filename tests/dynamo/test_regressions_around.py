"""Cases that other backends got wrong, around a compiled call: what lives before and after it.

Those of one function of tensors are in test_regressions.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from support import Executables, assert_same, no_fallback, to_device
from torch_neuronx.compiler import ledger


def compiled(function: Callable[..., Any]) -> Any:
    return torch.compile(function, backend="neuron")


def add_through_data(x: torch.Tensor) -> Any:
    y = x.view(-1)
    x.data.add_(1)
    return x * 1, y * 1


def rebind_data(x: torch.Tensor) -> Any:
    y = x.view(-1)
    x.data = x.data + 1
    return x * 1, y * 1


def rebind_data_of_another_length(x: torch.Tensor) -> Any:
    y = x.view(-1)
    x.data = y[:5] + 1
    return x * 1, y * 1


@pytest.mark.parametrize("function", [add_through_data, rebind_data, rebind_data_of_another_length])
def test_data_and_older_views(function: Callable[..., Any]) -> None:
    x = torch.arange(6.0).view(2, 3)
    moved = to_device(x)
    assert_same(compiled(function)(moved), function(x))
    assert_same(moved, x)


def test_a_view_that_a_graph_gave_still_reaches_its_base_after_a_synchronisation() -> None:
    base = torch.zeros(2, 3).to("neuron")
    view = compiled(lambda x: x.view(-1)[1:])(base)
    torch.neuron.synchronize()
    view.add_(1)
    compiled(lambda v: v[:2].mul_(5))(view)
    assert base.tolist() == [[0, 5, 5], [1, 1, 1]]


@pytest.mark.parametrize(
    "cut", [(slice(None, None, 2),), (slice(1, None, 3), slice(None, None, 2))]
)
def test_a_result_copied_into_a_strided_view_leaves_its_gaps(cut: tuple[slice, ...]) -> None:
    source = torch.arange(48.0).view(8, 6)
    parent = torch.full((8, 6), -1.0)
    expected = parent.clone()
    expected[cut].copy_(source[cut])
    parent[cut].copy_(compiled(lambda x: x[cut])(source.to("neuron")))
    assert torch.equal(parent, expected)


def test_strided_inputs_on_the_cpu_and_strided_arrays() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    inputs = [x.permute(2, 0, 1), x[:, ::2], x[0, :, :1].expand(3, 5), x.flip(1).transpose(0, 2)]
    inputs.append(torch.from_numpy(numpy.arange(9.0).reshape(3, 3)[:, :2]))
    inputs.append(torch.tensor(numpy.arange(9).reshape(3, 3)[:, :2]))
    double = compiled(lambda *tensors: [t * 2 for t in tensors])
    assert_same(double(*inputs), [t * 2 for t in inputs], strides=False)
    assert_same(double(*to_device(inputs)), [t * 2 for t in inputs])


def test_copies_inside_a_graph_in_every_direction() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.copy_(b)  # another device and dtype, broadcast
        return a + 1, a.cpu(), b.to(a.device) + a

    a, b = torch.zeros(2, 3), torch.tensor([1, 2, 3])
    moved = to_device(a)
    results = compiled(function)(moved, b)
    expected = function(a, b)
    assert_same(moved, a)
    assert_same([results[0], results[2]], [expected[0], expected[2]])
    assert torch.equal(results[1].cpu(), expected[1])


def test_rows_assigned_by_a_mask_and_the_next_operator() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        x[mask] = values
        return x * 2

    x, values = torch.randn(171, 16).half(), torch.randn(20, 16).half()
    mask = torch.zeros(171, dtype=torch.bool)
    mask[::9][:20] = True
    values = values[: int(mask.sum())]
    moved = to_device([x, mask, values])
    assert_same(compiled(function)(*moved), function(x, mask, values))
    assert_same(moved[0], x)


def test_an_optimizer_made_before_the_move_trains_the_compiled_module() -> None:
    def train(device: str) -> nn.Linear:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        before = list(model.parameters())
        optimizer = torch.optim.SGD(before, 0.1)
        model.to(device)
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        run = compiled(model) if device == "neuron" else model
        run(torch.ones(4, 3, device=device)).square().sum().backward()
        optimizer.step()
        return model

    assert_same(list(train("neuron").parameters()), list(train("cpu").parameters()))


@pytest.mark.parametrize("function, index, error", [
    (lambda w, i: F.embedding(i, w), [[10]], IndexError),
    (lambda w, i: F.embedding_bag(i, w), [[0, -1]], RuntimeError),
])  # fmt: skip
def test_bad_embedding_indices_are_refused(
    function: Callable[..., Any], index: Any, error: type[Exception]
) -> None:
    weight, bad = torch.randn(10, 4), torch.tensor(index)
    with pytest.raises(Exception) as on_cpu:
        function(weight, bad)
    with pytest.raises(type(on_cpu.value)):
        compiled(function)(*to_device([weight, bad]))
        torch.neuron.synchronize()
    assert issubclass(on_cpu.type, error)


def test_the_first_draw_after_a_fork_advances_the_state() -> None:
    draw = compiled(lambda x: torch.rand_like(x))
    x = torch.zeros(8).to("neuron")
    first = draw(x)
    state = torch.neuron.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        inside = draw(x)
        assert not torch.equal(torch.neuron.get_rng_state(), state)
    assert torch.equal(torch.neuron.get_rng_state(), state)
    again = draw(x)
    assert torch.equal(again.cpu(), inside.cpu()) and not torch.equal(again.cpu(), first.cpu())


def test_a_large_reduction_repeats_to_the_bit() -> None:
    reduce = compiled(lambda x: torch.stack([x.sum(), x.mean(), x.var()]))
    x = torch.randn(300_007).to("neuron")
    results = torch.stack([reduce(x) for _ in range(100)]).cpu()
    assert torch.equal(results, results[:1].expand_as(results))


@pytest.mark.parametrize("hidden", [1, 7])
def test_lstm_of_packed_sequences(hidden: int) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, hidden, batch_first=True)
    x, lengths = torch.randn(3, 5, 3), torch.tensor([5, 3, 1])

    def run(model: nn.LSTM, x: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        out, state = model(packed)
        return pad_packed_sequence(out, batch_first=True)[0], state

    moved = copy.deepcopy(model).to("neuron")
    assert_same(compiled(run)(moved, x.to("neuron")), run(model, x), strides=False)


def test_the_shape_of_an_unused_input_compiles_nothing() -> None:
    torch.neuron.reset_dynamo_metrics()
    function = compiled(lambda x, unused: x + 1)
    x = torch.ones(3).to("neuron")
    with no_fallback():
        function(x, torch.ones(2).to("neuron"))
        with Executables() as new:
            for n in (3, 4, 5, 0, 1):
                assert_same(function(x, torch.ones(n).to("neuron")), torch.full((3,), 2.0))
    assert new.count <= 1
    assert len(ledger.graphs()) <= 2  # Dynamo guards it at first
