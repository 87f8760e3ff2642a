"""The hand-written protobuf bytes are those that XLA reads."""

from __future__ import annotations

import pytest

from torch_neuronx.compiler import options

compile_options = pytest.importorskip("jaxlib._jax").CompileOptions


def test_override_bytes_are_those_that_jaxlib_writes() -> None:
    theirs = compile_options()
    theirs.env_option_overrides = [("xla_allow_excess_precision", False)]
    entry = bytes.fromhex("3a200a1a") + b"xla_allow_excess_precision" + bytes.fromhex("12021000")
    assert theirs.SerializeAsString().endswith(entry)
    assert options.encode().endswith(entry)


def test_jaxlib_reads_every_field() -> None:
    overrides = {"a_bool": True, "b_int": -3, "c_double": 1.5, "d_string": "x" * 200}
    data = options.encode(overrides, num_replicas=300, num_partitions=2)
    read = compile_options.ParseFromString(data)
    assert dict(read.env_option_overrides) == overrides
    assert read.compile_portable_executable is True
    assert read.executable_build_options.num_replicas == 300
    assert read.executable_build_options.num_partitions == 2


def test_jaxlib_writes_the_same_bytes_back() -> None:
    data = options.encode({"xla_allow_excess_precision": False})
    assert compile_options.ParseFromString(data).SerializeAsString() == data


def test_not_portable() -> None:
    read = compile_options.ParseFromString(options.encode(portable=False))
    assert read.compile_portable_executable is False


def test_order_of_overrides_does_not_matter() -> None:
    assert options.encode({"a": 1, "b": True}) == options.encode({"b": True, "a": 1})
    assert options.encode({"a": 1}) != options.encode({"a": True})


def test_unknown_kind_of_value_is_refused() -> None:
    with pytest.raises(TypeError, match="expected bool, int, float or str, got None"):
        options.encode({"a": None})  # type: ignore[dict-item]
