"""What PyTorch's meta kernels say of a call: errors, result dtypes, shapes and strides."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from torch_neuronx.eager import schemas

# An error is worth no more memory than this to word it as CPU does.
_MAX_PROBE_BYTES = 64 << 20


def to_meta(value: Any, seen: dict[int, torch.Tensor]) -> Any:
    """``value`` with device tensors replaced by meta tensors; one object stays one object."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            return value  # 0-d: a number
        if id(value) not in seen:
            seen[id(value)] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            )
        return seen[id(value)]
    if isinstance(value, (list, tuple)):
        return [to_meta(v, seen) for v in value]
    if isinstance(value, torch.Generator):
        return None
    return value


def run(schema: schemas.Schema, values: list[Any]) -> Any:
    """Call an overload on meta tensors: the results, or PyTorch's own exception."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the real call warns
        try:
            try:
                return schemas.call(schema.op, schema.arguments, values)
            except NotImplementedError:
                return _run_fake(schema, values)
        except Exception as error:
            raise _as_on_cpu(schema, values, error) from None


def _as_on_cpu(schema: schemas.Schema, values: list[Any], error: Exception) -> Exception:
    """What CPU raises for the call, if it does: some meta kernels have words of their own."""
    total = sum(t.untyped_storage().nbytes() for t in schemas.tensors(values))
    if total > _MAX_PROBE_BYTES:
        return error
    try:
        schemas.call(schema.op, schema.arguments, schemas.zeros_on_cpu(values))
    except Exception as own:
        return own
    return error


def _run_fake(schema: schemas.Schema, values: list[Any]) -> Any:
    """For overloads without a meta kernel: FakeTensorMode also tries decompositions."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            with mode:
                return torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="cpu"
                )
        if isinstance(value, list):
            return [fake(v) for v in value]
        return value

    with mode:
        return schemas.call(schema.op, schema.arguments, [fake(v) for v in values])
