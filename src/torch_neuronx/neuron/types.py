"""Typed tensors: ``torch.neuron.FloatTensor`` and the like, torch's legacy names of a dtype.

torch makes its own only for its built-in devices. These serve where old code names one: as a
constructor, in ``isinstance``, and as the argument of ``Tensor.type`` and ``Module.type``.
"""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class TensorType(type):
    """The type of typed tensors; an instance is a name for a dtype on the device."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == "neuron"
            and value.dtype == cls.dtype
            and value.layout == torch.strided
        )

    def __call__(cls, *arguments: Any) -> torch.Tensor:
        """``T(sequence)`` holds its values, ``T(2, 3)`` is uninitialised, ``T()`` empty.

        A tensor must be one of this type already, and is aliased, as in torch.cuda.
        """
        if len(arguments) != 1 or isinstance(arguments[0], (int, torch.Size)):
            return torch.empty(*(arguments or (0,)), dtype=cls.dtype, device="neuron")
        (value,) = arguments
        if isinstance(value, torch.Tensor):
            if not isinstance(value, cls):
                raise TypeError(
                    f"expected {cls.__name__} (got {value.type()}): convert it with "
                    f"tensor.type({cls.__name__})"
                )
            return value.detach()
        return torch.tensor(value, dtype=cls.dtype, device="neuron")


def _make(name: str, dtype: torch.dtype) -> TensorType:
    # Tensor.type reads the class's full name from its __name__.
    full = f"torch.neuron.{name}"
    text = f"{dtype} on the device, by torch's legacy name. Use ``dtype=`` and ``device=``."
    return TensorType(full, (), {"dtype": dtype, "layout": torch.strided, "__doc__": text})


TYPES: dict[str, TensorType] = {name: _make(name, dtype) for name, dtype in _DTYPES.items()}
