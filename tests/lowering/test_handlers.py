"""Rules call a handler only where the process has registered it with the plugin (decision D19)."""

from __future__ import annotations

import pytest
from jax._src.interpreters import mlir
from jaxlib.mlir.dialects import stablehlo

from torch_neuronx.lowering import build, handlers, table
from torch_neuronx.lowering.client import LoweringClient
from torch_neuronx.lowering.program import (
    Array,
    Constant,
    Node,
    Output,
    Program,
    Read,
    Result,
    View,
)

SORT, TOPK = "torchneuron.sort", "torchneuron.topk"
VERSION = "1.9.3"


def sort(dtype: str = "float32", shape: tuple[int, ...] = (4, 6)) -> Program:
    """aten::sort over the last dim."""
    strides = (shape[1], 1)
    arguments = (Read(0, View(dtype, shape, strides)), Constant(-1), Constant(True))
    return Program(
        params=(Array(dtype, shape),),
        nodes=(Node("aten::sort", arguments, (Array(dtype, shape), Array("int64", shape))),),
        outputs=(Output(Result(0, 0)), Output(Result(0, 1))),
    )


def text_of(lowered: build.Lowered) -> str:
    with mlir.make_ir_context() as context:
        return str(stablehlo.deserialize_portable_artifact(context, lowered.module))


def test_without_handlers_there_is_no_custom_call() -> None:
    lowered = build.lower(sort(), platform="cpu", version=VERSION)
    assert "custom_call" not in text_of(lowered)
    assert lowered.handlers == ()


def test_a_handler_becomes_a_custom_call_with_row_major_operands() -> None:
    lowered = build.lower(sort(), platform="cpu", version=VERSION, available=[SORT, TOPK])
    text = text_of(lowered)
    assert text.count("custom_call") == 1 and f"@{SORT}" in text and "stablehlo.sort" not in text
    assert "backend_config = {descending = 1 : i64, dim = 1 : i64}" in text
    assert "dense<[1, 0]> : tensor<2xindex>" in text
    assert lowered.handlers == (SORT,)


def test_another_handler_is_no_help() -> None:
    lowered = build.lower(sort(), platform="cpu", version=VERSION, available=[TOPK])
    assert "custom_call" not in text_of(lowered)


@pytest.mark.parametrize("program", [sort("uint32"), sort(shape=(0, 6))])
def test_what_the_kernels_do_not_take_stays_portable(program: Program) -> None:
    lowered = build.lower(program, platform="cpu", version=VERSION, available=[SORT])
    assert "custom_call" not in text_of(lowered)


def test_the_server_is_told() -> None:
    client = LoweringClient()
    try:
        assert client.lower(sort(), "cpu", VERSION).handlers == ()
        assert client.lower(sort(), "cpu", VERSION, [SORT]).handlers == (SORT,)
    finally:
        client.close()


def test_outside_of_a_lowering_there_are_none() -> None:
    import numpy as np

    table.load_rules()
    assert not handlers.takes(SORT, np.zeros(3, np.float32))
    with handlers.offered([SORT]) as used:
        assert handlers.takes(SORT, np.zeros(3, np.float32)) and used == set()
    assert not handlers.takes(SORT, np.zeros(3, np.float32))
