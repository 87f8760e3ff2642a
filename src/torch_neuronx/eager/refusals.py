"""Calls that CPU's kernels refuse and PyTorch's meta kernels let pass.

Meta kernels check less than kernels do: dtypes of a product's operands, a dimension out of range,
an empty maximum. So a new call on little data is tried on CPU with zeros, which costs
microseconds beside the compilation that follows; what matters at any size is also checked in
words.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

from torch_neuronx.compiler.overloads import Overload
from torch_neuronx.eager import schemas

# Above this a call may cost more than a moment on CPU.
_MAX_TRIAL_BYTES = 256 << 10

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot",
        "_addmm_activation", "convolution_overrideable",
    )
)  # fmt: skip
# Zeros are no fair input: a singular matrix, a probability of nothing, offsets. Nor are the
# statistics of a norm of reduced floats: float32 here, as on CUDA; CPU keeps them in the dtype.
_NO_TRIAL = re.compile(
    r"aten::_?(linalg_(?!cross)|cholesky|lu_|triangular_|inverse|assert|multinomial|ctc_|segment_"
    r"|histc|repeat_interleave|padded_dense_to_jagged|native_(layer|batch|group)_norm_backward"
    r"|batch_norm_backward)"
)
# CPU carries out everything on these that PyTorch means to exist; the other dtypes have gaps
# there which are no business of this device.
_COMPLETE = frozenset(
    {
        torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    }
)  # fmt: skip


def check(
    row: Overload, schema: schemas.Schema, metas: list[Any], results: list[torch.Tensor]
) -> None:
    """Raise what CPU would raise for a call; ``metas`` are its arguments on the meta device."""
    _check_dimensions(row, schema, metas)
    if row.base in _PRODUCTS:
        _check_product(schema, metas)
    if row.base == "aten::multinomial":
        _check_multinomial(*metas[:3])
        if row.kind == "out" and metas[-1].dtype != torch.int64:
            raise RuntimeError(
                f"multinomial expects Long tensor out, got: {_short(metas[-1].dtype).title()}"
            )
    if row.base.startswith("aten::randperm"):
        _check_randperm(metas[0], results[0].dtype)
    if row.kind == "out" and row.base == "aten::linalg_solve_triangular":
        _check_same_dtype(metas[0], metas[-1])
    if row.kind == "out" and row.base.split(".")[0] in ("aten::all", "aten::any"):
        _check_truth_result(row, schema, metas)
    if max((_bytes(t) for t in [*schemas.tensors(metas), *results]), default=0) <= _MAX_TRIAL_BYTES:
        _try_on_cpu(row, schema, metas)


def check_resizes(
    row: Overload, schema: schemas.Schema, metas: list[Any], places: list[int]
) -> None:
    """Refuse to resize an out= argument that is an input as well, as CPU does.

    ``cat([x, y], out=x)``: resized, ``x`` would be another input and want to be larger still.
    """
    for place in places:
        others = metas[:place] + metas[place + 1 :]
        if any(t is metas[place] for t in schemas.tensors(others)):
            if max(map(_bytes, schemas.tensors(metas))) <= _MAX_TRIAL_BYTES:
                _try_on_cpu(row, schema, metas)  # its own words
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to "
                "tensor refer to a single memory location. Please clone() the tensor before "
                "performing the operation."
            )


def check_overlap(row: Overload, values: list[Any], written: list[torch.Tensor]) -> None:
    """Refuse to write through expanded views what does not agree with itself.

    C++ checks the tensors of overloads that PyTorch dispatches to, and lets fills and reductions
    pass as CPU does; here are lists of tensors and overloads that only our kernels call.
    ``index_put_`` passes, as on CPU, unless it accumulates: CPU adds once for each time that an
    element is shown.
    """
    if row.base == "aten::_foreach_zero" or not (
        row.internal or "::_foreach_" in row.name or "::_fused_" in row.name
    ):
        return
    if row.name == "aten::index_put_" and not values[3]:
        return
    for tensor in written:
        if any(
            stride == 0 and size > 1
            for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        ):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                "operation."
            )
    _check_shared(written)


def _check_shared(written: list[torch.Tensor]) -> None:
    """Refuse lists whose tensors share elements: CPU writes one after the other, we all at once."""
    by_storage: dict[int, list[torch.Tensor]] = {}
    for tensor in written:
        if tensor.numel():
            by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    for views in by_storage.values():
        if len(views) == 1:
            continue
        first = min(v.storage_offset() for v in views)
        spans = [
            v.storage_offset() + sum((n - 1) * s for n, s in zip(v.shape, v.stride(), strict=True))
            for v in views
        ]
        counts = torch.zeros(max(spans) - first + 1, dtype=torch.int32, device="cpu")
        for v in views:
            counts.as_strided(v.shape, v.stride(), v.storage_offset() - first).add_(1)
        if counts.max() > 1:
            raise RuntimeError(
                "unsupported operation: tensors of the list share elements, and the list is "
                "written at once. Give each tensor once, or clone() those that overlap."
            )


def _bytes(t: torch.Tensor) -> int:
    """What an operator on ``t`` costs: a view may be larger than its storage, and smaller."""
    return max(t.numel() * t.element_size(), t.untyped_storage().nbytes())


def _check_dimensions(row: Overload, schema: schemas.Schema, metas: list[Any]) -> None:
    first = metas[0] if metas else None
    if not isinstance(first, torch.Tensor) or schema.arguments[0].name != "self":
        return
    if row.base.startswith("aten::unsqueeze"):
        return
    rank = max(first.dim(), 1)
    for argument, value in zip(schema.arguments, metas, strict=True):
        if argument.name != "dim":
            continue
        for dim in value if isinstance(value, list) else [value]:
            if type(dim) is int and not -rank <= dim < rank:
                raise IndexError(
                    f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], "
                    f"but got {dim})"
                )


def _check_product(schema: schemas.Schema, metas: list[Any]) -> None:
    given = [
        (a.name, m)
        for a, m in zip(schema.arguments, metas, strict=True)
        if isinstance(m, torch.Tensor) and not a.written
    ]
    for name, tensor in given[1:]:
        if tensor.dtype != given[0][1].dtype:
            raise RuntimeError(
                f"expected {given[0][0]} and {name} to have the same dtype, but got: "
                f"{_short(given[0][1].dtype)} != {_short(tensor.dtype)}"
            )


def _check_same_dtype(given: torch.Tensor, out: torch.Tensor) -> None:
    if out.dtype != given.dtype:
        raise RuntimeError(
            f"expected scalar type {_short(given.dtype).title()} but found "
            f"{_short(out.dtype).title()}"
        )


def _check_multinomial(probabilities: torch.Tensor, count: int, replacement: bool) -> None:
    """What CPU's kernel checks and a trial may not, since it would draw from CPU's generator."""
    if not probabilities.dtype.is_floating_point:
        raise RuntimeError(
            "multinomial only supports floating-point dtypes for input, got: "
            f"{_short(probabilities.dtype).title()}"
        )
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and count > probabilities.size(-1):
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )


def _check_randperm(n: int, dtype: torch.dtype) -> None:
    """The result's dtype must hold every number, or they would wrap or round."""
    torch.scalar_tensor(max(n - 1, 0), dtype=dtype)  # raises for integers
    largest = {torch.float16: 2**11 + 1, torch.float32: 2**24 + 1, torch.float64: 2**53 + 1}
    if n > largest.get(dtype, n):
        raise RuntimeError(
            f"n cannot be greater than {largest[dtype]} for {_short(dtype).title()} type."
        )


