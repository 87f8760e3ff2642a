"""Rules of random.py: distributions, ranges, repeatability, and eager equal to compiled."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tests.lowering.errors import check_error
from tests.lowering.harness import check_both

from torch_neuronx.lowering import table
from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.dtypes import cast, np_dtype
from torch_neuronx.lowering.philox import Stream
from torch_neuronx.lowering.program import Array

N = 200_000


def draw(
    name: str,
    *args: Any,
    shape: tuple[int, ...] = (N,),
    dtype: str = "float32",
    seed: int = 3,
    offset: int = 0,
) -> Any:
    """The rule's results as the driver casts them. Tensor arguments are given as arrays."""
    rule = table.load_rules()[f"aten::{name}"]
    with jax.enable_x64(True):
        rng = Stream(jnp.uint64(seed), jnp.uint64(offset))
        keywords: dict[str, Any] = {"rng": rng}
        if "checks" in rule.wants:
            keywords["checks"] = Checks()
        if "out" in rule.wants:
            keywords["out"] = Array(dtype, shape)
        result = rule.function(*args, **keywords)
        if isinstance(result, tuple):
            return tuple(np.asarray(r) for r in result)
        return np.asarray(cast(result, dtype))


SELF = np.zeros(N, np.float32)


def fits(sample: np.ndarray, cdf: Any) -> None:
    """Kolmogorov-Smirnov: the distance stays below what chance exceeds once in 10^6."""
    x = np.sort(sample.astype(np.float64))
    f = cdf(x)
    steps = np.arange(len(x) + 1) / len(x)
    distance = max((steps[1:] - f).max(), (f - steps[:-1]).max())
    assert distance < math.sqrt(math.log(2e6) / 2 / len(x)), distance


def share(hits: np.ndarray, p: float) -> None:
    """A frequency within five standard deviations of ``p``."""
    assert abs(hits.mean() - p) <= 5 * math.sqrt(p * (1 - p) / hits.size)


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda a: 0.5 * (1 + math.erf(a / math.sqrt(2))))(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_continuous_distributions(dtype):
    fits(draw("uniform", SELF, -2.0, 3.0, dtype=dtype), lambda x: (x + 2) / 5)
    fits(draw("normal_functional", SELF, 1.0, 2.0, dtype=dtype), lambda x: normal_cdf((x - 1) / 2))
    fits(draw("exponential", SELF, 2.0, dtype=dtype), lambda x: 1 - np.exp(-2 * x))
    fits(
        draw("cauchy", SELF, 1.0, 2.0, dtype=dtype),
        lambda x: np.arctan((x - 1) / 2) / math.pi + 0.5,
    )
    fits(
        draw("log_normal", SELF, 0.5, 0.25, dtype=dtype),
        lambda x: normal_cdf((np.log(x) - 0.5) / 0.25),
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform_stays_below_its_upper_bound(dtype):
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (3.0, 3.1)):
        x = draw("uniform", SELF, low, high, dtype=dtype)
        assert x.dtype == np_dtype(dtype)
        assert (x >= np.asarray(low, x.dtype)).all() and (x < np.asarray(high, x.dtype)).all()
    assert (draw("uniform", SELF, 2.0, 2.0) == 2).all()


def test_exponential_is_positive():
    assert (draw("exponential", SELF, 1.0) > 0).all()


def test_geometric():
    x = draw("geometric", SELF, 0.3, dtype="int64")
    assert x.min() == 1
    for k in range(1, 5):
        share(x == k, 0.3 * 0.7 ** (k - 1))
    assert (draw("geometric", SELF, 1.0) == 1).all()


def test_bernoulli():
    share(draw("bernoulli.p", SELF, 0.3) == 1, 0.3)
    probabilities = np.where(np.arange(N) % 2, 0.9, 0.2).astype(np.float32)
    for sample in (draw("bernoulli", probabilities), draw("bernoulli.Tensor", SELF, probabilities)):
        share(sample[1::2] == 1, 0.9)
        share(sample[::2] == 1, 0.2)
    assert not draw("bernoulli.p", SELF, 0.0).any() and draw("bernoulli.p", SELF, 1.0).all()


def test_dropout():
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    rule = table.load_rules()["aten::native_dropout"].function
    spec = (Array("float32", (N,)), Array("bool", (N,)))
    with jax.enable_x64(True):
        rng = Stream(jnp.uint64(1), jnp.uint64(0))
        y, mask = (np.asarray(a) for a in rule(x, 0.25, True, out=spec, rng=rng))
        assert rng.increment == N
        share(mask, 0.75)
        np.testing.assert_allclose(y, np.where(mask, x / np.float32(0.75), 0), rtol=1e-6)
        y, mask = rule(x, 1.0, None, out=spec, rng=rng)
        assert not np.asarray(y).any() and not np.asarray(mask).any()
        y, mask = rule(x, 0.5, False, out=spec, rng=rng)
        assert (np.asarray(y) == x).all() and np.asarray(mask).all()
    mask = torch.rand(5) > 0.5
    check_both("aten::native_dropout_backward", torch.randn(5), mask, 1 / 0.75)


def test_integers():
    x = draw("random.from", SELF, -3, 4, dtype="int32")
    for k in range(-3, 4):
        share(x == k, 1 / 7)
    assert x.min() == -3 and x.max() == 3
    wide = draw("random.from", SELF, -(2**63), None, dtype="int64")
    fits(wide.astype(np.float64), lambda v: (v + 2.0**63) / 2.0**64)
    assert draw("random.to", SELF, 2**40, dtype="int64").max() > 2**39
    for dtype, top in (("int8", 127), ("uint8", 255), ("bool", 1), ("bfloat16", 256)):
        x = draw("random", SELF, dtype=dtype).astype(np.float64)
        assert x.min() == 0 and x.max() == top
    assert draw("random", SELF, dtype="int64").min() >= 0
    assert draw("random", SELF, dtype="float32").max() <= 2**24


def test_bounds_as_operands_give_the_same_integers():
    with jax.enable_x64(True):
        operands = jnp.int64(-5), jnp.int64(1000)
    a = draw("random.from", SELF, *operands, dtype="int64")
    np.testing.assert_array_equal(a, draw("random.from", SELF, -5, 1000, dtype="int64"))


SIZE = (N,)
PAIRS = [  # what eager runs on an empty tensor, and the node of a compiled graph
    (("uniform", SELF, 0.0, 1.0), ("rand", SIZE), "float32"),
    (("uniform", SELF, 0.0, 1.0), ("rand_like", SELF), "bfloat16"),
    (("normal_functional", SELF, 0.0, 1.0), ("randn", SIZE), "float32"),
    (("normal_functional", SELF, 0.0, 1.0), ("randn_like", SELF), "float16"),
    (("normal_functional", SELF, 2.0, 3.0), ("normal.float_float", 2.0, 3.0, SIZE), "float32"),
    (("random.from", SELF, 0, 10), ("randint", 10, SIZE), "int64"),
    (("random.from", SELF, 3, 10), ("randint.low", 3, 10, SIZE), "int64"),
    (("random.to", SELF, 10), ("randint_like", SELF, 10), "float32"),
    (("random.from", SELF, 3, 10), ("randint_like.low_dtype", SELF, 3, 10), "int32"),
]


@pytest.mark.parametrize(("eager", "graph", "dtype"), PAIRS)
def test_eager_equals_compiled(eager, graph, dtype):
    a, b = draw(*eager, dtype=dtype), draw(*graph, dtype=dtype)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, draw(*eager, dtype=dtype, seed=4))
    assert not np.array_equal(a, draw(*eager, dtype=dtype, offset=4))


