"""Sparse COO tensors on the device: their parts, arithmetic and gradients are CPU's, natively."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.support import no_fallback

import torch_neuronx

Build = Callable[[str], torch.Tensor]

_generator = torch.Generator().manual_seed(3)


def _random(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=_generator)


# Two entries at one place, and out of order.
INDICES = torch.tensor([[0, 1, 1, 0, 2], [2, 0, 2, 2, 1]])
VALUES = _random(5)
ROWS = _random(5, 2)
DENSE = _random(3, 4)
RIGHT = _random(4, 5)
SUM = _random(3, 5)


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """Nothing of what a test does may run on the CPU."""
    with torch.sparse.check_sparse_tensor_invariants(False), no_fallback():
        yield


def matrix(device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(3, 4), uncoalesced."""
    values = VALUES.to(dtype) if dtype.is_floating_point else torch.arange(5).to(dtype)
    return torch.sparse_coo_tensor(INDICES.to(device), values.to(device), (3, 4))


def hybrid(device: str) -> torch.Tensor:
    """(3, 4, 2) with two sparse dimensions."""
    return torch.sparse_coo_tensor(INDICES.to(device), ROWS.to(device), (3, 4, 2))


def other(device: str) -> torch.Tensor:
    """(3, 4), coalesced, with entries that `matrix` has and others."""
    return DENSE.clamp(min=0).to(device).to_sparse()


def host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().to_dense() if tensor.layout != torch.strided else tensor.cpu()


def check(build: Build) -> None:
    """``build`` makes the same tensor on both devices."""
    expected, got = build("cpu"), build("neuron")
    assert got.device.type == "neuron"
    assert (got.layout, got.dtype, got.shape) == (expected.layout, expected.dtype, expected.shape)
    if got.is_sparse:
        assert got.sparse_dim() == expected.sparse_dim()
        assert got._indices().device == got._values().device == got.device
    torch.testing.assert_close(host(got), host(expected), equal_nan=True)


def on(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return tensor.to(device)


def test_parts() -> None:
    s = matrix("neuron")
    assert (s._nnz(), s.sparse_dim(), s.dense_dim(), s.is_coalesced()) == (5, 2, 0, False)
    assert torch.equal(s._indices().cpu(), INDICES)
    assert torch.equal(s._values().cpu(), VALUES)
    with pytest.raises(RuntimeError, match="uncoalesced"):
        s.indices()
    assert torch.equal(s.coalesce().indices().cpu(), matrix("cpu").coalesce().indices())


BUILDS: dict[str, Build] = {
    "given": matrix,
    "hybrid": hybrid,
    "size inferred": lambda d: torch.sparse_coo_tensor(on(INDICES, d), on(VALUES, d)),
    "from the host": lambda d: torch.sparse_coo_tensor(INDICES, VALUES, (3, 4), device=d),
    "from lists": lambda d: torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], device=d),
    "empty": lambda d: torch.sparse_coo_tensor((3, 4), device=d),
    "no entries": lambda d: torch.zeros(3, 4, device=d).to_sparse(),
    "zeros_like": lambda d: torch.zeros_like(matrix(d)),
    "to_sparse": other,
    "to_sparse of rows": lambda d: on(DENSE.clamp(min=0), d).to_sparse(1),
    "to_sparse of a number": lambda d: on(torch.tensor(3.0), d).to_sparse(),
    "there and back": lambda d: matrix(d).cpu().to(d),
    "clone": lambda d: matrix(d).clone(),
    "deepcopy": lambda d: copy.deepcopy(matrix(d)),
    "float64": lambda d: matrix(d).double(),
    "copy_": lambda d: torch.sparse_coo_tensor((3, 4), device=d).copy_(matrix(d)),
    "to_dense": lambda d: matrix(d).to_dense(),
    "coalesce": lambda d: matrix(d).coalesce(),
    "coalesce rows": lambda d: hybrid(d).coalesce(),
    "transposed": lambda d: matrix(d).t(),
    "permuted": lambda d: hybrid(d).permute(1, 0, 2),
    "cat": lambda d: torch.cat([matrix(d), other(d)]),
    "stack": lambda d: torch.stack([matrix(d), other(d)]),
    "unsqueeze": lambda d: matrix(d).unsqueeze(0),
    "select": lambda d: matrix(d)[1],
    "narrow": lambda d: matrix(d).narrow_copy(0, 1, 2),
    "index_select": lambda d: matrix(d).index_select(0, on(torch.tensor([2, 0, 0]), d)),
    "index_select of columns": lambda d: matrix(d).index_select(1, on(torch.tensor([2, 2]), d)),
    "index_select of values": lambda d: hybrid(d).index_select(2, on(torch.tensor([1, 0, 1]), d)),
    "broadcast": lambda d: torch._sparse_broadcast_to(matrix(d).narrow_copy(0, 0, 1), (3, 4)),
}


