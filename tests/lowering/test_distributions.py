"""Rules of distributions.py: distributions against their exact laws, gradients against CPU."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy import stats
from tests.lowering.errors import check_error
from tests.lowering.harness import check, check_portable, make_case

from torch_neuronx.lowering import table
from torch_neuronx.lowering.checks import Checks
from torch_neuronx.lowering.philox import Stream
from torch_neuronx.lowering.program import Array

N = 40_000


@functools.cache
def compiled(name: str) -> tuple[Any, list[int]]:
    """The rule as a function of seed, offset and arrays; the increments of its traces, last one
    last."""
    rule = table.load_rules()[f"aten::{name}"]
    increments: list[int] = []

    def run(seed: Any, offset: Any, *arrays: Any) -> Any:
        rng = Stream(seed, offset)
        keywords: dict[str, Any] = {"rng": rng, "out": Array("float32", arrays[0].shape)}
        if "checks" in rule.wants:
            keywords["checks"] = Checks()
        result = rule.function(*arrays, **keywords)
        increments.append(rng.increment)
        return result

    return jax.jit(run, compiler_options={"xla_backend_optimization_level": 0}), increments


def draw(name: str, *args: Any, seed: int = 3, offset: int = 0) -> np.ndarray:
    """The rule's numbers; it advances the generator by four for each element."""
    function, increments = compiled(name)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a, jnp.float32) for a in args]
        value = np.asarray(function(jnp.uint64(seed), jnp.uint64(offset), *arrays))
    assert 4 * arrays[0].size in increments
    return value


def distance_fits(sample: np.ndarray, cdf: Any) -> None:
    """Kolmogorov-Smirnov: below what chance exceeds once in 10^6."""
    x = np.sort(sample.astype(np.float64))
    f = cdf(x)
    steps = np.arange(len(x) + 1) / len(x)
    distance = max((steps[1:] - f).max(), (f - steps[:-1]).max())
    assert distance < math.sqrt(math.log(2e6) / 2 / len(x)), distance


def counts_fit(sample: np.ndarray, law: Any) -> None:
    """Chi-squared over values expected at least ten times, p above 10^-6."""
    values = np.arange(int(sample.max()) + 2)
    expected = law.pmf(values) * sample.size
    seen = np.bincount(sample.astype(np.int64), minlength=values.size)
    often = expected >= 10
    expected = np.append(expected[often], sample.size - expected[often].sum())
    seen = np.append(seen[often], sample.size - seen[often].sum())
    if expected[-1] < 1e-3:  # nothing else can occur
        assert seen[-1] == 0
        expected, seen = expected[:-1], seen[:-1]
    statistic = ((seen - expected) ** 2 / expected).sum()
    assert stats.chi2.sf(statistic, max(expected.size - 1, 1)) > 1e-6, statistic


@pytest.mark.parametrize("alpha", [0.05, 0.7, 1.0, 300.0])
def test_gamma(alpha: float) -> None:
    sample = draw("_standard_gamma", np.full(N, alpha))
    if alpha < 0.1:  # a quarter of them is below float32's normal numbers
        sample, law = np.maximum(sample, 1e-20), stats.gamma(alpha)
        share = (sample <= 1e-20).mean()
        assert abs(share - law.cdf(1e-20)) < 5 * math.sqrt(0.25 / N)
        sample = sample[sample > 1e-20]
        low = law.cdf(1e-20)
        distance_fits(sample, lambda x: (law.cdf(x) - low) / (1 - low))
    else:
        distance_fits(sample, stats.gamma(alpha).cdf)


def test_dirichlet() -> None:
    concentration = np.array([0.5, 2.0, 3.5])
    sample = draw("_sample_dirichlet", np.broadcast_to(concentration, (N, 3)))
    np.testing.assert_allclose(sample.sum(-1), 1, rtol=1e-5)
    for i, alpha in enumerate(concentration):
        distance_fits(sample[:, i], stats.beta(alpha, concentration.sum() - alpha).cdf)
    # Concentrations whose gammas are below float32 still give one large share.
    small = draw("_sample_dirichlet", np.full((1000, 2), 1e-3))
    np.testing.assert_allclose(small.sum(-1), 1, rtol=1e-5)
    assert 0.4 < (small[:, 0] > 0.5).mean() < 0.6