def test_complex_normal():
    z = draw("randn", SIZE, dtype="complex64")
    assert abs((np.abs(z) ** 2).mean() - 1) < 0.02
    fits(z.real * math.sqrt(2), normal_cdf)
    fits(z.imag * math.sqrt(2), normal_cdf)


def test_normal_of_tensors():
    mean = np.linspace(-50, 50, N).astype(np.float32)
    fits(draw("normal.Tensor_float", mean, 2.0) / 2 - mean / 2, normal_cdf)
    fits(draw("normal.Tensor_Tensor", mean, SELF + 3) / 3 - mean / 3, normal_cdf)
    check_error("aten::normal.float_Tensor", 0.0, torch.tensor([1.0, -1.0]))


def test_randperm():
    for n in (0, 1, 5, 1000):
        x = draw("randperm", n, dtype="int64", shape=(n,))
        np.testing.assert_array_equal(np.sort(x), np.arange(n))
    first = [int(draw("randperm", 3, dtype="int64", shape=(3,), seed=s)[0]) for s in range(300)]
    for k in range(3):
        share(np.array(first) == k, 1 / 3)


def test_multinomial_with_replacement():
    p = np.array([0.0, 1.0, 3.0, 0.0, 4.0, 0.0], np.float32)
    x = draw("multinomial", p, N, True, dtype="int64")
    for k in range(6):
        share(x == k, float(p[k]) / 8)


def test_multinomial_without_replacement():
    p = np.tile(np.array([1.0, 0.0, 3.0, 4.0], np.float32), (20_000, 1))
    x = draw("multinomial", p, 2, False, dtype="int64", shape=(20_000, 2))
    assert (x[:, 0] != x[:, 1]).all() and not (x == 1).any()
    for k in (0, 2, 3):
        share(x[:, 0] == k, float(p[0, k]) / 8)
    share(x[x[:, 0] == 3][:, 1] == 2, 3 / 4)


def test_errors():
    check_error("aten::multinomial", torch.tensor([1.0, -1.0]), 1)
    check_error("aten::multinomial", torch.zeros(3), 1)
    check_error("aten::bernoulli", torch.tensor([0.5, 1.5]))
    check_error("aten::bernoulli.Tensor", torch.zeros(2), torch.tensor([0.5, -0.5]))