@pytest.mark.parametrize("name", BUILDS)
def test_build(name: str) -> None:
    check(BUILDS[name])


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64], ids=str
)
def test_coalesce_of_dtypes(dtype: torch.dtype) -> None:
    check(lambda d: matrix(d, dtype).coalesce())
    assert matrix("neuron", dtype).coalesce()._nnz() == 4


ARITHMETIC: dict[str, Build] = {
    "dense + sparse": lambda d: on(DENSE, d) + matrix(d),
    "dense += sparse": lambda d: on(DENSE, d).clone().add_(matrix(d), alpha=-0.1),
    "dense + rows": lambda d: torch.ones(3, 4, 2, device=d) + hybrid(d),
    "promotion": lambda d: on(DENSE.double(), d) + matrix(d),
    "sum": lambda d: matrix(d) + other(d),
    "sum with nothing": lambda d: torch.sparse_coo_tensor((3, 4), device=d) + matrix(d),
    "difference": lambda d: matrix(d) - 2 * other(d),
    "times a number": lambda d: matrix(d) * 3.0,
    "times a 0-d tensor": lambda d: matrix(d) * on(torch.tensor(2.0), d),
    "divided": lambda d: matrix(d) / 3.0,
    "times dense": lambda d: matrix(d) * on(DENSE, d),
    "times sparse": lambda d: matrix(d) * other(d),
    "times itself": lambda d: hybrid(d).coalesce() * hybrid(d).coalesce(),
    "mul_": lambda d: matrix(d).coalesce().mul_(2),
    "neg": lambda d: -matrix(d),
    "abs": lambda d: matrix(d).abs(),
    "sqrt": lambda d: matrix(d).pow(2).sqrt(),
    "tanh": lambda d: torch.tanh(matrix(d)),
    "relu": lambda d: torch.relu(matrix(d)),
    "isnan": lambda d: torch.isnan(matrix(d)),
    "zero_": lambda d: matrix(d).zero_(),
    "norm": lambda d: matrix(d).norm(),
    "sum of all": lambda d: torch.sparse.sum(matrix(d)),
    "sum of rows": lambda d: torch.sparse.sum(matrix(d), 0),
    "sum of values": lambda d: torch.sparse.sum(hybrid(d), 2),
    "mask": lambda d: on(DENSE, d).sparse_mask(matrix(d)),
    "mask of sparse": lambda d: other(d).sparse_mask(matrix(d)),
    "projection": lambda d: matrix(d)._sparse_mask_projection(other(d)),
    "accumulated": lambda d: other(d)._sparse_mask_projection(matrix(d), True),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    check(ARITHMETIC[name])


def _batches(device: str) -> torch.Tensor:
    return on(torch.stack([DENSE, -DENSE]).clamp(min=0), device).to_sparse()


PRODUCTS: dict[str, Build] = {
    "sparse.mm": lambda d: torch.sparse.mm(matrix(d), on(RIGHT, d)),
    "mm": lambda d: torch.mm(matrix(d), on(RIGHT, d)),
    "matmul": lambda d: matrix(d) @ on(RIGHT, d),
    "mm into": lambda d: torch.mm(matrix(d), on(RIGHT, d), out=torch.empty(0, device=d)),
    "mv": lambda d: matrix(d) @ on(RIGHT[:, 0], d),
    "dense times sparse": lambda d: torch.mm(on(SUM.t(), d), matrix(d)),
    "sparse times sparse": lambda d: torch.sparse.mm(matrix(d), other(d).t()),
    "no common entry": lambda d: torch.sparse.mm(matrix(d), torch.zeros(4, 2).to(d).to_sparse()),
    "bmm": lambda d: torch.bmm(_batches(d), on(torch.stack([RIGHT, RIGHT * 2]), d)),
    "sparse.addmm": lambda d: torch.sparse.addmm(
        on(SUM, d), matrix(d), on(RIGHT, d), beta=0.5, alpha=2
    ),
    "addmm": lambda d: torch.addmm(on(SUM, d), matrix(d), on(RIGHT, d)),
    "addmm_": lambda d: on(SUM, d).clone().addmm_(matrix(d), on(RIGHT, d)),
    "beta 0 ignores nan": lambda d: torch.addmm(
        on(torch.full((3, 5), torch.nan), d), matrix(d), on(RIGHT, d), beta=0
    ),
    "hspmm": lambda d: torch.hspmm(matrix(d), on(RIGHT, d)),
    "sspaddmm": lambda d: torch.sspaddmm(
        torch.sparse_coo_tensor((3, 5), device=d), matrix(d).coalesce(), on(RIGHT, d)
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str) -> None:
    check(PRODUCTS[name])


GRADIENTS: dict[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "to_dense": lambda s, d: s.to_dense(),
    "coalesce": lambda s, d: s.coalesce(),
    "sum": lambda s, d: torch.sparse.sum(s),
    "sum of rows": lambda s, d: torch.sparse.sum(s, 0),
    "mm": lambda s, d: torch.sparse.mm(s, on(RIGHT, d)),
    "mm of sparse": lambda s, d: torch.sparse.mm(s, other(d).t()),
    "times dense": lambda s, d: s * on(DENSE, d),
    "times sparse": lambda s, d: s * other(d),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str) -> None:
    def build(device: str) -> torch.Tensor:
        s = matrix(device).coalesce().requires_grad_()
        result = GRADIENTS[name](s, device)
        (result.to_dense() if result.is_sparse else result).pow(2).sum().backward()
        assert s.grad is not None
        return s.grad

    check(build)


def test_gradient_of_values_and_of_the_dense_side() -> None:
    def build(device: str) -> torch.Tensor:
        values = VALUES.to(device, copy=True).requires_grad_()
        right = RIGHT.to(device, copy=True).requires_grad_()
        s = torch.sparse_coo_tensor(INDICES.to(device), values, (3, 4))
        (s.to_dense().pow(2).sum() + torch.sparse.mm(s.detach(), right).pow(2).sum()).backward()
        assert values.grad is not None and right.grad is not None
        return torch.cat([values.grad, right.grad.flatten()])

    check(build)


def test_printing_names_the_device() -> None:
    text = repr(matrix("neuron"))
    assert "device='neuron:0'" in text and "nnz=5" in text and "size=(3, 4)" in text


def test_saving() -> None:
    file = io.BytesIO()
    torch.save(matrix("neuron"), file)
    file.seek(0)
    check(lambda d: matrix(d) if d == "cpu" else torch.load(file))


def test_an_entry_outside_is_an_error_at_the_next_synchronisation() -> None:
    bad = torch.tensor([[0, 9], [0, 0]])
    s = torch.sparse_coo_tensor(bad.to("neuron"), torch.ones(2, device="neuron"), (3, 4))
    with pytest.raises(IndexError):
        s.to_dense().cpu()


def test_refusals() -> None:
    s = matrix("neuron")
    dense = DENSE.to("neuron")
    with pytest.raises(RuntimeError, match="Use add\\(dense, sparse\\)"):
        s.add(dense)
    with pytest.raises(RuntimeError, match="same size"):
        dense.add(torch.sparse_coo_tensor((4, 3), device="neuron"))
    with pytest.raises(RuntimeError, match="Expected dim 0 size 4, got 3"):
        torch.mm(s, dense)
    with pytest.raises(RuntimeError, match="sspaddmm"):
        torch.sspaddmm(dense, dense, dense)


def test_what_has_no_kernel_runs_on_the_cpu_and_is_counted() -> None:
    check(lambda d: torch.sparse.softmax(matrix(d), 1))
    assert torch_neuronx.get_fallback_ops() == ["aten::_sparse_softmax"]
    torch_neuronx.clear_op_tracking()


# --- embeddings --------------------------------------------------------------------------------

WEIGHT = _random(12, 4)
TOKENS = torch.tensor([[1, 3, 3, 0], [11, 1, 0, 0]])
OPTIMISERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sparse adam": lambda p: torch.optim.SparseAdam(p, lr=0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


class Bag(torch.nn.Module):
    """Bags of tokens through an EmbeddingBag, the last bag empty."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(12, 4, mode=mode, sparse=True, _weight=WEIGHT.clone())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        offsets = torch.tensor([0, 3, 8], device=tokens.device)
        result: torch.Tensor = self.bag(tokens.reshape(-1), offsets)
        return result


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "embedding": lambda: torch.nn.Embedding(12, 4, sparse=True, _weight=WEIGHT.clone()),
    "padding": lambda: torch.nn.Embedding(12, 4, 0, sparse=True, _weight=WEIGHT.clone()),
    "renormalised": lambda: torch.nn.Embedding(
        12, 4, max_norm=1.0, sparse=True, _weight=WEIGHT.clone()
    ),
    "bag of sums": lambda: Bag("sum"),
    "bag of means": lambda: Bag("mean"),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_with_sparse_gradients(model: str, optimiser: str) -> None:
    def train(device: str) -> tuple[list[torch.Tensor], torch.Tensor]:
        module = MODELS[model]().to(device)
        (weight,) = module.parameters()
        steps = OPTIMISERS[optimiser]([weight])
        tokens, losses = TOKENS.to(device), []
        for _ in range(3):
            steps.zero_grad()
            loss = (module(tokens).sin() + weight.detach().mean()).pow(2).sum()
            loss.backward()
            assert weight.grad is not None and weight.grad.is_sparse
            steps.step()
            losses.append(loss.detach().cpu())
        return losses, weight.detach().cpu()

    expected, got = train("cpu"), train("neuron")
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_gradients_add_up_over_backwards() -> None:
    def build(device: str) -> torch.Tensor:
        module = torch.nn.Embedding(12, 4, sparse=True, _weight=WEIGHT.clone()).to(device)
        for _ in range(3):
            module(TOKENS.to(device)).pow(2).sum().backward()
        assert module.weight.grad is not None
        return module.weight.grad

    check(build)
