"""Modules that another front end lowered, called from what our rules trace.

``frontend`` gives such a module as text, with a function ``main``. It becomes a function of the
module that is lowered here, beside the reads, views and writes that only our own lowering knows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir.dialects import func, stablehlo

from torch_neuronx.lowering.dtypes import np_dtype
from torch_neuronx.lowering.errors import LoweringError

_call = Primitive("call_foreign_module")
_call.multiple_results = True


@_call.def_abstract_eval
def _abstract(*inputs: Any, text: str, results: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
    return [ShapedArray(shape, dtype) for shape, dtype in results]


def _lower(ctx: Any, *inputs: Any, text: str, results: Any) -> Any:
    context = ctx.module_context
    module = mlir.ir.Module.parse(text, context=context.context)
    (function,) = [f for f in module.body.operations if str(f.attributes["sym_name"]) == '"main"']
    types = [mlir.aval_to_ir_type(context, a) for a in ctx.avals_out]
    _check_types(function, inputs, types)
    _legalize(function)
    name = mlir.merge_mlir_modules(
        context.module, "foreign", module, dst_symtab=context.symbol_table
    )
    call = func.CallOp(types, mlir.ir.FlatSymbolRefAttr.get(name), inputs)
    return call.results


def _legalize(function: Any) -> None:
    """Constants of the dialect ``arith``, which portable artifacts do not know, in StableHLO."""
    for operation in [*function.regions[0].blocks[0].operations]:
        if operation.operation.name != "arith.constant":
            continue
        with mlir.ir.InsertionPoint(operation):
            constant = stablehlo.ConstantOp(
                operation.operation.attributes["value"], loc=operation.location
            )
        operation.operation.results[0].replace_all_uses_with(constant.result)
        operation.operation.erase()


def _check_types(function: Any, inputs: Any, results: list[Any]) -> None:
    kind = mlir.ir.FunctionType(function.type)
    for what, have, want in (
        ("inputs", [str(t) for t in kind.inputs], [str(x.type) for x in inputs]),
        ("results", [str(t) for t in kind.results], [str(t) for t in results]),
    ):
        if have != want:
            raise LoweringError(
                f"the front end's module has {what} {', '.join(have)}; PyTorch says "
                f"{', '.join(want)}"
            )


mlir.register_lowering(_call, _lower)


def call(text: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> list[Any]:
    """The results of a module's function; ``outputs`` are their dtypes and shapes (``Array``)."""
    results = tuple((o.shape, np.dtype(np_dtype(o.dtype))) for o in outputs)
    return _call.bind(*inputs, text=text, results=results)
