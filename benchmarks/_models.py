"""The models that ``compile.py`` measures: small enough for two cores, in plain PyTorch.

``CASES[name]()`` gives a model and a function that makes a batch's inputs; the loss is the mean
square of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Case = Callable[[], tuple[nn.Module, Callable[[], tuple[Any, ...]]]]


class Block(nn.Module):
    """Pre-norm attention and MLP; causal or not, learned or rotary positions, shared key heads."""

    def __init__(
        self, width: int, heads: int, *, causal: bool, kv_heads: int = 0, rope: bool = False
    ):
        super().__init__()
        self.heads, self.kv_heads, self.causal, self.rope = heads, kv_heads or heads, causal, rope
        self.size = width // heads
        norm = nn.RMSNorm if rope else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * self.kv_heads * self.size)
        self.out = nn.Linear(width, width)
        self.gate = nn.Linear(width, 4 * width) if rope else None
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        rate = 10000 ** (-torch.arange(half, device=x.device) / half)
        angle = positions[:, None] * rate
        a, b = x.split(half, -1)
        turned = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
        return torch.cat(turned, -1).to(x.dtype)

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        b, t, width = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, t, self.heads, self.size).transpose(1, 2)
        kv = self.kv(h).view(b, t, 2, self.kv_heads, self.size).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]
        if self.rope:
            at = torch.arange(t, device=x.device) if positions is None else positions
            q, k = self.rotate(q, at), self.rotate(k, at)
        mask = None
        if cache is not None:
            k, v = (c.index_copy_(2, positions, n) for c, n in zip(cache, (k, v), strict=True))
            mask = torch.arange(k.shape[2], device=x.device) <= positions[:, None]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None,
            enable_gqa=self.kv_heads != self.heads,
        )  # fmt: skip
        x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
        h = self.norm2(x)
        up = self.up(h)
        return x + self.down(F.silu(self.gate(h)) * up if self.gate is not None else F.gelu(up))


class Transformer(nn.Module):
    """Tokens to logits."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, **block: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = None if block.get("rope") else nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, heads, **block) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ViT(nn.Module):
    """Patches of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 192, 8, 8)
        self.blocks = nn.ModuleList(Block(192, 3, causal=False) for _ in range(6))
        self.head = nn.Linear(192, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Bottleneck(nn.Module):
    """ResNet-50's block."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = (
            nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or inside != out
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    inside = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(inside, width, stride if i == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 100))


class UNet(nn.Module):
    """One denoising step: down, middle with attention, up, with skips and a time embedding."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.time = nn.Linear(1, 2 * width)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.attention = Block(2 * width, 4, causal=False)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.end = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a = F.silu(self.start(x))
        h = self.down(a) + self.time(t[:, None])[:, :, None, None]
        h = self.middle(F.silu(self.norm(h)))
        b, c, height, width = h.shape
        h = self.attention(h.flatten(2).transpose(1, 2)).transpose(1, 2).view(b, c, height, width)
        return self.end(torch.cat([F.silu(self.up(h)), a], 1))


class MixtureOfExperts(nn.Module):
    """Two of eight experts for each token; every expert computes every token, weighted."""

    def __init__(self, width: int = 128, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        share = torch.zeros(*x.shape[:-1], self.up.shape[0], device=x.device, dtype=x.dtype)
        share = share.scatter(-1, chosen, weights)
        h = F.gelu(torch.einsum("td,edh->eth", x, self.up))
        return torch.einsum("eth,ehd,te->td", h, self.down, share)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def _tokens(batch: int, length: int, vocabulary: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randint(vocabulary, (batch, length)),)


def _images(batch: int, size: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randn(batch, 3, size, size),)


CASES: dict[str, Case] = {
    "gpt": lambda: (Transformer(4, 512, 8, 256, causal=True), _tokens(4, 256, 256)),
    "llama": lambda: (
        Transformer(4, 256, 8, 512, causal=True, kv_heads=2, rope=True),
        _tokens(2, 128, 512),
    ),
    "bert": lambda: (Transformer(4, 256, 4, 512, causal=False), _tokens(4, 128, 512)),
    "vit": lambda: (ViT(), _images(4, 64)),
    "resnet50": lambda: (resnet50(), _images(2, 64)),
    "unet": lambda: (UNet(), lambda: (torch.randn(2, 3, 32, 32), torch.rand(2))),
    "moe": lambda: (MixtureOfExperts(), lambda: (torch.randn(256, 128),)),
    "lstm": lambda: (Recurrent(), lambda: (torch.randn(8, 32, 64),)),
}