@pytest.mark.parametrize("rate", [0.0, 0.3, 9.9, 10.1, 1000.0])
def test_poisson(rate: float) -> None:
    sample = draw("poisson", np.full(N, rate))
    counts_fit(sample, stats.poisson(rate))


def test_poisson_of_large_rates() -> None:
    sample = draw("poisson", np.full(N, 1e6))
    distance_fits((sample - 1e6) / 1e3 + 5e-4, stats.norm.cdf)
    special = draw("poisson", np.array([np.nan, 0.0, 1e9]))
    assert np.isnan(special[0]) and special[1] == 0 and abs(special[2] - 1e9) < 1e6


@pytest.mark.parametrize(
    ("count", "p"),
    [(5, 0.3), (40, 0.5), (40, 0.9), (1000, 0.02), (1000, 0.97), (9, 1.0)],
)
def test_binomial(count: int, p: float) -> None:
    sample = draw("binomial", np.full(N, count), np.full(N, p))
    counts_fit(sample, stats.binom(count, p))


def test_binomial_of_large_counts_and_special_values() -> None:
    sample = draw("binomial", np.full(N, 1e6), np.full(N, 0.3))
    distance_fits((sample - 3e5 + 0.5) / math.sqrt(2.1e5), stats.norm.cdf)
    special = draw("binomial", np.array([0.0, 5.0, 5.0, 5.0]), np.array([0.5, 0.0, np.nan, 1.0]))
    np.testing.assert_array_equal(special, [0, 0, np.nan, 5])


def test_elements_keep_their_numbers() -> None:
    """What one element draws does not depend on the others, nor on how long they take."""
    rates = np.linspace(0.1, 60, 64)
    together = draw("poisson", rates)
    for i in (0, 17, 63):
        alone = draw("poisson", rates[i : i + 1], offset=4 * i)
        assert alone[0] == together[i]


def test_negative_rates_are_refused() -> None:
    check_error("aten::poisson", torch.tensor([2.0, -1.0]))


def test_dtypes() -> None:
    check("aten::poisson", torch.full((3, 4), 2.0, dtype=torch.bfloat16))
    check("aten::poisson", torch.full((3, 4), 2.0, dtype=torch.float16))
    check("aten::_standard_gamma", torch.full((), 2.0, dtype=torch.float64))
    check("aten::binomial", torch.full((3, 4), 2.0), torch.full((4,), 0.5).expand(3, 4))


def test_gradient_of_gamma() -> None:
    alpha = torch.tensor([0.05, 0.5, 1.0, 3.0, 7.9, 8.1, 20.0, 300.0]).unsqueeze(1)
    ratio = torch.tensor([5e-3, 0.05, 0.5, 0.89, 0.95, 1.0, 1.05, 1.2, 3.0])
    x = (alpha * ratio).contiguous()
    # CPU computes in float64; saddle points cancel in float32.
    check("aten::_standard_gamma_grad", alpha.expand_as(x), x, rtol=3e-3, atol=1e-5)


def test_gradient_of_dirichlet() -> None:
    x = torch.tensor([0.01, 0.1, 0.3, 0.5, 0.72, 0.9, 0.99]).view(-1, 1, 1)
    alpha = torch.tensor([0.3, 1.5, 6.5, 40.0]).view(-1, 1)
    beta = torch.tensor([0.4, 3.0, 7.0, 50.0])
    shape = (7, 4, 4)
    args = [t.expand(shape).contiguous() for t in (x, alpha, alpha + beta)]
    check("aten::_dirichlet_grad", *args, rtol=1e-2, atol=1e-4)


def test_portable() -> None:
    x = torch.full((3,), 2.0)
    for name in ("_standard_gamma", "_sample_dirichlet", "poisson"):
        check_portable(make_case(f"aten::{name}", [x, None]))
    check_portable(make_case("aten::binomial", [x, x / 4, None]))
    check_portable(make_case("aten::_dirichlet_grad", [x / 8, x, x * 2]))
