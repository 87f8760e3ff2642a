"""Convolutions of one to three dimensions, plain and transposed, with their gradients.

Layouts are PyTorch's: input (N, C, ...), weight (out, in / groups, ...), or for transposed
convolutions (in, out / groups, ...). Reduced floats accumulate in float32 and round once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_neuronx.lowering import handlers
from torch_neuronx.lowering.dtypes import cast, dtype_name, np_dtype, op_math
from torch_neuronx.lowering.layout import behind_barrier, flat
from torch_neuronx.lowering.table import lowers

_MOST_SLICES = 64
_FEW = 16
_HOST_DTYPES = frozenset({"float32", "bfloat16", "float64"})
_FORWARD = "torchneuron.convolution"
_BACKWARD = "torchneuron.convolution_backward"


def _expand(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One value for all dimensions, or one for each."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def _dimensions(n: int) -> tuple[str, str, str]:
    spatial = "DHW"[3 - n :]
    return ("NC" + spatial, "OI" + spatial, "NC" + spatial)


def _positions(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """Spatial sizes of a convolution's result."""
    return tuple(
        (size + low + high - d * (k - 1) - 1) // s + 1
        for size, k, s, (low, high), d in zip(
            x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True
        )
    )


def _weight_dominates(x: Any, w: Any, *geometry: Any) -> bool:
    """Whether the weight is larger than all patches of the input that it meets."""
    positions = _positions(x, w, *geometry)
    return min(positions) > 0 and w.shape[0] >= x.shape[0] * math.prod(positions)


def _tiles(w: Any, stride: tuple[int, ...], dilation: tuple[int, ...]) -> bool:
    """Whether windows lie side by side, as in the embedding of image patches."""
    return stride == w.shape[2:] and set(dilation) == {1}


def _cut(x: Any, window: tuple[int, ...], positions: tuple[int, ...]) -> Any:
    """Windows that lie side by side, as (C, window..., positions..., N)."""
    n = len(window)
    inside = [slice(0, k * p) for k, p in zip(window, positions, strict=True)]
    pairs = itertools.chain.from_iterable(zip(positions, window, strict=True))
    x = x[:, :, *inside].reshape(*x.shape[:2], *pairs)
    return x.transpose(1, *range(3, 3 + 2 * n, 2), *range(2, 2 + 2 * n, 2), 0)


