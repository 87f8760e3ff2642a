"""Small models of each kind: forward, backward and a step on the device against CPU."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support import assert_same, no_fallback


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, groups=2)
        self.short = nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.norm(self.first(x)))) + self.short(x), inplace=True)


class ResNetLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.body = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.adaptive_avg_pool2d(self.body(self.stem(x)), 1).flatten(1))


class BertLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 16, padding_idx=0)
        self.places = nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        h = self.tokens(x) + self.places(place)
        h = self.layers(h, src_key_padding_mask=x == 0)
        return self.head(torch.tanh(self.norm(h)[:, 0]))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LlamaBlock(nn.Module):
    """Rotary positions, grouped queries, gated MLP."""

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 40, bias=False) for _ in range(2))
        self.down = nn.Linear(40, width, bias=False)
        self.before, self.after = RMSNorm(width), RMSNorm(width)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        speed = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angle = torch.outer(torch.arange(x.shape[2], device=x.device), speed)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.unflatten(-1, (heads, self.size)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        q = self.rotate(self.split(self.q(h), self.heads))
        k = self.rotate(self.split(self.k(h), self.groups))
        v = self.split(self.v(h), self.groups)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class LlamaLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.Sequential(LlamaBlock(), LlamaBlock())
        self.norm = RMSNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(x)))).mean(1) / math.sqrt(16)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 6)
        self.lstm = nn.LSTM(6, 7, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(14, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


MODELS = {
    "resnet": (ResNetLike, lambda: torch.randn(4, 3, 16, 16)),
    "bert": (BertLike, lambda: torch.randint(1, 50, (4, 12)).masked_fill_(torch.eye(4, 12) > 0, 0)),
    "llama": (LlamaLike, lambda: torch.randint(0, 50, (4, 9))),
    "lstm": (Recurrent, lambda: torch.randint(0, 50, (4, 6))),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str) -> None:
    create, make_input = MODELS[name]
    torch.manual_seed(0)
    on_cpu = create()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    x = make_input()
    target = torch.tensor([0, 1, 2, 4])
    results = []
    with no_fallback():
        for model, device in ((on_cpu, "cpu"), (on_device, "neuron")):
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for _ in range(2):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x.to(device)), target.to(device))
                loss.backward()
                optimizer.step()
            results.append(loss.detach())
    # Two steps of sums in another order: a few times the tolerance of one operator.
    assert_same(results[1], results[0], scale=5)
    for (key, p), q in zip(on_cpu.named_parameters(), on_device.parameters(), strict=True):
        assert_same(q.grad, p.grad, strides=False, scale=20, where=key)
    for (key, p), q in zip(on_cpu.named_buffers(), on_device.buffers(), strict=True):
        assert_same(q, p, scale=5, where=key)
    on_cpu.eval()
    on_device.eval()
    with torch.no_grad(), no_fallback():
        assert_same(on_device(x.to("neuron")), on_cpu(x), scale=100)  # weights moved by 1e-3


def test_inference_mode() -> None:
    torch.manual_seed(0)
    model = LlamaLike().eval()
    x = torch.randint(0, 50, (2, 5))
    with torch.inference_mode():
        assert_same(copy.deepcopy(model).to("neuron")(x.to("neuron")), model(x))


def test_bfloat16_model() -> None:
    torch.manual_seed(0)
    model = BertLike().bfloat16().eval()
    x = torch.randint(1, 50, (2, 12))
    with torch.no_grad():
        assert_same(copy.deepcopy(model).to("neuron")(x.to("neuron")), model(x), scale=4)


def test_channels_last_training_step() -> None:
    torch.manual_seed(0)
    gradients = []
    model = ResNetLike()
    x = torch.randn(2, 3, 16, 16)
    for device in ("cpu", "neuron"):
        m = copy.deepcopy(model).to(device, memory_format=torch.channels_last)
        y = m(x.to(device).to(memory_format=torch.channels_last))
        y.square().sum().backward()
        gradients.append([p.grad for p in m.parameters()])
    assert_same(gradients[1], gradients[0], strides=False, scale=20)
