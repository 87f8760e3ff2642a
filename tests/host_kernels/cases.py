"""Host kernels against the CPU; test_host_kernels.py runs this file with the switch on.

Not collected by its name: in a process without the switch there is nothing to test.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_neuronx
from adaptive_support import Fused, both, equal
from support import assert_same, last_event, no_fallback, to_device
from torch_neuronx import config
from torch_neuronx.compiler import host_kernels
from torch_neuronx.lowering.rules import conv

FLOATS = (torch.float32, torch.bfloat16)
ATTENTION, ATTENTION_BACKWARD = "torchneuron.attention", "torchneuron.attention_backward"
ADD, CONVOLUTION = "torchneuron.add_in_planes", "torchneuron.convolution"
CONVOLUTION_BACKWARD, SORT = "torchneuron.convolution_backward", "torchneuron.sort"
TOPK = "torchneuron.topk"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def called_since(before: int) -> set[str]:
    """Host kernels of the executables made or loaded after event ``before``."""
    torch.neuron.synchronize()
    return {h for e in torch_neuronx.compile_events(before) for h in e["handlers"]}


def check(
    function: Callable[..., Any],
    *args: Any,
    calls: set[str],
    scale: float = 1.0,
    strides: bool = True,
) -> None:
    """``function`` gives on the device what it gives on the CPU, and calls these host kernels."""
    before = last_event()
    with no_fallback():
        actual = function(*to_device(args))
    assert_same(actual, function(*args), scale=scale, strides=strides)
    assert called_since(before) == calls


def test_the_switch_is_reported() -> None:
    names = set(host_kernels.enabled())
    assert {ADD, CONVOLUTION, CONVOLUTION_BACKWARD, SORT, TOPK} <= names
    properties = torch.neuron.get_device_properties()
    assert properties.host_kernels == ", ".join(host_kernels.enabled())


# --- pooling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "geometry"),
    [((2, 3, 9, 11), (3, 2, 1)), ((3, 8, 8), (2, 2, 0)), ((1, 2, 40, 40), (9, 1, 4))],
)
def test_max_pool_backward(
    shape: tuple[int, ...], geometry: tuple[int, int, int], dtype: torch.dtype
) -> None:
    def backward(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = F.max_pool2d(x, *geometry)
        # Small integers add up exactly, whatever the order and the dtype.
        y.backward((torch.arange(y.numel(), device=x.device) % 3).reshape(y.shape).to(x.dtype))
        return x.grad

    check(backward, torch.randn(shape).to(dtype), calls={ADD})


def test_max_pool_backward_in_three_dimensions_and_adaptive() -> None:
    def backward(x: torch.Tensor, adaptive: bool) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = F.adaptive_max_pool2d(x, (3, 2)) if adaptive else F.max_pool3d(x, 2, 1)
        y.sum().backward()
        return x.grad

    check(lambda x: backward(x, False), torch.randn(2, 3, 4, 5, 6), calls={ADD})
    check(lambda x: backward(x, True), torch.randn(2, 3, 8, 7), calls={ADD})


def test_positions_out_of_range_are_left_out() -> None:
    """ATen's own kernel trusts them; a wrong one must not reach memory that is not the tensor's."""
    grad, x = torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 4, 4)
    indices = torch.tensor([[[[0, 16], [-1, 1 << 40]]]])
    got = torch.ops.aten.max_pool2d_with_indices_backward(
        *to_device((grad, x)), [2, 2], [2, 2], [0, 0], [1, 1], False, indices.to("neuron")
    )
    want = torch.zeros(1, 1, 4, 4)
    want[0, 0, 0, 0] = 1
    assert torch.equal(got.cpu(), want)


# --- convolutions --------------------------------------------------------------------------------

# Input, weight, then stride, padding, dilation, transposed, output padding, groups.
CONVOLUTIONS = {
    "plain": ((2, 32, 24, 24), (32, 32, 3, 3), 1, 1, 1, False, 0, 1),
    "strided": ((2, 3, 32, 31), (24, 3, 7, 7), 2, 3, 1, False, 0, 1),
    "dilated": ((1, 8, 20, 20), (18, 8, 3, 3), 1, 2, 2, False, 0, 1),
    "depthwise": ((2, 12, 14, 14), (12, 1, 3, 3), 1, 1, 1, False, 0, 12),
    "grouped": ((2, 8, 10, 10), (12, 2, 3, 3), 2, 1, 1, False, 0, 4),
    "one dimension": ((2, 6, 30), (6, 1, 5), 1, 2, 1, False, 0, 6),
    "three dimensions": ((1, 4, 6, 7, 8), (4, 1, 3, 3, 3), 1, 1, 1, False, 0, 4),
    "transposed": ((2, 16, 8, 8), (16, 24, 4, 4), 2, 1, 1, True, 0, 1),
    "transposed with groups": ((1, 8, 6, 6), (8, 2, 3, 3), 2, 1, 1, True, 1, 4),
}


def geometry_of(case: tuple[Any, ...]) -> list[Any]:
    n = len(case[1]) - 2
    stride, padding, dilation, transposed, output_padding, groups = case[2:]
    return [[stride] * n, [padding] * n, [dilation] * n, transposed, [output_padding] * n, groups]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, dtype: torch.dtype) -> None:
    case = CONVOLUTIONS[name]
    x, w = (torch.randn(shape).to(dtype) / 4 for shape in case[:2])
    channels = w.shape[1] * case[7] if case[5] else w.shape[0]
    bias = torch.randn(channels).to(dtype)
    for b in (None, bias):
        check(
            lambda x, w, b: torch.convolution(x, w, b, *geometry_of(case)),
            x, w, b, calls={CONVOLUTION}, scale=4,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_backward(name: str, dtype: torch.dtype) -> None:
    case = CONVOLUTIONS[name]
    x, w = (torch.randn(shape).to(dtype) / 4 for shape in case[:2])
    y = torch.convolution(x, w, None, *geometry_of(case))
    channels = [y.shape[1]]
    for mask in ([True, True, True], [True, False, False], [False, True, False]):
        check(
            lambda g, x, w, mask: [
                v
                for v in torch.ops.aten.convolution_backward(
                    g, x, w, channels, *geometry_of(case), mask
                )
                if v is not None
            ],
            torch.randn_like(y), x, w, mask, calls={CONVOLUTION_BACKWARD}, scale=20,
        )  # fmt: skip


def test_convolution_of_views() -> None:
    """Operands reach the kernel dense and row-major, however their tensors lie."""
    x = torch.randn(2, 10, 9, 6).permute(0, 3, 1, 2)[:, :, 1:]
    w = torch.randn(3, 3, 6, 1).permute(2, 3, 0, 1)
    check(
        lambda x, w: F.conv2d(x, w, padding=1, groups=6),
        x, w, calls={CONVOLUTION}, scale=4, strides=False,
    )  # fmt: skip


def test_float16_and_empty_convolutions_stay_portable() -> None:
    w = torch.randn(4, 1, 3, 3)
    check(
        lambda x, w: F.conv2d(x, w, groups=4),
        torch.randn(1, 4, 6, 6).half(), w.half(), calls=set(), scale=4,
    )  # fmt: skip
    check(lambda x, w: F.conv2d(x, w, groups=4), torch.randn(0, 4, 6, 6), w, calls=set())


# --- sorting -------------------------------------------------------------------------------------

SORTED_DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip


@pytest.mark.parametrize("dtype", SORTED_DTYPES)
def test_sort_is_stable(dtype: torch.dtype) -> None:
    x = torch.randint(0, 7, (5, 40, 3)).to(dtype)  # many equal elements
    for dim, descending in itertools.product((0, 1, -1), (False, True)):
        check(
            lambda x, d, r: tuple(torch.sort(x, dim=d, descending=r, stable=True)),
            x, dim, descending, calls={SORT},
        )  # fmt: skip


def test_sort_of_nan_views_and_scalars() -> None:
    x = torch.randn(6, 8)
    x[2, 3] = x[0, 0] = torch.nan
    check(lambda x: tuple(x.sort(descending=True)), x, calls={SORT})
    check(lambda x: tuple(x.t().sort(0)), x, calls={SORT})
    check(lambda x: tuple(x.sort()), torch.tensor(3.0), calls=set())
    check(lambda x: tuple(x.sort()), torch.empty(0, 4), calls=set())


@pytest.mark.parametrize("dtype", SORTED_DTYPES[:-1])
@pytest.mark.parametrize("largest", [True, False])
def test_topk(largest: bool, dtype: torch.dtype) -> None:
    rows = [torch.randperm(100)[:60] for _ in range(4)]  # none equal
    x = torch.stack(rows).to(dtype)
    check(lambda x: tuple(x.topk(5, largest=largest)), x, calls={TOPK})
    check(lambda x: tuple(x.t().topk(3, 0, largest=largest)), x, calls={TOPK})
    check(lambda x: tuple(x.topk(0, largest=largest)), x, calls=set())


def test_topk_of_nan_and_equal_elements() -> None:
    x = torch.tensor([[1.0, torch.nan, 3.0, -torch.inf], [2.0, 2.0, 2.0, 2.0]])
    actual, expected = x.to("neuron").topk(2), x.topk(2)
    torch.testing.assert_close(actual.values.cpu(), expected.values, equal_nan=True)
    assert torch.equal(actual.indices[0].cpu(), expected.indices[0])
    # Of equal elements any may be chosen, each once.
    assert len(set(actual.indices[1].tolist())) == 2


# --- attention ------------------------------------------------------------------------------------


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """Output and gradients."""
    q, k, v = leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(q, k, v, **options)
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("queries", "keys", "options"),
    [
        ((1, 2, 512, 16), (1, 2, 512, 16), {"is_causal": True}),
        ((2, 1, 480, 8), (2, 1, 560, 8), {"scale": 0.3}),
        ((1, 4, 512, 16), (1, 2, 520, 16), {"enable_gqa": True}),
    ],
)
def test_attention_over_many_positions(
    queries: tuple[int, ...], keys: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    q, k, v = (torch.randn(shape).to(dtype) for shape in (queries, keys, keys))
    check(
        lambda q, k, v: attend(q, k, v, **options),
        q, k, v, calls={ATTENTION, ATTENTION_BACKWARD}, scale=4, strides=False,
    )  # fmt: skip


def test_attention_with_a_mask_or_over_few_positions_stays_portable() -> None:
    q, k, v = (torch.randn(1, 1, 512, 8) for _ in range(3))
    mask = torch.ones(512, 512, dtype=torch.bool).tril(-1)  # the first row sees nothing
    check(
        lambda q, k, v, mask: attend(q, k, v, attn_mask=mask)[0],
        q, k, v, mask, calls=set(), strides=False,
    )  # fmt: skip
    few = torch.randn(1, 1, 64, 8)
    check(lambda x: attend(x, x, x)[0], few, calls=set(), strides=False)


# --- everywhere ----------------------------------------------------------------------------------


class Small(torch.nn.Module):
    """Every host kernel of a training step in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Conv2d(3, 24, 7, 2, 3)
        self.depthwise = torch.nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.head = torch.nn.Linear(24 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(torch.relu(self.depthwise(self.wide(x))), 3, 2, 1)
        return self.head(x.flatten(1)).topk(4).values


def train(model: torch.nn.Module, run: Any, x: torch.Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def models() -> tuple[Small, Small]:
    torch.manual_seed(0)
    cpu = Small()
    device = Small()
    device.load_state_dict(cpu.state_dict())
    return cpu, device.to("neuron")


def test_compiled_training_equals_the_cpu_and_is_explained() -> None:
    cpu, device = models()
    x = torch.randn(4, 3, 16, 16)
    compiled = torch.compile(device, backend="neuron")
    expected = train(cpu, cpu, x, 3)
    torch.testing.assert_close(
        train(device, compiled, x.to("neuron"), 3), expected, rtol=1e-4, atol=1e-5
    )
    torch._dynamo.reset()
    explanation = torch_neuronx.explain(device, x.to("neuron"))
    names = {h for g in explanation.graphs for s in g.specialisations for h in s.handlers}
    assert names == {CONVOLUTION, TOPK}
    assert f"host kernels: {CONVOLUTION}, {TOPK}" in str(explanation)


def test_adaptive_eager_gives_the_same_bits() -> None:
    """A host kernel in a fused sequence is the kernel that runs alone."""
    x = torch.randn(4, 3, 16, 16).to("neuron")
    device = models()[1]

    def step() -> list[torch.Tensor]:
        loss = device(x).square().mean()
        return [loss, *torch.autograd.grad(loss, list(device.parameters()))]

    before = last_event()
    with Fused() as fused:
        per_op, adaptive = both(step)
    assert all(map(equal, per_op, adaptive))
    assert fused.operators > 0
    handlers = [set(e["handlers"]) for e in torch_neuronx.compile_events(before)]
    assert any({CONVOLUTION, CONVOLUTION_BACKWARD, ADD} & h and len(h) > 1 for h in handlers)


def test_an_error_in_a_kernel_is_an_error_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> dict[str, Any]:
        return {**right(*args), "groups": 5}

    right = conv._geometry
    monkeypatch.setattr(conv, "_geometry", wrong)
    x, w = torch.randn(1, 6, 5, 5, device="neuron"), torch.randn(6, 1, 3, 3, device="neuron")
    with (
        config.override({"TORCH_NEURONX_LOWERING": "inprocess"}),
        pytest.raises(RuntimeError, match="groups=5"),
    ):
        F.conv2d(x, w, groups=6, padding=2)
        torch.neuron.synchronize()
    # The device goes on.
    monkeypatch.setattr(conv, "_geometry", right)
    check(lambda x, w: F.conv2d(x, w, groups=6), x.cpu(), w.cpu(), calls={CONVOLUTION}, scale=4)


def test_modes_of_the_caller_do_not_reach_the_kernel() -> None:
    """A plugin may run a small program in the thread that launched it."""
    x = torch.randn(1, 4, 6, 6)
    w = torch.randn(4, 1, 3, 3)
    want = F.conv2d(x, w, groups=4, dilation=2)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        got = F.conv2d(*to_device((x, w)), groups=4, dilation=2)
        torch.neuron.synchronize()
    torch.testing.assert_close(got.cpu(), want)
