"""``_foreach_*``: the rule of one tensor, applied to every tensor of the lists.

One executable updates a whole parameter group. Numbers stay operands, as in the rules they reuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering.dtypes import cast, op_math
from torch_neuronx.lowering.layout import flat_row, unflat

# matmul, pointwise and unary are imported for the rules that they register.
from torch_neuronx.lowering.rules import matmul, pointwise, reduce, unary  # noqa: F401
from torch_neuronx.lowering.table import RULES, Rule, lowers


def _outputs(out: Any) -> tuple[Any, ...]:
    """``out`` is a single Array when the list has one tensor."""
    return out if isinstance(out, tuple) else (out,)


def _call(rule: Rule, args: tuple[Any, ...], out: Any, checks: Any) -> Any:
    offered = {"out": out, "checks": checks}
    return rule.function(*args, **{k: offered[k] for k in rule.wants})


def _each(
    names: list[str],
    base: str,
    columns: Callable[..., list[Any]],
    elementwise: bool = True,
    **marks: Any,
) -> None:
    """Register overloads whose per-tensor call of ``base`` takes the given argument columns.

    ``columns`` maps the arguments to one list per argument of ``base``: tuples hold one entry a
    tensor, anything else is the same for all.
    """
    rule = RULES[base]

    @lowers(*names, exact=rule.exact, **marks)
    def function(*args: Any, out: Any, checks: Any) -> list[Any]:
        results = []
        for i, one in enumerate(_outputs(out)):
            row = tuple(c[i] if isinstance(c, tuple) else c for c in columns(*args))
            row, one, shape = flat_row(row, one) if elementwise else (row, one, None)
            result = _call(rule, row, one, checks)
            results.append(result if shape is None else unflat(cast(result, one.dtype), shape))
        return results


UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p "
    "log2 max neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)

for _name in UNARY.split():
    _each([f"aten::_foreach_{_name}"], f"aten::{_name}", lambda self: [self])


@lowers("aten::_foreach_clone", exact=True)
def clone(self: tuple[Any, ...], memory_format: None) -> tuple[Any, ...]:
    """Copies."""
    return self


@lowers("aten::_foreach_zero", exact=True)
def zero(self: tuple[Any, ...]) -> list[Any]:
    """Zeros."""
    return [jnp.zeros_like(x) for x in self]


@lowers("aten::_foreach_copy", exact=True)
def copy(self: tuple[Any, ...], src: tuple[Any, ...], non_blocking: bool, *, out: Any) -> list[Any]:
    """Sources, broadcast; the driver casts."""
    return [jnp.broadcast_to(s, o.shape) for s, o in zip(src, _outputs(out), strict=True)]


_ALPHA = {"static_one": ("alpha",)}
for _name in ("add", "sub"):
    _op = f"aten::_foreach_{_name}"
    _each([f"{_op}.List"], f"aten::{_name}.Tensor", lambda s, o, alpha: [s, o, alpha], **_ALPHA)
    _each([f"{_op}.Scalar", f"{_op}.ScalarList"], f"aten::{_name}.Scalar", lambda s, o: [s, o, 1])
_each(
    ["aten::_foreach_add.Tensor"], "aten::add.Tensor", lambda s, o, alpha: [s, o, alpha], **_ALPHA
)


def _pair(self: Any, other: Any) -> list[Any]:
    return [self, other]


for _name in ("mul", "div"):
    _op = f"aten::_foreach_{_name}"
    _forms = [f"{_op}.{o}" for o in ("List", "Scalar", "ScalarList", "Tensor")]
    _each(_forms, f"aten::{_name}.Tensor", _pair)
for _name, _base in {
    "maximum": "aten::maximum",
    "minimum": "aten::minimum",
    "clamp_max": "aten::clamp_max.Tensor",
    "clamp_min": "aten::clamp_min.Tensor",
}.items():
    _op = f"aten::_foreach_{_name}"
    _each([f"{_op}.{o}" for o in ("List", "Scalar", "ScalarList")], _base, _pair)

_each(["aten::_foreach_pow.List"], "aten::pow.Tensor_Tensor", _pair)
_each(["aten::_foreach_pow.ScalarAndTensor"], "aten::pow.Scalar", _pair)
_each(
    ["aten::_foreach_pow.Scalar", "aten::_foreach_pow.ScalarList"],
    "aten::pow.Tensor_Scalar",
    _pair,
    static=("exponent",),
)
_each(["aten::_foreach_mm"], "aten::mm", _pair, elementwise=False)
_each(
    [f"aten::_foreach_lerp.{o}" for o in ("List", "Scalar", "ScalarList")],
    "aten::lerp.Tensor",
    lambda self, end, weight: [self, end, weight],
)


def _four(self: Any, tensor1: Any, tensor2: Any, value: Any) -> list[Any]:
    if hasattr(value, "ndim") and value.ndim == 1:  # one number a tensor, in a tensor
        value = tuple(value[i] for i in range(value.shape[0]))
    return [self, tensor1, tensor2, value]


for _name in ("addcmul", "addcdiv"):
    _each(
        [f"aten::_foreach_{_name}.{o}" for o in ("Scalar", "ScalarList", "Tensor")],
        f"aten::{_name}",
        _four,
        static_one=("value",),
    )


@lowers("aten::_foreach_norm.Scalar", static=("ord",))
def norm(self: tuple[Any, ...], ord: Any, dtype: str | None, *, out: Any) -> list[Any]:
    """p-norms of whole tensors."""
    return [
        reduce.linalg_vector_norm(x, ord, None, False, dtype, out=o)
        for x, o in zip(self, _outputs(out), strict=True)
    ]


@lowers("aten::_foreach_powsum.Scalar", static=("ord",))
def powsum(self: tuple[Any, ...], ord: Any, dtype: str | None, *, out: Any) -> list[Any]:
    """Sums of the p-th powers of magnitudes."""
    results = []
    for x, o in zip(self, _outputs(out), strict=True):
        size = lax.abs(cast(x, op_math(o.dtype)))
        powers = size * size if ord == 2 else lax.pow(size, jnp.full_like(size, ord))
        results.append(reduce.total(powers, tuple(range(x.ndim))))
    return results
