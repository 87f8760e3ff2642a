"""From a part to StableHLO through Torch-MLIR. Runs in its process only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras.fx_decomp_util import get_decomposition_table
from torch_mlir.extras.fx_importer import FxImporter, FxImporterHooks, create_mlir_tensor_type
from torch_mlir.ir import Context, DenseElementsAttr, Operation, Value
from torch_mlir.passmanager import PassManager

from torch_neuronx.frontend.parts import Part
from torch_neuronx.lowering import program as ir
from torch_neuronx.lowering.errors import LoweringError

_PIPELINES = (
    "builtin.module(torchdynamo-export-to-torch-backend-pipeline{extra-library=})",
    "builtin.module(torch-backend-to-stablehlo-backend-pipeline{allow-non-finites=true})",
)
# The file that operators come from, for Torch-MLIR's locations; the line is the node's number.
_FILE = "node"


def lower(part: Part) -> str:
    """The text of a module with one function.

    Raises:
        LoweringError: names operator and node.
    """
    gm = _trace(part)
    context = Context()
    torch_dialect.register_dialect(context)
    importer = FxImporter(context=context, hooks=_Literals())
    try:
        importer.import_stateless_graph(gm.graph, func_name="main")
    except Exception as error:
        raise _refusal(part, f"{type(error).__name__}: {error}", None) from error
    module = importer.module
    said: list[tuple[str, str]] = []  # location and message

    def note(diagnostic: Any) -> bool:
        # What follows the message is the operation, which may hold whole constants.
        said.append((str(diagnostic.location), diagnostic.message.splitlines()[0].split(": %")[0]))
        return True

    handler = context.attach_diagnostic_handler(note)
    # Passes may complain without failing, which would leave operations that nobody lowers.
    context.emit_error_diagnostics = True
    try:
        for pipeline in _PIPELINES:
            with context:
                PassManager.parse(pipeline).run(module.operation)
    except Exception as error:
        text = said[0][1] if said else str(error)
        raise _refusal(part, text, _located(said)) from error
    finally:
        handler.detach()
    _check(part, module)
    return str(module.operation.get_asm(enable_debug_info=False))


class _Literals(FxImporterHooks):  # type: ignore[misc]
    """Tensors in a graph as constants that hold their elements.

    Torch-MLIR's own are resources beside the module, which portable artifacts do not carry.
    """

    def resolve_literal(self, gni: Any, literal: Any, info: Any) -> Value | None:
        """A constant for a tensor; anything else is left to Torch-MLIR."""
        if not isinstance(literal, torch.Tensor):
            return None
        name = str(literal.dtype).removeprefix("torch.")
        array = numpy.array(literal.tolist(), dtype=getattr(ml_dtypes, name, name))
        kind = create_mlir_tensor_type(literal)
        elements = DenseElementsAttr.get(
            array.reshape(literal.shape), type=kind.element_type, shape=kind.shape
        )
        return Operation.create(
            name="torch.vtensor.literal",
            results=[gni._cc.tensor_to_vtensor_type(literal)],
            attributes={"value": elements},
        ).result


def _trace(part: Part) -> GraphModule:
    """A part as an FX graph, decomposed to what Torch-MLIR takes."""
    nodes, numbers = part.function.nodes, part.numbers

    def function(*inputs: Any) -> list[Any]:
        values: list[tuple[Any, ...]] = []

        def resolve(ref: Any) -> Any:
            if isinstance(ref, ir.Result):
                return values[ref.node][ref.output]
            if isinstance(ref, ir.Input):
                return inputs[ref.index]
            if isinstance(ref, ir.Constant):
                return ref.value
            return [resolve(r) for r in ref]

        for node, number in zip(nodes, numbers, strict=True):
            fx_traceback.set_stack_trace([f'  File "{_FILE}", line {number}, in graph'])
            try:
                values.append(_run(node, [resolve(a) for a in node.args]))
            except Exception as error:
                raise LoweringError(
                    f"{node.op} (node {number}): {type(error).__name__}: {error}"
                ) from error
        return [resolve(r) for r in part.function.results]

    with FakeTensorMode() as mode, fx_traceback.preserve_node_meta():
        inputs = [torch.empty(a.shape, dtype=getattr(torch, a.dtype)) for a in part.inputs]
        gm = make_fx(function, decomposition_table=get_decomposition_table())(*inputs)
        assert mode is not None
    gm.graph.eliminate_dead_code()
    return gm


def _run(node: ir.Node, args: list[Any]) -> tuple[Any, ...]:
    """An operator's results, on fake tensors."""
    name = node.op
    # The strides of intermediate values are not known here: all are taken to be row-major.
    if name in ("aten::view", "aten::_unsafe_view"):
        name = "aten::reshape"
    if name in ("aten::slice.Tensor", "aten::slice_scatter"):
        _clamp_end(args)
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    positional, keywords = [], {}
    for argument, value in zip(operator._schema.arguments, args, strict=False):
        if "ScalarType" in str(argument.real_type) and isinstance(value, str):
            value = getattr(torch, value)
        elif str(argument.real_type) == "Device" and value is None:
            value = torch.device("cpu")
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional.append(value)
    return tuple(_flatten(operator(*positional, **keywords)))


def _clamp_end(args: list[Any]) -> None:
    """Open ends are the largest integer, of which Torch-MLIR makes as many indices."""
    *_, dim, _, end, _ = args
    if end is not None:
        args[-2] = min(end, args[0].shape[dim])


def _flatten(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    elif value is not None:
        yield value


def _check(part: Part, module: Any) -> None:
    """Refuse what the pipelines left in other dialects; constants have a counterpart."""
    (function,) = module.body.operations
    for operation in function.regions[0].blocks[0].operations:
        name = operation.operation.name
        tensors = all(str(r.type).startswith("tensor") for r in operation.operation.results)
        if not (name.startswith(("stablehlo.", "chlo.", "func.")) or
                (name == "arith.constant" and tensors)):  # fmt: skip
            where = _located([(str(operation.location), "")])
            raise _refusal(part, f"it becomes {name}, which is not StableHLO", where)


def _located(said: list[tuple[str, str]]) -> int | None:
    """The number of the node of the first diagnostic that has one."""
    for location, _ in said:
        found = re.search(rf'"{_FILE}":(\d+)', location)
        if found:
            return int(found[1])
    return None


def _refusal(part: Part, text: str, number: int | None) -> LoweringError:
    """The error for a part; without a number, that of the first node that fails alone."""
    nodes = part.function.nodes
    if number is not None:
        return LoweringError(f"{nodes[part.numbers.index(number)].op} (node {number}): {text}")
    if len(nodes) == 1:
        return LoweringError(f"{nodes[0].op} (node {part.numbers[0]}): {text}")
    for i in range(len(nodes)):
        try:
            lower(part.alone(i))
        except LoweringError as error:
            return error
    return LoweringError(f"a graph of {len(nodes)} operators: {text}")
