"""What PyTorch's meta kernels say of a call: errors, result dtypes, shapes and strides."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch

from torch_neuronx import meta_kernels
from torch_neuronx.eager import schemas

# An error is worth no more memory than this to word it as CPU does.
_MAX_PROBE_BYTES = 64 << 20


def apart_from_forward_mode() -> contextlib.AbstractContextManager[Any]:
    """Where meta tensors are made and used while a level of forward-mode AD may be open.

    PyTorch writes the text of a tensor when it chooses among overloads, and below autograd that
    text asks for a tangent, which only inference tensors do not have.
    """
    level = torch.autograd.forward_ad._current_level  # type: ignore[attr-defined]
    return torch.inference_mode() if level >= 0 else contextlib.nullcontext()


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
            return _call(schema, values)
        except Exception as error:
            moved = _numbers_on_meta(values)
            if moved is not None:
                try:
                    return _call(schema, moved)
                except Exception:
                    pass  # the first says more: numbers had their values
            raise _as_on_cpu(schema, values, error) from None


# What this device says in PyTorch's place, in eager only.
_OWN = {"aten::convolution": meta_kernels.convolution}


def _call(schema: schemas.Schema, values: list[Any]) -> Any:
    own = _OWN.get(schema.op.name())
    if own is not None:
        return own(*values)
    try:
        return schemas.call(schema.op, schema.arguments, values)
    except NotImplementedError:
        return _run_fake(schema, values)


def _numbers_on_meta(values: list[Any]) -> list[Any] | None:
    """``values`` with 0-d CPU tensors on the meta device too; None when there are none.

    Some meta kernels want all tensors on one device where the kernels themselves take numbers.
    Tensors in lists stay: ``stack`` wants them on one device indeed.
    """
    if not any(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in values):
        return None
    return [
        v.to("meta") if isinstance(v, torch.Tensor) and v.device.type == "cpu" else v
        for v in values
    ]


def _as_on_cpu(schema: schemas.Schema, values: list[Any], error: Exception) -> Exception:
    """What CPU raises for the call, if it does: some meta kernels have words of their own."""
    total = sum(t.untyped_storage().nbytes() for t in schemas.tensors(values))
    if total <= _MAX_PROBE_BYTES:
        try:
            schemas.call(schema.op, schema.arguments, schemas.zeros_on_cpu(values))
        except Exception as own:
            return own
    devices = {t.device.type for t in schemas.tensors(values)}
    if len(devices) > 1 and "meta" in str(error):  # no device of the caller's
        return RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            'neuron and cpu! Move the tensor with .to("neuron").'
        )
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
