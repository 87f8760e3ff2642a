"""Shapes of operators that reach this device and have no whole meta kernel in PyTorch 2.13.

Registered beside PyTorch's own, so that eager planning, fake tensors and torch.compile know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """hy like hx (N, H), and the workspace (N, 5 H)."""
    hy = torch.empty_like(hx, memory_format=torch.contiguous_format)
    return hy, hx.new_empty(hx.shape[0], 5 * hx.shape[1])


def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of both gates (N, 3 H), of hx (N, H), and of both biases (3 H) if there are any."""
    n, hidden = workspace.shape[0], workspace.shape[1] // 5
    gates = workspace.new_empty(n, 3 * hidden)
    bias = workspace.new_empty(3 * hidden) if has_bias else None
    return (
        gates,
        torch.empty_like(gates),
        workspace.new_empty(n, hidden),
        bias,
        None if bias is None else torch.empty_like(bias),
    )


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hy and cy like cx (N, H), and the workspace like the gates (N, 4 H).

    PyTorch's own needs the biases; a network made with bias=False has none.
    """
    workspace = torch.empty_like(input_gates, memory_format=torch.contiguous_format)
    hy = torch.empty_like(cx, memory_format=torch.contiguous_format)
    return hy, torch.empty_like(hy), workspace


def like_first(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """A draw for each element of the first argument, which is contiguous."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def fractional_max_pool3d_backward(
    grad: torch.Tensor, x: torch.Tensor, kernel: Any, output: Any, indices: torch.Tensor
) -> torch.Tensor:
    """The gradient of the input, contiguous. Without this, fake tensors run CPU's kernel, which
    refuses the indices that it finds in memory of no content."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _permuted_like(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Empty, dense, with the dimensions of ``x`` in the order in which they lie in memory."""
    order = sorted(range(x.dim()), key=lambda i: x.stride(i), reverse=True)
    inverse = sorted(range(x.dim()), key=lambda i: order[i])
    return x.new_empty([shape[i] for i in order]).permute(inverse)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Output (B, H, L, Ev) in the query's memory order, logsumexp (B, H, L), the two lengths, seed
    and offset (0-d int64).

    PyTorch's own leaves seed and offset on the meta device and logsumexp of float64 in float32.
    """
    high = torch.float64 if query.dtype == torch.float64 else torch.float32
    batched = query if query.dim() == 4 else query[None]
    return (
        _permuted_like(query, (*query.shape[:-1], value.shape[-1])),
        query.new_empty(batched.shape[:-1], dtype=high),
        None,
        None,
        query.shape[-2],
        key.shape[-2],
        query.new_empty((), dtype=torch.int64),
        query.new_empty((), dtype=torch.int64),
        None,
    )


def fused_attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: list[bool],
    *_: Any,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of query, key and value like these, and of the bias where it is asked for."""
    wanted = attn_bias is not None and grad_input_mask[3]
    return (
        torch.empty_like(query),
        torch.empty_like(key),
        torch.empty_like(value),
        torch.empty_like(attn_bias, memory_format=torch.contiguous_format) if wanted else None,
    )


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """float32 and float16 too, as PyTorch's kernel for any device; its meta kernel is CUDA's."""
    from torch._meta_registrations import meta_grouped_mm

    call: Any = meta_grouped_mm
    if mat_a.dtype == torch.bfloat16 or mat_a.dtype != mat_b.dtype:
        return cast(torch.Tensor, call(mat_a, mat_b, offs, bias, out_dtype))
    if mat_a.dtype not in (torch.float32, torch.float16):
        raise RuntimeError(
            f"Expected mat_a to be Float32, BFloat16 or Float16 matrix, got {mat_a.dtype}"
        )
    if out_dtype not in (None, mat_a.dtype):
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")

    def stand_in(matrix: torch.Tensor) -> torch.Tensor:
        """bfloat16 with the strides' bytes, since they must be multiples of 16."""
        wide = matrix.element_size() // 2
        strides = [s if s == 1 else s * wide for s in matrix.stride()]
        return torch.empty_strided(
            matrix.shape, strides, dtype=torch.bfloat16, device=matrix.device
        )

    checked = call(stand_in(mat_a), stand_in(mat_b), offs, bias, None)
    return mat_a.new_empty(checked.shape)


