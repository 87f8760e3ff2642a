"""Operators on the device against CPU: a sample of ``op_db``, in every form they have.

Breadth over all of OpInfo is another matter; here each kind of operator goes through the
dispatcher: forward, backward, non-contiguous, in-place and ``out=``, natively.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from support import assert_same, no_fallback, to_device

POINTWISE = """abs add atan2 bitwise_and bitwise_not ceil clamp clamp_min cos div.no_rounding_mode
    div.floor_rounding eq erf exp floor_divide fmod ge isnan lerp log log1p logical_and logical_or
    lt maximum minimum mul neg pow reciprocal remainder rsqrt sigmoid sign sin sqrt square sub tanh
    where"""
REDUCTIONS = """all amax amin any argmax count_nonzero cumsum cumprod logsumexp
    max.reduction_with_dim mean prod std sum var sort topk"""
PRODUCTS = "addmm baddbmm bmm matmul mm mv dot"
SHAPES = """cat expand flip gather index_add index_copy index_select masked_fill narrow permute
    repeat roll scatter scatter_add select split stack take_along_dim tril triu unfold view
    nn.functional.pad.constant"""
NETWORKS = """nn.functional.conv1d nn.functional.conv2d nn.functional.max_pool2d
    nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d nn.functional.batch_norm
    nn.functional.layer_norm nn.functional.group_norm nn.functional.embedding
    nn.functional.linear nn.functional.gelu nn.functional.relu nn.functional.silu
    nn.functional.softplus nn.functional.leaky_relu nn.functional.cross_entropy
    nn.functional.mse_loss nn.functional.nll_loss nn.functional.binary_cross_entropy_with_logits
    nn.functional.smooth_l1_loss nn.functional.scaled_dot_product_attention softmax log_softmax"""
NAMES = " ".join((POINTWISE, REDUCTIONS, PRODUCTS, SHAPES, NETWORKS)).split()

# Every third operator also on other dtypes.
MORE_DTYPES = (torch.int64, torch.bool, torch.bfloat16)

# Results that need a wider tolerance than the dtype's, with the reason.
SCALES: dict[str, float] = {}


def _full_name(op: Any) -> str:
    return op.name if not op.variant_test_name else f"{op.name}.{op.variant_test_name}"


OPS = {}
for _op in op_db:
    OPS.setdefault(_full_name(_op), _op)


@dataclasses.dataclass(frozen=True)
class Case:
    """One operator, dtype and form of the call."""

    name: str
    dtype: torch.dtype
    form: str

    def __str__(self) -> str:
        return f"{self.name}-{str(self.dtype).removeprefix('torch.')}-{self.form}"


def _cases() -> list[Case]:
    cases = []
    for i, name in enumerate(NAMES):
        op = OPS[name]
        supported = op.supported_dtypes("cpu")
        if torch.float32 in supported:
            cases.append(Case(name, torch.float32, "forward"))
            cases.append(Case(name, torch.float32, "noncontiguous"))
            if op.supports_autograd:
                cases.append(Case(name, torch.float32, "backward"))
            if op.inplace_variant is not None:
                cases.append(Case(name, torch.float32, "inplace"))
            if op.supports_out:
                cases.append(Case(name, torch.float32, "out"))
        if i % 3 == 0 or torch.float32 not in supported:
            cases += [Case(name, d, "forward") for d in MORE_DTYPES if d in supported]
    return cases


CASES = _cases()


def samples(case: Case, *, grad: bool = False, limit: int = 2) -> list[Any]:
    samples = OPS[case.name].sample_inputs("cpu", case.dtype, requires_grad=grad)
    return list(itertools.islice(samples, limit))


def arguments(sample: Any) -> tuple[list[Any], dict[str, Any]]:
    return [sample.input, *sample.args], sample.kwargs


def _compare(case: Case, function: Callable[..., Any], sample: Any) -> None:
    args, kwargs = arguments(sample)
    expected = function(*args, **kwargs)
    actual = function(*to_device(args), **to_device(kwargs))
    assert_same(actual, expected, scale=SCALES.get(case.name, 1.0))


def _forward(case: Case) -> None:
    for sample in samples(case):
        _compare(case, OPS[case.name].op, sample)


def _noncontiguous(case: Case) -> None:
    _compare(case, OPS[case.name].op, samples(case, limit=1)[0].noncontiguous())


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in leaves(v)]
    return []


def _backward(case: Case) -> None:
    op = OPS[case.name]
    sample = samples(case, grad=True, limit=1)[0]
    args, kwargs = arguments(sample)
    gradients = []
    for a, k in ((args, kwargs), (to_device(args), to_device(kwargs))):
        results = [t for t in leaves(op.op(*a, **k)) if t.requires_grad]
        inputs = [t for t in leaves([*a, *k.values()]) if t.requires_grad]
        assert results and inputs
        # A gradient that differs by element and is the same on both sides.
        weights = [
            torch.linspace(0.5, 1.5, t.numel()).to(t.dtype).view(t.shape).to(t.device)
            for t in results
        ]
        gradients.append(torch.autograd.grad(results, inputs, weights, allow_unused=True))
    expected, actual = gradients
    assert_same(actual, expected, strides=False, scale=SCALES.get(case.name, 1.0))


def _inplace(case: Case) -> None:
    op = OPS[case.name]
    for sample in samples(case):
        if sample.broadcasts_input:
            continue
        args, kwargs = arguments(sample)
        results = []
        for a, k in ((args, kwargs), (to_device(args), to_device(kwargs))):
            target = a[0].clone()
            try:
                returned = op.inplace_variant(target, *a[1:], **k)
            except RuntimeError as error:  # e.g. the result dtype cannot be stored
                results.append((type(error), None))
                continue
            assert returned is target
            results.append((None, target))
        assert_same(results[1], results[0], scale=SCALES.get(case.name, 1.0))
        return


def _ending(
    op: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], out: Any
) -> tuple[type[Exception] | None, bool]:
    """How a call ended: the exception's type, and whether it warned of resizing its result."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            op(*args, **kwargs, out=out)
            kind = None
        except Exception as error:
            kind = type(error)
    return kind, any("one or more elements was resized" in str(w.message) for w in caught)