def _check_truth_result(row: Overload, schema: schemas.Schema, metas: list[Any]) -> None:
    name = row.base.split("::")[1].split(".")[0]
    for argument, out in zip(schema.arguments, metas, strict=True):
        if argument.written and out.dtype not in (torch.bool, torch.uint8):
            raise RuntimeError(
                f"{name} only supports bool tensor for result, got: {_short(out.dtype).title()}"
            )


def _short(dtype: torch.dtype) -> str:
    """``long`` of int64: how PyTorch's errors call dtypes."""
    name = torch.empty(0, dtype=dtype, device="cpu").type().split(".")[-1]
    return name.removesuffix("Tensor").lower()


def _has_bool(values: list[Any]) -> bool:
    """Whether a number among the arguments is a bool, which subtraction and alpha refuse."""
    return any(
        isinstance(v, bool)
        for value in values
        for v in (value if isinstance(value, (list, tuple)) else [value])
    )


def _try_on_cpu(row: Overload, schema: schemas.Schema, metas: list[Any]) -> None:
    if _NO_TRIAL.match(row.name):
        return
    if row.uses_rng:
        names = [a.name for a in schema.arguments]
        if "generator" not in names:
            return  # the CPU's default generator may not move
        place = names.index("generator")
        metas = [*metas[:place], torch.Generator(), *metas[place + 1 :]]
    if row.name.startswith("aten::_fused_"):
        return
    if (
        row.name.startswith("aten::_foreach_")
        and all(t.dtype.is_floating_point for t in schemas.tensors(metas))
        and not _has_bool(metas)
    ):
        return  # what remains is complex, or a result that an integer target cannot hold
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the real call warns
        try:
            schemas.call(schema.op, schema.arguments, schemas.zeros_on_cpu(metas))
        except NotImplementedError as error:
            # No CPU kernel at all, or a dtype that CPU lacks.
            complete = all(t.dtype in _COMPLETE for t in schemas.tensors(metas))
            if complete and ("not implemented for '" in str(error) or "complex" in str(error)):
                raise
        except RuntimeError as error:
            if str(error) == "ZeroDivisionError":
                return
            if not re.search(r"(on|for|by) (the )?CPU", str(error)) or "complex" in str(error):
                raise
