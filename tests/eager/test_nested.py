"""Jagged nested tensors on the device: layers, attention, padding and gradients are CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.support import no_fallback

LENGTHS = (3, 5, 1)
_generator = torch.Generator().manual_seed(5)
ROWS = [torch.randn(n, 8, generator=_generator) for n in LENGTHS]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with no_fallback():
        yield


def nested(device: str, *, grad: bool = False) -> torch.Tensor:
    """Three sequences of 8 features."""
    rows = [r.to(device) for r in ROWS]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, device=device, requires_grad=grad)


def padded(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(tensor, 0.0) if tensor.is_nested else tensor


def check(function: Callable[[torch.Tensor], torch.Tensor], scale: float = 1.0) -> None:
    """Same values and the same gradient of the rows."""
    results = {}
    for device in ("cpu", "neuron"):
        x = nested(device, grad=True)
        y = padded(function(x))
        assert y.device.type == device
        y.sin().sum().backward()
        assert x.grad is not None
        results[device] = (y.detach().cpu(), x.grad.values().cpu())
    torch.testing.assert_close(
        results["neuron"], results["cpu"], rtol=2e-5 * scale, atol=2e-5 * scale
    )


def test_construction_and_parts() -> None:
    x = nested("neuron")
    assert x.device.type == "neuron" and x.size(0) == 3 and x.size(2) == 8
    assert torch.equal(x.offsets().cpu(), torch.tensor([0, 3, 8, 9]))
    assert torch.equal(x.values().cpu(), torch.cat(ROWS))
    for part, row in zip(x.unbind(), ROWS, strict=True):
        assert part.device.type == "neuron"
        assert torch.equal(part.cpu(), row)
    assert "neuron" in repr(x)


def test_there_and_back() -> None:
    x = nested("cpu").to("neuron")
    assert x.device.type == "neuron"
    assert torch.equal(x.cpu().values(), torch.cat(ROWS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_padding(dtype: torch.dtype) -> None:
    x = nested("cpu").to(dtype)
    want = torch.nested.to_padded_tensor(x, 7.0)
    got = torch.nested.to_padded_tensor(x.to("neuron"), 7.0)
    assert torch.equal(got.cpu(), want)


def test_padding_to_a_size_cuts_and_fills() -> None:
    for size in ((3, 2, 8), (3, 6, 8)):
        want = torch.nested.to_padded_tensor(nested("cpu"), -1.0, size)
        got = torch.nested.to_padded_tensor(nested("neuron"), -1.0, size)
        assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("total", [9, None])
def test_jagged_from_padded(total: int | None) -> None:
    dense = torch.randn(3, 5, 8)
    offsets = [torch.tensor([0, 3, 8, 9])]
    op = torch.ops.aten._padded_dense_to_jagged_forward
    got = op(dense.to("neuron"), [o.to("neuron") for o in offsets], total)
    assert torch.equal(got.cpu(), op(dense, offsets, total))


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": lambda: torch.nn.Linear(8, 6),
    "linear without bias": lambda: torch.nn.Linear(8, 6, bias=False),
    "layer norm": lambda: torch.nn.LayerNorm(8),
    "perceptron": lambda: torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    state = model.state_dict()
    grads = {}

    def run(x: torch.Tensor) -> torch.Tensor:
        module = MODELS[name]()
        module.load_state_dict(state)
        module.to(x.device)
        y = module(x)
        (module(x.detach()).values() ** 2).sum().backward()
        grads[x.device.type] = [
            p.grad.to("cpu", copy=True) for p in module.parameters() if p.grad is not None
        ]
        return y

    check(run)
    assert len(grads["cpu"]) == len(list(model.parameters()))
    torch.testing.assert_close(grads["neuron"], grads["cpu"], rtol=1e-4, atol=1e-4)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda x: F.relu(x),
    "sum with itself": lambda x: x + x * 2,
    "softmax of features": lambda x: F.softmax(x, dim=-1),
    "softmax of rows": lambda x: F.softmax(x, dim=1),
    "unflatten": lambda x: x.unflatten(-1, [2, 4]).transpose(1, 2).transpose(1, 2).flatten(-2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    check(FUNCTIONS[name])


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("dim", [1, -1], ids=["rows", "features"])
def test_reduction(name: str, dim: int) -> None:
    """Of rows or features; PyTorch has no gradient for these."""
    want, got = (padded(getattr(nested(d), name)(dim=dim)) for d in ("cpu", "neuron"))
    torch.testing.assert_close(got.cpu(), want)


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, [2, 4]).transpose(1, 2)


def test_attention_over_jagged_rows() -> None:
    check(lambda x: F.scaled_dot_product_attention(_heads(x), _heads(x * 2), _heads(x)).transpose(
        1, 2
    ).flatten(-2))  # fmt: skip


def test_attention_over_padded_rows() -> None:
    """Padded by hand with a mask of the true positions, as models do that know no jagged layout."""

    def run(x: torch.Tensor) -> torch.Tensor:
        dense = torch.nested.to_padded_tensor(x, 0.0)
        lengths = x.offsets().diff()
        mask = torch.arange(dense.size(1), device=dense.device) < lengths[:, None]
        q = dense.unflatten(-1, [2, 4]).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, attn_mask=mask[:, None, None, :])
        return y.transpose(1, 2).flatten(-2) * mask[:, :, None]

    check(run)


# --- the strided layout ------------------------------------------------------------------------


def strided(device: str) -> torch.Tensor:
    return torch.nested.as_nested_tensor([r.to(device) for r in ROWS])


STRIDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "linear": lambda x: F.linear(x, torch.ones(6, 8, device=x.device) / 8),
    "layer norm": lambda x: F.layer_norm(x, (8,), *torch.ones(2, 8, device=x.device)),
    "gelu": lambda x: F.gelu(x + x),
    "softmax": lambda x: F.softmax(x, -1),
    "product of each": lambda x: torch.matmul(x, x.transpose(1, 2)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", STRIDED)
def test_strided_layout(name: str) -> None:
    want, got = STRIDED[name](strided("cpu")), STRIDED[name](strided("neuron"))
    for g, w in zip(got.unbind(), want.unbind(), strict=True):
        assert g.device.type == "neuron"
        torch.testing.assert_close(g.cpu(), w, rtol=2e-5, atol=2e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_gradients_through_the_strided_layout() -> None:
    results = []
    for device in ("cpu", "neuron"):
        rows = [r.to(device, copy=True).requires_grad_() for r in ROWS]
        weight = (torch.arange(8.0) / 8).to(device).requires_grad_()
        x = torch.nested.as_nested_tensor(rows)
        y = F.layer_norm(x, (8,), weight, weight + 1)
        y = F.gelu(F.linear(y, torch.ones(3, 8, device=device) / 8))
        torch.nested.to_padded_tensor(y, 0.0).pow(2).sum().backward()
        results.append([t.grad for t in [*rows, weight]])
    for got, want in zip(results[1], results[0], strict=True):
        assert got is not None and want is not None
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_encoder_with_a_padding_mask_in_evaluation(norm_first: bool) -> None:
    """torch.nn.TransformerEncoder makes a nested tensor of it by itself."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x = torch.nested.to_padded_tensor(nested("cpu"), 0.0)
    padding = torch.arange(5) >= torch.tensor(LENGTHS)[:, None]
    want = model(x, src_key_padding_mask=padding)
    got = model.to("neuron")(x.to("neuron"), src_key_padding_mask=padding.to("neuron"))
    live = ~padding
    torch.testing.assert_close(got.cpu()[live], want[live], rtol=2e-5, atol=2e-5)