def _out(case: Case) -> None:
    """``out=`` of the right kind, of another shape, of another dtype, on another device."""
    op = OPS[case.name].op
    args, kwargs = arguments(samples(case, limit=1)[0])
    device_args, device_kwargs = to_device(args), to_device(kwargs)
    expected = op(*args, **kwargs)
    several = not isinstance(expected, torch.Tensor)
    fresh = [torch.full_like(t, 7) for t in leaves(expected)]

    def give(tensors: list[torch.Tensor]) -> Any:
        return tuple(tensors) if several else tensors[0]

    out = to_device(fresh)
    addresses = [t.data_ptr() for t in out]
    op(*device_args, **device_kwargs, out=give(out))
    scale = SCALES.get(case.name, 1.0)
    assert_same(out, leaves(expected), scale=scale)
    assert [t.data_ptr() for t in out] == addresses

    wrong_shape = [torch.ones((1, *t.shape, 2), dtype=t.dtype) for t in fresh]
    wrong_dtype = [torch.ones_like(t, dtype=torch.int32) for t in fresh]
    for wrong in (wrong_shape, wrong_dtype):
        out = to_device(wrong)
        expected_end = _ending(op, args, kwargs, give(wrong))
        assert _ending(op, device_args, device_kwargs, give(out)) == expected_end
        assert_same(out, wrong, strides=False, scale=scale)

    with pytest.raises(RuntimeError, match=r"device|neuron"):
        op(*device_args, **device_kwargs, out=give(fresh))


FORMS = {
    "forward": _forward,
    "noncontiguous": _noncontiguous,
    "backward": _backward,
    "inplace": _inplace,
    "out": _out,
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_equals_cpu(case: Case) -> None:
    torch.manual_seed(0)
    with no_fallback():
        FORMS[case.form](case)


def test_the_number_of_cases_is_known() -> None:
    """Each case above either compares or fails, so the number of cases is what ran."""
    assert len(NAMES) == len(set(NAMES)) == 110
    assert len(CASES) == 522