def _columns(
    x: Any,
    window: tuple[int, ...],
    positions: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> Any:
    """What each position of the result sees of the input: (C window, positions N)."""
    batch, channels = x.shape[:2]
    zero = jnp.zeros((), x.dtype)
    x = lax.pad(x, zero, ((0, 0, 0), (0, 0, 0), *((low, high, 0) for low, high in padding)))
    if stride == window and set(dilation) == {1}:
        columns = _cut(x, window, positions)
    else:
        patches = []
        for offset in itertools.product(*map(range, window)):
            start = [o * d for o, d in zip(offset, dilation, strict=True)]
            stop = [a + s * (n - 1) + 1 for a, s, n in zip(start, stride, positions, strict=True)]
            patches.append(lax.slice(x, (0, 0, *start), (batch, channels, *stop), (1, 1, *stride)))
        columns = jnp.moveaxis(jnp.stack(patches, axis=2), 0, -1)  # (C, patch, ..., N)
    return columns.reshape(channels * math.prod(window), -1)


def _by_patches(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> Any:
    """The convolution as one product of the weight, as it lies, with patches of the input.

    XLA's CPU code transposes the weight first, which takes far longer than the arithmetic where
    images are small and channels many (512 to 512 channels, 3 by 3 over 2 by 2: 27 ms against 1).
    """
    positions = _positions(x, w, stride, padding, dilation)
    out = lax.dot_general(
        w.reshape(w.shape[0], -1),
        _columns(x, w.shape[2:], positions, stride, padding, dilation),
        (((1,), (0,)), ((), ())),
        preferred_element_type=np_dtype(op_math(dtype_name(x))),
    )
    return jnp.moveaxis(out.reshape(w.shape[0], *positions, x.shape[0]), -1, 0)


def _patches_pay(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> bool:
    # Each position of the window is a slice of its own: 1024 of them compiled for 15 s.
    few = math.prod(w.shape[2:]) <= _MOST_SLICES or _tiles(w, stride, dilation)
    return few and _weight_dominates(x, w, stride, padding, dilation)


def _is_pointwise(w: Any, padding: tuple[tuple[int, int], ...]) -> bool:
    """Whether every output position sees one input position."""
    return math.prod(w.shape[2:]) == 1 and all(p == (0, 0) for p in padding)


def _strided(x: Any, stride: tuple[int, ...]) -> Any:
    """Every ``stride``-th position."""
    return lax.slice(x, (0,) * x.ndim, x.shape, (1, 1, *stride))


def _pointwise(x: Any, w: Any, stride: tuple[int, ...]) -> Any:
    """A convolution with a kernel of one element is a matrix product.

    XLA's CPU code transposes both operands first: 2 to 3 times the time, its gradient for the
    weight 3 to 5 times.
    """
    x = _strided(x, stride)
    out = lax.dot_general(
        w.reshape(w.shape[:2]),
        x.reshape(*x.shape[:2], -1),
        (((1,), (1,)), ((), ())),
        preferred_element_type=np_dtype(op_math(dtype_name(x))),
    )
    return jnp.swapaxes(out, 0, 1).reshape(x.shape[0], w.shape[0], *x.shape[2:])


def _plain(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
    input_dilation: tuple[int, ...] | None = None,
) -> Any:
    dtype = op_math(dtype_name(x))
    if input_dilation is None and groups == 1:
        if _patches_pay(x, w, stride, padding, dilation):
            return _by_patches(x, w, stride, padding, dilation)
        if _is_pointwise(w, padding):
            return _pointwise(x, w, stride)
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=stride,
        padding=padding,
        lhs_dilation=input_dilation,
        rhs_dilation=dilation,
        dimension_numbers=_dimensions(len(stride)),
        feature_group_count=groups,
        preferred_element_type=np_dtype(dtype),
    )


def _transposed(
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
) -> Any:
    """The gradient of a convolution, written as a convolution of the dilated input."""
    spatial = w.shape[2:]
    n = len(spatial)
    split = w.reshape(groups, w.shape[0] // groups, w.shape[1], *spatial)
    kernel = jnp.flip(jnp.swapaxes(split, 1, 2), range(3, 3 + n))
    kernel = kernel.reshape(groups * w.shape[1], w.shape[0] // groups, *spatial)
    pads = tuple(
        (d * (k - 1) - p, d * (k - 1) - p + o)
        for k, d, p, o in zip(spatial, dilation, padding, output_padding, strict=True)
    )
    return _plain(x, kernel, (1,) * n, pads, dilation, groups, input_dilation=stride)


def _forward(
    x: Any,
    w: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    n = w.ndim - 2
    stride, padding, dilation = (_expand(a, n) for a in (stride, padding, dilation))
    if transposed:
        return _transposed(x, w, stride, padding, dilation, _expand(output_padding, n), groups)
    return _plain(x, w, stride, tuple((p, p) for p in padding), dilation, groups)


@lowers("aten::convolution", "aten::convolution_overrideable")
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    *,
    out: Any,
) -> Any:
    """input convolved with weight, plus bias (one value an output channel)."""
    dtype = op_math(out.dtype)
    operands = (input, weight) if bias is None else (input, weight, bias)
    if math.prod(out.shape) and _takes(_FORWARD, operands) and _forward_gains(
        input, weight, stride, padding, dilation, transposed, groups
    ):  # fmt: skip
        geometry = _geometry(weight, stride, padding, dilation, transposed, output_padding, groups)
        results = [(out.shape, input.dtype)]
        return handlers.call(_FORWARD, results, *operands, **geometry)[0]
    if 0 in (input.size, weight.size) or 0 in out.shape:
        result = jnp.zeros(out.shape, np_dtype(dtype))
    else:
        result = _forward(
            input, weight, stride, padding, dilation, transposed, output_padding, groups
        )
    if bias is not None and result.size:  # without input channels PyTorch has no output either
        result = result + cast(bias, dtype).reshape(1, -1, *(1,) * (result.ndim - 2))
    return result


def _takes(name: str, operands: Sequence[Any]) -> bool:
    """Whether a host kernel may convolve the operands: it wants one dtype, not float16."""
    kinds = {dtype_name(x) for x in operands}
    return len(kinds) == 1 and kinds <= _HOST_DTYPES and handlers.takes(name, *operands)


def _geometry(
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> dict[str, int | tuple[int, ...]]:
    n = weight.ndim - 2
    return {
        "stride": _expand(stride, n),
        "padding": _expand(padding, n),
        "dilation": _expand(dilation, n),
        "transposed": int(transposed),
        "output_padding": _expand(output_padding, n),
        "groups": groups,
    }


def _forward_gains(
    x: Any,
    w: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    """Whether the host's kernel is quicker than what ``_forward`` would write."""
    if groups != 1 or transposed:
        return True
    n = w.ndim - 2
    stride, dilation = _expand(stride, n), _expand(dilation, n)
    pads = tuple((p, p) for p in _expand(padding, n))
    if _is_pointwise(w, pads) or w.shape[0] <= _FEW:
        return False
    return not _weight_dominates(x, w, stride, pads, dilation)


def _backward_gains(
    x: Any,
    w: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    """Whether the host's kernel is quicker than what ``_gradients`` would write."""
    if dtype_name(x) == "bfloat16" and groups == 1 and not transposed and w.shape[0] > _FEW:
        n = w.ndim - 2
        pads = tuple((p, p) for p in _expand(padding, n))
        # Also products, of channels over many positions: they would be widened first.
        return not _weight_dominates(x, w, _expand(stride, n), pads, _expand(dilation, n))
    return _forward_gains(x, w, stride, padding, dilation, transposed, groups)


def _converted(x: Any, dtype: str) -> Any:
    """``x`` in another dtype, element by element as it lies: over dimensions of 3 by 3 XLA's loops
    are slow (512 x 512 x 3 x 3 from bfloat16: 5.3 ms, flat 0.5)."""
    if dtype_name(x) == dtype:
        return x
    return lax.optimization_barrier(cast(flat(x), dtype)).reshape(x.shape)


def _input_gradient(
    g: Any,
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Any:
    """Gradient of ``_plain``'s input for the gradient ``g`` of its result.

    The gradients of the patches are one product with the weight as it lies, which is never
    transposed: 512 to 512 channels, 3 by 3 over 2 by 2, took 4.1 ms, so 0.7; 2048 to 512, 1 by 1,
    2.5 and 0.1 (one thread; PyTorch 0.8 and 0.4).
    """
    geometry = stride, padding, dilation
    if groups == 1 and _patches_pay(x, w, *geometry):
        # Behind barriers, or XLA transposes the product, and so the weight, after all.
        positions = jnp.moveaxis(g, 0, -1).reshape(g.shape[1], -1)  # as in _columns
        rows = behind_barrier(w).reshape(w.shape[0], -1)
        grads = behind_barrier(lax.dot_general(positions.T, rows, (((1,), (0,)), ((), ()))))

        def columns(a: Any) -> Any:
            return _columns(a, w.shape[2:], g.shape[2:], *geometry)

        (grad,) = jax.linear_transpose(columns, x)(grads.T)
        return grad

    def forward(a: Any) -> Any:
        return _plain(a, w, *geometry, groups)

    (grad,) = jax.linear_transpose(forward, x)(g)
    return grad


def _weight_gradient(
    g: Any,
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Any:
    """Gradient of ``_plain``'s weight for the gradient ``g`` of its result."""
    if groups == 1 and _is_pointwise(w, padding):
        return _product_of_positions(g, _strided(x, stride)).reshape(w.shape)
    few = w.shape[0] <= min(_FEW, w.shape[1])
    if groups == 1 and few and all(s == 1 for s in stride):
        return _weight_gradient_of_few(g, x, w, padding, dilation)

    def forward(a: Any) -> Any:
        return _plain(x, a, stride, padding, dilation, groups)

    (grad,) = jax.linear_transpose(forward, w)(g)
    return grad


def _product_of_positions(a: Any, b: Any) -> Any:
    """(A, B): products of channels, summed over batch and positions.

    Where there are many positions, each batch element by itself, so that nothing is transposed.
    """
    a, b = (v.reshape(*v.shape[:2], -1) for v in (a, b))
    if a.shape[2] < 128:
        return lax.dot_general(a, b, (((0, 2), (0, 2)), ((), ())))
    return jnp.sum(lax.dot_general(a, b, (((2,), (2,)), ((0,), (0,)))), axis=0)


def _weight_gradient_of_few(
    g: Any, x: Any, w: Any, padding: tuple[tuple[int, int], ...], dilation: tuple[int, ...]
) -> Any:
    """``_weight_gradient`` for few output channels and stride 1: one product of shifted gradients.

    The gradient is shifted, once an element of the kernel, and the input stays as it lies. XLA's
    CPU code makes patches of the input, which is the larger one: 64 to 3 channels over 64 by 64
    took 6.6 ms against 0.8, PyTorch 1.6 (one thread).
    """
    zero = jnp.zeros((), g.dtype)
    shifted = []
    for offset in itertools.product(*map(range, w.shape[2:])):
        edges = []
        for o, d, (low, _), size, n in zip(
            offset, dilation, padding, x.shape[2:], g.shape[2:], strict=True
        ):
            start = o * d - low
            edges.append((start, size - n - start, 0))
        shifted.append(lax.pad(g, zero, ((0, 0, 0), (0, 0, 0), *edges)))
    grad = _product_of_positions(jnp.concatenate(shifted, axis=1), x)
    grad = grad.reshape(*w.shape[2:], w.shape[0], w.shape[1])
    return jnp.moveaxis(grad, (-2, -1), (0, 1))


def _gradients(
    g: Any,
    x: Any,
    w: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Any, Any]:
    """Gradients of input and weight. A transposed convolution is a plain one the other way round.

    Its own transposes, as JAX writes them, convolve dilated arrays, zeros and all: 14 ms against
    0.6 for 64 to 32 channels, 4 by 4 over 16 by 16.
    """
    grad_input = grad_weight = None
    if transposed:
        pads = tuple((p, p - o) for p, o in zip(padding, output_padding, strict=True))
        if output_mask[0]:
            grad_input = _plain(g, w, stride, pads, dilation, groups)
        if output_mask[1]:
            grad_weight = _weight_gradient(x, g, w, stride, pads, dilation, groups)
        return grad_input, grad_weight
    pads = tuple((p, p) for p in padding)
    if output_mask[0]:
        grad_input = _input_gradient(g, x, w, stride, pads, dilation, groups)
    if output_mask[1]:
        grad_weight = _weight_gradient(g, x, w, stride, pads, dilation, groups)
    return grad_input, grad_weight


def _backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias; None where the mask is off.

    Operands are widened first, so that products of reduced floats are exact and sums are in
    float32.
    """
    dtype = op_math(dtype_name(grad_output))
    operands, wanted = (grad_output, input, weight), output_mask[:2]
    if any(wanted) and _takes(_BACKWARD, operands) and _backward_gains(
        input, weight, stride, padding, dilation, transposed, groups
    ):  # fmt: skip
        geometry = _geometry(weight, stride, padding, dilation, transposed, output_padding, groups)
        results = [
            (a.shape, a.dtype) for a, yes in zip((input, weight), wanted, strict=True) if yes
        ]
        given = iter(
            handlers.call(_BACKWARD, results, *operands, mask=tuple(map(int, wanted)), **geometry)
        )
        grad_input, grad_weight = (next(given) if yes else None for yes in wanted)
        return grad_input, grad_weight, _bias_gradient(grad_output, output_mask[2])
    g, x, w = (_converted(a, dtype) for a in operands)
    n = w.ndim - 2
    if 0 in (g.size, x.size, w.size):
        grad_input, grad_weight = (
            jnp.zeros_like(a) if wanted else None
            for a, wanted in zip((x, w), output_mask, strict=False)
        )
    else:
        grad_input, grad_weight = _gradients(
            g, x, w, *(_expand(a, n) for a in (stride, padding, dilation)), transposed,
            _expand(output_padding, n), groups, output_mask,
        )  # fmt: skip
        if grad_weight is not None:
            grad_weight = _converted(grad_weight, dtype_name(weight))
    return grad_input, grad_weight, _bias_gradient(g, output_mask[2])


def _bias_gradient(g: Any, wanted: bool) -> Any:
    g = cast(g, op_math(dtype_name(g)))
    return jnp.sum(g, axis=(0, *range(2, g.ndim))) if wanted else None


@lowers("aten::convolution_backward")
def convolution_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: tuple[int, ...] | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Any, Any, Any]:
    """Gradients of aten::convolution."""
    return _backward(
        grad_output, input, weight, stride, padding, dilation, transposed, output_padding,
        groups, output_mask,
    )  # fmt: skip


@lowers("aten::convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
    output_mask: tuple[bool, ...],
) -> tuple[Any, Any, Any]:
    """Gradients of aten::convolution_overrideable."""
    return _backward(
        grad_output, input, weight, stride, padding, dilation, transposed, output_padding,
        groups, output_mask,
    )  # fmt: skip
