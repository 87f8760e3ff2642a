"""CPU inputs that lie in the same memory: copied to the device as views of one tensor.

A function that writes into one of them then changes the others there, too, as it does on the CPU.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

Range = tuple[int, int]  # first byte, and the one behind the last


@dataclasses.dataclass(frozen=True)
class Overlaps:
    """Which CPU inputs of a graph lie in the same memory, by position.

    ``groups`` are copied as one. ``apart`` pairs an input with another that overlaps it and cannot
    be copied with it, because their dtypes or storages differ or gradients flow to one of them:
    neither may be written to.
    """

    groups: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def find(values: list[Any], positions: list[int]) -> Overlaps:
        """Those among ``positions`` of ``values``, which are tensors on the CPU."""
        ranges = {i: _memory(values[i]) for i in positions if _has_memory(values[i])}
        clusters: list[list[int]] = []
        end = 0
        for i in sorted(ranges, key=ranges.__getitem__):
            first, behind = ranges[i]
            if clusters and first < end:
                clusters[-1].append(i)
            else:
                clusters.append([i])
            end = max(end, behind)
        clusters = [sorted(c) for c in clusters if len(c) > 1]
        groups = [c for c in clusters if _alike([values[i] for i in c])]
        apart = [
            (i, k)
            for c in clusters
            if c not in groups
            for i, k in itertools.permutations(c, 2)
            if ranges[i][0] < ranges[k][1] and ranges[k][0] < ranges[i][1]
        ]
        return Overlaps(tuple(tuple(g) for g in groups), tuple(apart))

    def grouped(self) -> set[int]:
        """All positions in ``groups``."""
        return {i for group in self.groups for i in group}

    def check(self, written: list[int], values: list[Any]) -> None:
        """Raises RuntimeError if one of ``apart`` is among the positions that were written to."""
        for i, other in self.apart:
            if i in written:
                raise RuntimeError(
                    f"torch.compile(backend='neuron'): the function writes into CPU input {i} "
                    f"({_describe(values[i])}), which shares memory with CPU input {other} "
                    f"({_describe(values[other])}). They cannot be copied to the device as one, "
                    "because dtypes or storages differ or gradients are asked for. Nothing was "
                    "written back. "
                    "Move them to the device before the call with .to('neuron')."
                )


def as_one(values: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """One of ``Overlaps.groups`` on ``device``, as views of one copy of their memory."""
    start, behind = extent(values)
    with torch.no_grad():
        flat = values[0].as_strided((behind - start,), (1,), start).to(device)
        return [view(flat, v, start) for v in values]


def extent(values: list[torch.Tensor]) -> Range:
    """What the tensors take of their storage: its first element, and the one behind the last."""
    offsets = [v.storage_offset() for v in values]
    return min(offsets), max(o + _span(v) for o, v in zip(offsets, values, strict=True))


def view(flat: torch.Tensor, like: torch.Tensor, start: int) -> torch.Tensor:
    """``like`` in a copy of its storage from element ``start`` on."""
    return flat.as_strided(like.size(), like.stride(), like.storage_offset() - start)


def _span(value: torch.Tensor) -> int:
    """Elements from the first to behind the last, of a tensor that has some."""
    return 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))


def _has_memory(value: torch.Tensor) -> bool:
    # Other types need not lie where they say.
    plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return plain and value.layout == torch.strided and value.numel() > 0


def _memory(value: torch.Tensor) -> Range:
    first = value.data_ptr()
    return first, first + _span(value) * value.element_size()


def _alike(values: list[torch.Tensor]) -> bool:
    """Whether they can be copied as one tensor without gradients."""

    def kind(v: torch.Tensor) -> tuple[Any, ...]:
        return v.dtype, v.untyped_storage().data_ptr(), v.is_conj(), v.is_neg()

    return len({kind(v) for v in values}) == 1 and not any(v.requires_grad for v in values)


def _describe(value: torch.Tensor) -> str:
    return f"shape {tuple(value.shape)}, {value.dtype}"
