"""The precision that a device really computes with, whatever dtype a tensor reports."""

from __future__ import annotations

from typing import Any

import torch

_NOMINAL = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11}


def significant_bits(device: str, dtype: torch.dtype) -> tuple[int, int]:
    """Bits of the significand that survive an addition and a matrix product on ``device``.

    ``1 + 2**-p`` is told from 1 with at least p+1 bits: the largest such p is found.
    """
    powers = torch.arange(1, 61, dtype=torch.float64)
    small = torch.exp2(-powers).to(dtype)
    ones = torch.ones_like(small)
    d_small, d_ones = small.to(device), ones.to(device)
    added = ((d_ones + d_small) - d_ones).cpu().double()
    # The row [1, 2**-p/..] times a column of ones sums the same way; a matrix unit that rounds its
    # operands shows with an operand that needs all bits: (1 + 2**-p) * 1.
    operand = (ones.double() + torch.exp2(-powers)).to(dtype)
    product = (operand.to(device)[:, None] @ d_ones[:1, None]).cpu().double()[:, 0] - 1
    return _bits(added), _bits(product)


def _bits(differences: torch.Tensor) -> int:
    lost = (differences <= 0).nonzero()
    return int(lost[0]) + 1 if len(lost) else len(differences) + 1


def probe(device: str, dtype_names: list[str]) -> list[dict[str, Any]]:
    """One row for each floating dtype: nominal and measured bits, or the error."""
    rows = []
    for name in dtype_names:
        if name not in _NOMINAL:
            continue
        row: dict[str, Any] = {"dtype": name, "nominal_bits": _NOMINAL[name]}
        try:
            row["add_bits"], row["matmul_bits"] = significant_bits(device, getattr(torch, name))
            row["reduced"] = min(row["add_bits"], row["matmul_bits"]) < _NOMINAL[name]
        except Exception as error:  # a dtype that the device refuses
            row["error"] = f"{type(error).__name__}: {error}"
            row["reduced"] = True
        rows.append(row)
    return rows