def scaled_grouped_mm_v2(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """The older overload's shapes and checks, for the recipe that it has."""
    row_wise = [torch.nn.functional.ScalingType.RowWise.value]
    if list(recipe_a) != row_wise or list(recipe_b) != row_wise:
        raise ValueError(
            f"expected row-wise scaling of both matrices (recipes {row_wise}), got "
            f"{list(recipe_a)} and {list(recipe_b)}"
        )
    from torch._meta_registrations import meta_scaled_grouped_mm

    call: Any = meta_scaled_grouped_mm
    result = call(mat_a, mat_b, scale_a[0], scale_b[0], offs, bias, None, out_dtype)
    return cast(torch.Tensor, result)


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_channels_last(x: torch.Tensor) -> bool:
    """A tensor whose elements lie in both orders, such as a weight of one by one, is contiguous:
    plans do not tell apart the strides of dimensions of size one."""
    layout = _CHANNELS_LAST.get(x.dim())
    return layout is not None and not x.is_contiguous() and x.is_contiguous(memory_format=layout)


def _in_layout(result: torch.Tensor, channels_last: bool) -> torch.Tensor:
    return result.to(memory_format=_CHANNELS_LAST[result.dim()]) if channels_last else result


def convolution(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Result of aten::convolution, channels last where the input or the weight is, as on CPU and
    CUDA. PyTorch's own meta kernel leaves it contiguous, since it does not know the device."""
    result = torch.ops.aten.convolution.default(x, weight, *rest)
    return _in_layout(result, _is_channels_last(x) or _is_channels_last(weight))


def _following(table: str, name: str, argument: int = 0) -> Callable[..., Any]:
    """PyTorch's shapes of an operator whose result is channels last where an argument is."""

    def kernel(*arguments: Any) -> torch.Tensor:
        from torch._decomp import global_decomposition_table

        overload = getattr(torch.ops.aten, name).default
        shapes: Any = global_decomposition_table[table][overload]  # type: ignore[index]
        return _in_layout(shapes(*arguments), _is_channels_last(arguments[argument]))

    return kernel


def linalg_eig(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Complex eigenvalues (*, n), and vectors (*, n, n) column by column as LAPACK leaves them."""
    from torch._decomp import global_decomposition_table

    shapes: Any = global_decomposition_table["meta"][torch.ops.aten.linalg_eig.default]
    values, vectors = shapes(x)
    return values, torch.empty_like(vectors, memory_format=torch.contiguous_format).mT


_KERNELS: dict[str, Callable[..., Any]] = {
    "linalg_eig": linalg_eig,
    "max_unpool2d": _following("post_autograd", "max_unpool2d"),
    "reflection_pad2d": _following("meta", "reflection_pad2d"),
    "reflection_pad2d_backward": _following("meta", "reflection_pad2d_backward", 1),
    "replication_pad2d": _following("meta", "replication_pad2d"),
    "replication_pad2d_backward": _following("meta", "replication_pad2d_backward", 1),
    "roll": _following("post_autograd", "roll"),
    # Without one, fake tensors run the operator itself, which draws.
    "_sample_dirichlet": like_first,
    "binomial": like_first,
    "fractional_max_pool3d_backward": fractional_max_pool3d_backward,
    "_grouped_mm": grouped_mm,
    "_scaled_dot_product_fused_attention_overrideable": fused_attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": fused_attention_backward,
    "_scaled_grouped_mm_v2": scaled_grouped_mm_v2,
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}
_libraries: list[torch.library.Library] = []  # an IMPL library undoes itself when it is dropped


def register() -> None:
    """Register them all; where PyTorch has one, it knows only part of the calls."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    key = torch._C.DispatchKey.Meta
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, allow_override=True)
        # The Python dispatcher, which traces for torch.compile, looks here first.
        overload = getattr(torch.ops.aten, name).default
        overload.py_kernels.pop(key, None)
        overload.py_impl(key)(kernel)
    _libraries.append(library)
