"""Cases that other backends got wrong, compiled: values, dtypes, shapes and inputs as in CPU eager.

The eager half, where there is one, is in tests/regressions. What a case is about is its name.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import Executables, assert_same, no_fallback, to_device
from torch_neuronx.dlpack import from_dlpack, to_dlpack

Case = tuple[Callable[..., Any], Callable[[], list[Any]]]
INF, NAN = float("inf"), float("nan")
CASES: dict[str, Case] = {}


def case(make: Callable[[], list[Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = (function, make)
        return function

    return register


# Views, strides, storage, in-place


@case(lambda: [torch.randn(3, 4, requires_grad=False)])
def view_sees_a_later_write_to_its_base(x: Any) -> Any:
    y = x.view(-1)
    x.add_(1)
    return y * 2, y


@case(lambda: [torch.randn(4, 4, 4)])
def slice_of_a_slice_uses_its_own_shape(x: Any) -> Any:
    x = x[:1]
    return x[:, 0:1, 0:1] * x[:, 1:2, 1:2]


@case(lambda: [torch.randn(3, 5, 6)])
def reduction_over_a_slice_of_the_last_dimension(x: Any) -> Any:
    return torch.softmax(x[..., :4], 1)[..., 0]


@case(lambda: [torch.zeros(8, dtype=torch.bool)])
def elements_assigned_at_several_offsets(mask: Any) -> Any:
    mask[2] = True
    mask[0] = True
    mask[-1] = True
    return mask.sum()


@case(lambda: [torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)])
def channels_last_input_keeps_its_values(x: Any) -> Any:
    return x * 2, x.permute(3, 1, 0, 2).contiguous(), x.flip(1)


# Indexing, scatter, masks


@case(lambda: [torch.arange(1.0, 7.0).view(2, 3)])
def scatter_of_a_transposed_source(base: Any) -> Any:
    index = torch.zeros(3, 2, dtype=torch.int64, device=base.device)
    index += torch.arange(3, device=base.device)[:, None]
    return torch.zeros(3, 2, device=base.device).scatter_(0, index, base.t())


@case(lambda: [torch.randn(12, 4), torch.arange(4).repeat_interleave(3)])
def repeated_indices_are_summed(x: Any, index: Any) -> Any:
    a = x.new_zeros(4, 4).index_add(0, index, x)
    b = x.new_zeros(4, 4).scatter_add(0, index[:, None].expand(-1, 4), x)
    return a, b, x.new_zeros(4, 4).index_put((index,), x, accumulate=True)


@case(lambda: [torch.randn(5, 3)])
def masked_fill_of_a_permuted_tensor(x: Any) -> Any:
    y = x.t()
    return y.masked_fill(y > 0, 7.0), y.contiguous().masked_fill(y > 0, 7.0)


@case(lambda: [torch.randn(8, 50)])
def top_k_filter(t: Any) -> Any:
    t = t.clone()
    v, _ = torch.topk(t, 5)
    t[t < v[:, [-1]]] = -INF
    return t


@case(lambda: [torch.tensor([True, False, True]), torch.tensor([0]), torch.tensor([False])])
def index_add_of_booleans(x: Any, index: Any, source: Any) -> Any:
    return x.index_add(0, index, source)


@case(lambda: [torch.arange(3.0), torch.empty(0, dtype=torch.int64), torch.empty(0)])
def scatter_with_an_empty_index_is_a_copy(x: Any, index: Any, source: Any) -> Any:
    return x.scatter(0, index, source)


@case(lambda: [torch.arange(6).view(2, 3), torch.tensor([1, 0])])
def index_made_from_a_shape(m: Any, p: Any) -> Any:
    return m[torch.arange(m.shape[0], device=m.device), p]


@case(lambda: [torch.arange(70000).half().view(-1, 1), torch.tensor([257, 2049, 65537, 69999])])
def indices_beyond_narrow_floats(x: Any, index: Any) -> Any:
    return x[index], x.index_select(0, index), x.gather(0, index[:, None]), F.embedding(index, x)


# Dtypes


@case(lambda: [torch.ones(200, dtype=torch.bool)])
def cumulative_sum_of_booleans(x: Any) -> Any:
    return x.cumsum(0), x.sum(), x * 2, x + 0, x.float()


@case(lambda: [torch.tensor([42309891, -42309891, 2**53 + 1, -(2**60)]), torch.tensor(31)])
def remainders_of_large_integers(x: Any, k: Any) -> Any:
    return x % k, torch.fmod(x, k), x // k, torch.gcd(x, k), x % 31


@case(lambda: [torch.tensor([[100, 100], [5, -7]], dtype=torch.int8)])
def results_of_integer_reductions(x: Any) -> Any:
    return x.sum(0), x.prod(1), x.cumprod(0), x.float().mean(), x.to(torch.uint8)[0]


@case(lambda: [torch.randn(4, dtype=torch.float64), torch.randn(4), torch.rand(4) + 1])
def promotion_of_three_operands(a: Any, b: Any, c: Any) -> Any:
    return (
        torch.addcdiv(a, b.double(), c.double()),
        torch.lerp(b, c, 0.3),
        torch.where(b > 0, b, a),
        torch.clamp(b, c * -1, c),
    )


@case(lambda: [torch.randn(4).bfloat16()])
def numbers_do_not_widen(x: Any) -> Any:
    x *= 0.5
    return x, x + 2, 3.0 - x, x * torch.tensor(2.0)


@case(lambda: [torch.randint(2, (4099,)).bool()])
def sort_of_many_booleans(x: Any) -> Any:
    return x.sort(stable=True), x.sort(descending=True).values


@case(lambda: [torch.tensor([0.0, -1.5, 2.7, 300.0, 1e10])])
def casts(x: Any) -> Any:
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.int64)
    return tuple(x.to(k) for k in kinds)


@case(lambda: [torch.tensor([1 + 2j, 3 + 4j]), torch.tensor([3.0, 4.0, 0.5, -1.0, 2.0])])
def conjugates_and_transforms(x: Any, t: Any) -> Any:
    y = x.conj()
    return torch.view_as_real(y.resolve_conj()), y.imag, x.abs(), torch.fft.irfft(
        torch.fft.rfft(t), 5
    )  # fmt: skip


@case(lambda: [torch.tensor(True), torch.tensor([True, False])])
def arithmetic_of_booleans_without_dimensions(x: Any, y: Any) -> Any:
    return x * 2, x + 0, x.float(), y.float(), y.sum() + x


# NaN, infinities, empty tensors


@case(lambda: [torch.tensor([NAN, 1.0, INF]), torch.tensor([1.0, NAN, NAN])])
def nan_in_either_operand(a: Any, b: Any) -> Any:
    return torch.maximum(a, b), torch.minimum(a, b), torch.hypot(a, b), a.max(), b.argmax()


@case(lambda: [torch.randn(3, 0), torch.randn(0, 4), torch.randn(3, 4)])
def products_without_elements(a: Any, b: Any, c: Any) -> Any:
    return a @ b, torch.addmm(c, a, b, beta=0.5), F.linear(a, b.t()), a.sum(1), a.var(0)


@case(lambda: [torch.tensor([3.4028235e38, INF, 0.0]), torch.tensor([1.0, NAN, 0.0])])
def hypotenuse_of_the_largest_number(a: Any, b: Any) -> Any:
    return torch.hypot(a, b)


@case(lambda: [torch.empty(0, 3), torch.empty(0, dtype=torch.bool), torch.tensor(2.0)])
def statistics_of_nothing(x: Any, mask: Any, scalar: Any) -> Any:
    return x.var(0), torch.count_nonzero(mask), scalar.var(0, correction=0)


@case(lambda: [torch.tensor([[1.0, 3.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])])
def ties_of_topk(x: Any) -> Any:
    values, index = x.topk(3)
    return values, x.gather(1, index)  # which of equal elements it takes is not promised


@case(lambda: [torch.tensor([0.0, 0.9999999, 1.0, 2.0, 3.0, 3.000001])])
def histogram_drops_what_is_outside(x: Any) -> Any:
    return torch.histc(x, 2, 1, 3)


# Convolution, normalisation, resizing


@case(
    lambda: [torch.randn(1, 2, 1, 2).to(memory_format=torch.channels_last), torch.randn(3, 1, 1, 1)]
)
def convolution_of_a_channel_slice(x: Any, w: Any) -> Any:
    return F.conv2d(x[:, :1], w)


@case(lambda: [torch.randn(2, 4, 6), torch.randn(5, 6, 3), torch.randn(5)])
def convolution_after_a_permutation(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(F.conv1d(x.transpose(1, 2), w).transpose(1, 2), (5,), b)


@case(lambda: [torch.randn(1, 2, 1), torch.randn(1, 1, 20)])
def resizing_of_one_and_to_odd_sizes(x: Any, y: Any) -> Any:
    return (
        F.interpolate(x, 3, mode="linear", align_corners=True),
        F.interpolate(y, 11, mode="nearest-exact"),
        F.interpolate(y, scale_factor=1.5, mode="linear"),
    )


@case(
    lambda: [torch.ones(1, 2, 3, 3), torch.ones(2, 2, 2, 2).to(memory_format=torch.channels_last)]
)
def transposed_convolution_with_a_channels_last_weight(x: Any, w: Any) -> Any:
    return F.conv_transpose2d(x, w)


@case(lambda: [torch.randn(1, 3, 4, 5)])
def grid_sample_in_both_memory_formats(x: Any) -> Any:
    identity = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]], device=x.device)
    grid = F.affine_grid(identity, [1, 3, 4, 5], align_corners=True)
    last = x.contiguous(memory_format=torch.channels_last)
    return tuple(F.grid_sample(y, grid, align_corners=True) for y in (x, last, x))


@case(lambda: [torch.randn(1, 2, 5), torch.randn(3, 2, 3)])
def resizing_then_convolving(x: Any, w: Any) -> Any:
    return F.conv1d(F.interpolate(x, scale_factor=2.0), w)


@case(lambda: [torch.zeros(4, 4, 3, 3), torch.zeros(1, 2, 1, 1)])
def initialised_and_assigned_elements(w: Any, v: Any) -> Any:
    nn.init.dirac_(w)
    v[0, 1, 0, 0] = 3
    return w.sum()


# Attention


@case(lambda: [torch.randn(1, 2, 4, 8), torch.tensor([[True, True, False, True]] * 4)])
def a_boolean_mask_is_its_additive_mask(x: Any, mask: Any) -> Any:
    added = torch.zeros(4, 4, device=x.device).masked_fill(~mask, -INF)
    return tuple(F.scaled_dot_product_attention(x, x, x, attn_mask=m) for m in (mask, added))


@case(lambda: [torch.randn(1, 2, 4, 8), torch.tensor([False] * 4 + [True] * 12).view(4, 4)])
def rows_that_attend_to_nothing(x: Any, mask: Any) -> Any:
    added = torch.zeros(4, 4, device=x.device).masked_fill(~mask, -INF)
    return (
        F.scaled_dot_product_attention(x, x, x, attn_mask=mask),
        F.scaled_dot_product_attention(x, x, x, attn_mask=added)[:, :, 1:],
    )


@case(lambda: [torch.randn(2, 6, 24)])
def attention_block_of_one_projection(x: Any) -> Any:
    q, k, v = x.view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return ((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 8)


# Fusion, caches


@case(lambda: [torch.randn(4, 63), torch.randn(4, 63)])
def broadcast_of_a_reduced_value(x: Any, y: Any) -> Any:
    return x.mean(1, keepdim=True) + torch.zeros_like(x) + y


@case(lambda: [torch.randn(3, 40)])
def nucleus_sampling(logits: Any) -> Any:
    values, index = torch.sort(logits, descending=True)
    remove = values.softmax(-1).cumsum(-1) > 0.7
    remove[..., 1:] = remove[..., :-1].clone()
    remove[..., 0] = False
    return logits.masked_fill(remove.scatter(1, index, remove), -INF)


@case(lambda: [torch.zeros(4, 2, 3), torch.randn(2, 2, 3), torch.tensor([1, 3])])
def write_into_a_view_of_a_cache(cache: Any, new: Any, index: Any) -> Any:
    cache.view(-1, 2, 3).index_put_((index,), new)
    return cache.sum()


@case(lambda: [torch.arange(855).view(1, 855)])
def views_of_odd_widths(x: Any) -> Any:
    return x.view(5, 171).t()[3:, 1:], x[:, 1::2] + 1


@pytest.mark.parametrize("name", CASES)
def test_compiled_as_cpu(name: str) -> None:
    function, make = CASES[name]
    inputs = make()
    moved = to_device(inputs)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    with no_fallback():
        actual = compiled(*moved)
    expected = function(*inputs)
    assert_same(actual, expected, strides=False)
    assert_same(moved, inputs, where="inputs")


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    out.square().sum().backward()
    return [p.grad for p in model.parameters()]


def transposed_batch_norm() -> tuple[nn.Module, torch.Tensor]:
    return nn.BatchNorm2d(3), torch.randn(4, 5, 5, 3).permute(0, 3, 1, 2)


def two_layer_lstm() -> tuple[nn.Module, torch.Tensor]:
    return nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), torch.randn(2, 3, 4)


def overwritten_slice() -> tuple[nn.Module, torch.Tensor]:
    class Overwrite(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            y[:, :2] = 0
            return y

    return Overwrite(4, 5), torch.randn(3, 4)


@pytest.mark.parametrize("make", [transposed_batch_norm, two_layer_lstm, overwritten_slice])
def test_gradients_as_cpu(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
    on_cpu, x = make()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    compiled = torch.compile(on_device, backend="neuron")
    moved, x = to_device(x.requires_grad_()), x
    with no_fallback():
        actual = gradients(compiled, moved)
    for a, e in zip(actual, gradients(on_cpu, x), strict=True):
        assert_same(a, e, scale=20)
    assert_same(moved.grad, x.grad, scale=20, strides=False)


def test_a_mask_differs_from_step_to_step_without_recompiling() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="neuron")
    x = torch.ones(64).to("neuron")
    first = compiled(x)
    with Executables() as new:
        second = compiled(x)
    assert new.count == 0 and not torch.equal(first.cpu(), second.cpu())


def test_a_graph_is_not_reused_for_another_width_dtype_or_number() -> None:
    compiled = torch.compile(lambda x, k: (x.median(-1).values * k, x.sum(0)), backend="neuron")
    warnings.filterwarnings("error", message=".*operator by operator")
    for width in (36, 48, 36):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for k in (2, 3.5):
                x = torch.randn(3, width).to(dtype)
                expected = (x.median(-1).values * k, x.sum(0))
                assert_same(compiled(x.to("neuron"), k), expected)


def test_data_dependent_operators_break_the_graph_with_a_reason() -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    function = torch.compile(lambda x: (x[x > 0] * 2).unique(), backend="neuron")
    x = torch.tensor([1.0, -1.0, 3.0, 1.0])
    assert_same(function(x.to("neuron")), torch.tensor([2.0, 6.0]))
    assert counters["graph_break"] and all(counters["graph_break"])


def test_a_changing_number_of_a_loop_is_named_in_the_ledger() -> None:
    from torch_neuronx.compiler import ledger

    torch.neuron.reset_dynamo_metrics()
    compiled = torch.compile(lambda x, t: x * t, backend="neuron")
    x = torch.ones(3).to("neuron")
    for t in (0.1, 0.2, 0.3, 0.4):
        compiled(x, t)
    causes = [g.cause for g in ledger.graphs()]
    assert len(causes) == 2  # Python's number becomes a symbol at the second value
    assert "t == 0.1" in causes[1] or "guard failed" in causes[1]


@pytest.mark.parametrize("every", [1, 5])
def test_reading_the_loss_changes_no_weight(every: int) -> None:
    def train(every: int) -> torch.Tensor:
        torch._dynamo.reset()
        torch.manual_seed(3)
        model = nn.Linear(4, 2).to("neuron")
        compiled = torch.compile(model, backend="neuron")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for i in range(6):
            loss = compiled(torch.randn(3, 4).to("neuron")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % every == 0:
                loss.item()
        return model.weight.detach().cpu()

    assert torch.equal(train(every), train(6))


# Modules, optimizers, saving and loading


@pytest.mark.parametrize(
    "name, fused", [("SGD", True), ("AdamW", True), ("AdamW", False), ("Rprop", False)]
)
def test_a_compiled_optimizer_moves_transposed_parameters(name: str, fused: bool) -> None:
    def train(device: str) -> list[torch.Tensor]:
        target = torch.linspace(-1, 1, 6, device=device).reshape(3, 2)
        dense = torch.zeros(3, 2, device=device, requires_grad=True)
        transposed = torch.zeros(2, 3, device=device).t().requires_grad_()
        keywords = {"fused": True} if fused else {}
        optimizer = getattr(torch.optim, name)([dense, transposed], lr=0.05, **keywords)
        step = optimizer.step
        if device == "neuron":
            step = torch.compile(step, backend="neuron")
        for _ in range(3):
            optimizer.zero_grad()
            sum(((p - target) ** 2).sum() for p in (dense, transposed)).backward()
            step()
        return [dense.detach(), transposed.detach()]

    expected = train("cpu")
    actual = train("neuron")
    assert_same(actual, expected, scale=5)
    assert actual[1].stride() == (1, 3) and actual[1].abs().max().item() > 0.05


def test_tied_weights_survive_saving_and_a_compiled_step_goes_on(tmp_path: Path) -> None:
    def make(device: str) -> tuple[nn.ModuleList, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)])
        model[1].weight = model[0].weight
        model = model.to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: nn.ModuleList, optimizer: torch.optim.Optimizer, run: Any) -> float:
        tokens = torch.arange(7, device=model[0].weight.device)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(model, tokens), tokens.flip(0))
        loss.backward()
        optimizer.step()
        return float(loss)

    def forward(model: nn.ModuleList, tokens: torch.Tensor) -> torch.Tensor:
        return model[1](model[0](tokens).tanh())

    compiled = torch.compile(forward, backend="neuron")
    model, optimizer = make("neuron")
    assert model[0].weight is model[1].weight and len(list(model.parameters())) == 1
    straight = [step(model, optimizer, compiled) for _ in range(4)]
    model, optimizer = make("neuron")
    resumed = [step(model, optimizer, compiled) for _ in range(2)]
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "c.pt")
    model, optimizer = make("neuron")
    states = torch.load(tmp_path / "c.pt", map_location="neuron")
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    resumed += [step(model, optimizer, compiled) for _ in range(2)]
    assert resumed == straight
    model, optimizer = make("cpu")
    on_cpu = [step(model, optimizer, forward) for _ in range(4)]
    torch.testing.assert_close(torch.tensor(straight), torch.tensor(on_cpu))


def test_a_loaded_tensor_and_one_from_dlpack_are_inputs(tmp_path: Path) -> None:
    source = torch.arange(12.0).reshape(3, 4)
    torch.save(source, tmp_path / "t.pt")
    loaded = torch.load(tmp_path / "t.pt", map_location="neuron")
    given = from_dlpack(source)
    compiled = torch.compile(lambda a, b: (a.t() @ b, a + b), backend="neuron")
    assert_same(compiled(loaded, given), (source.t() @ source, source + source))


def test_what_shares_memory_through_dlpack_sees_a_compiled_write() -> None:
    x = torch.arange(4.0).to("neuron")
    host = numpy.from_dlpack(to_dlpack(x))
    torch.compile(lambda a: a.add_(1), backend="neuron")(x)
    torch.neuron.synchronize()
    assert host.tolist() == [1.0, 2.0, 3.0, 4.0]
