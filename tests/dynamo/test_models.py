"""Training compiled gives what training on CPU gives: outputs, gradients, parameters, buffers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from support import assert_same, no_fallback, to_device


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(x + self.norm2(self.conv2(x)))
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1).flatten(1))


class GPT(nn.Module):
    """One block, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.positions = nn.Embedding(8, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        b, t = tokens.shape
        x = self.tokens(tokens) + self.positions(torch.arange(t, device=tokens.device))
        q, k, v = (
            p.view(b, t, 2, 8).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + attended.transpose(1, 2).reshape(b, t, 16)
        return self.head(x + self.down(F.gelu(self.up(x))))


def train(
    model: nn.Module,
    forward: Callable[..., torch.Tensor],
    data: list[tuple[torch.Tensor, torch.Tensor]],
    optimizer: torch.optim.Optimizer,
) -> list[torch.Tensor]:
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        logits = forward(x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)),
        lambda: (torch.randn(7, 6), torch.randint(5, (7,))),
    ),
    "resnet": (ResNet, lambda: (torch.randn(4, 3, 8, 8), torch.randint(5, (4,)))),
    "gpt": (GPT, lambda: (torch.randint(32, (3, 8)), torch.randint(32, (3, 8)))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_training_is_cpu_training(name: str, fullgraph: bool) -> None:
    make_model, make_batch = CASES[name]
    on_cpu = make_model()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    data = [make_batch() for _ in range(3)]
    reference = train(on_cpu, on_cpu, data, torch.optim.SGD(on_cpu.parameters(), 0.1, 0.9))
    compiled = torch.compile(on_device, backend="neuron", fullgraph=fullgraph)
    with no_fallback():
        losses = train(
            on_device,
            compiled,
            to_device(data),
            torch.optim.SGD(on_device.parameters(), 0.1, 0.9),
        )
    assert_same(losses, reference, scale=10)
    expected = on_cpu.state_dict()
    for key, value in on_device.state_dict().items():
        assert_same(value, expected[key], scale=20, where=key)


@pytest.mark.parametrize("name", CASES)
def test_evaluation_is_cpu_evaluation(name: str) -> None:
    make_model, make_batch = CASES[name]
    on_cpu = make_model().eval()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    x, _ = make_batch()
    compiled = torch.compile(on_device, backend="neuron", fullgraph=True)
    for context in (torch.no_grad, torch.inference_mode):
        with context(), no_fallback():
            assert_same(compiled(to_device(x)), on_cpu(x), scale=10, where=context.__name__)


def test_tied_weights_get_one_gradient() -> None:
    on_cpu = GPT()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    assert on_device.head.weight is on_device.tokens.weight
    tokens = torch.tensor([[1, 2, 31]])
    on_cpu(tokens).square().mean().backward()
    compiled = torch.compile(on_device, backend="neuron")
    compiled(tokens.to("neuron")).square().mean().backward()
    assert_same(on_device.tokens.weight.grad, on_cpu.tokens.weight.grad, scale=10)


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointing_draws_the_same_dropout_again(compiled: bool) -> None:
    block = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 2)).to("neuron")
    x = torch.randn(4, 6).to("neuron")

    def gradients(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(5)
        block.zero_grad()
        function(x).sum().backward()
        return [p.grad.cpu() for p in block.parameters()]

    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    plain = gradients(block)
    assert any(g.abs().max() > 0 for g in plain)
    tested = torch.compile(checkpointed, backend="neuron") if compiled else checkpointed
    torch.testing.assert_close(gradients(tested), plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    ],
    ids=["sgd", "adam", "adamw-loop", "adamw-foreach"],
)
def test_compiled_optimizer_step(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    start = [torch.randn(4, 3), torch.randn(5)]
    on_cpu = [p.clone().requires_grad_() for p in start]
    on_device = [p.to("neuron").requires_grad_() for p in start]
    reference, tested = make(on_cpu), make(on_device)
    step = torch.compile(tested.step, backend="neuron")
    with no_fallback(), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*operator by operator")
        for _ in range(4):
            for p, q in zip(on_cpu, on_device, strict=True):
                p.grad = torch.randn_like(p)
                q.grad = p.grad.to("neuron")
            reference.step()
            step()
    assert_same([p.detach() for p in on_device], [p.detach() for p in on_cpu])


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(inside: bool, dtype: torch.dtype) -> None:
    on_cpu = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Softmax(-1))
    on_device = copy.deepcopy(on_cpu).to("neuron")
    x = torch.randn(3, 6)

    def run(model: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=dtype):
            return model(x) @ x[:, :3].t().softmax(0)[:3].new_ones(8, 2)

    compiled = torch.compile(on_device, backend="neuron")
    tested = torch.compile(run, backend="neuron") if inside else run
    actual = tested(on_device if inside else compiled, x.to("neuron"))
    expected = run(on_cpu, x)
    assert_same(actual, expected)
    assert actual.dtype == dtype
    actual.float().sum().backward()
    expected.float().sum().backward()
    weight, reference = on_device[0].weight, on_cpu[0].weight
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(weight.grad.cpu(), reference.grad, rtol=0.05, atol=5e-3)


def test_eager_autocast_casts() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        product = a.to("neuron") @ b.to("neuron")
        total = product.exp()
    assert product.dtype == torch.bfloat16
    assert total.dtype == torch.float32
    assert_same(product, a.bfloat16() @ b.bfloat16())
