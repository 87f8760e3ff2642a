"""The bytes of XLA's CompileOptionsProto, encoded by hand so that no protobuf library is needed.

Field numbers are those of ``xla/pjrt/proto/compile_options.proto``; a test compares with what
jaxlib writes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

# CompileOptionsProto
_EXECUTABLE_BUILD_OPTIONS = 3
_COMPILE_PORTABLE_EXECUTABLE = 4
_ENV_OPTION_OVERRIDES = 7
# ExecutableBuildOptionsProto
_DEVICE_ORDINAL = 1
_NUM_REPLICAS = 4
_NUM_PARTITIONS = 5
# OptionOverrideProto
_STRING, _BOOL, _INT, _DOUBLE = 1, 2, 3, 4

_VARINT, _FIXED64, _BYTES = 0, 1, 2

Override = bool | int | float | str

# What decision D6 asks of every compilation in eager modes.
EXACT: Mapping[str, Override] = {"xla_allow_excess_precision": False}

# XLA's CPU plugins take the quicker minimum and maximum by default, which lose NaN.
EXACT_CPU: Mapping[str, Override] = {**EXACT, "xla_cpu_enable_fast_min_max": False}


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are sign-extended to 64 bits
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _int(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(value)) + value


def _override(value: Override) -> bytes:
    if isinstance(value, bool):
        return _int(_BOOL, value)
    if isinstance(value, int):
        return _int(_INT, value)
    if isinstance(value, float):
        return _tag(_DOUBLE, _FIXED64) + struct.pack("<d", value)
    if isinstance(value, str):
        return _bytes(_STRING, value.encode())
    raise TypeError(f"compile option: expected bool, int, float or str, got {value!r}")


def encode(
    overrides: Mapping[str, Override] = EXACT,
    *,
    num_replicas: int = 1,
    num_partitions: int = 1,
    portable: bool = True,
) -> bytes:
    """Options for one executable; ``overrides`` are XLA's debug options by name.

    ``portable``: the executable is bound to no device, and the launch says where it runs; else it
    belongs to the client's first device, and a launch that names none costs less. Equal arguments
    give equal bytes, whatever the order of ``overrides``.
    """
    build = (
        _int(_DEVICE_ORDINAL, -1)
        + _int(_NUM_REPLICAS, num_replicas)
        + _int(_NUM_PARTITIONS, num_partitions)
    )
    out = _bytes(_EXECUTABLE_BUILD_OPTIONS, build)
    if portable:
        out += _int(_COMPILE_PORTABLE_EXECUTABLE, 1)
    for name in sorted(overrides):
        entry = _bytes(1, name.encode()) + _bytes(2, _override(overrides[name]))
        out += _bytes(_ENV_OPTION_OVERRIDES, entry)
    return out
