"""Writes src/torch_neuronx/compiler/overloads.json from the lowering table and torch's schemas.

One row for each overload that gets a kernel on the device: the functional overload of a rule, and
the in-place and out= overloads that share it. No kernel, but a row of kind "graph" (the rule serves
compiled graphs), is for views (metadata in eager), overloads
that take a device (factories are composed of empty and in-place operators), and whatever PyTorch
composes of other operators with their own derivatives (CompositeImplicitAutograd).

    python tools/generate_overloads.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from torch_neuronx.lowering import table

PATH = Path(__file__).resolve().parent.parent / "src/torch_neuronx/compiler/overloads.json"

# Functional forms that are not found by dropping the underscore.
RENAMED = {
    "aten::conj_physical_": "aten::_conj_physical",
    "aten::floor_divide_.Tensor": "aten::floor_divide",
    "aten::normal_": "aten::normal_functional",
    "aten::pow_.Scalar": "aten::pow.Tensor_Scalar",
    "aten::pow_.Tensor": "aten::pow.Tensor_Tensor",
    "aten::bernoulli_.float": "aten::bernoulli.p",
    "aten::bernoulli_.Tensor": "aten::bernoulli.Tensor",
    "aten::random_.from": "aten::random.from",
    "aten::__ilshift__.Scalar": "aten::__lshift__.Scalar",
    "aten::__ilshift__.Tensor": "aten::__lshift__.Tensor",
    "aten::__irshift__.Scalar": "aten::__rshift__.Scalar",
    "aten::__irshift__.Tensor": "aten::__rshift__.Tensor",
}
# Functional forms of out= overloads that are called something else.
RENAMED_OUT = {
    "aten::adaptive_avg_pool2d.out": "aten::_adaptive_avg_pool2d",
    "aten::adaptive_avg_pool3d.out": "aten::_adaptive_avg_pool3d",
    "aten::adaptive_avg_pool3d_backward.grad_input": "aten::_adaptive_avg_pool3d_backward",
    "aten::conj_physical.out": "aten::_conj_physical",
    "aten::range.out": "aten::range.step",
}
FACTORY_OPTIONS = {"dtype", "layout", "device", "pin_memory"}
# Kernels of ours in C++: they call the rule themselves or need none. And as_strided's copies, which
# PyTorch composes of the view itself: a rule sees no storage, whose offset they count from.
OWN = {
    "aten::_embedding_bag_backward",
    "aten::_fused_moving_avg_obs_fq_helper.out",
    "aten::_index_put_impl_",
    "aten::_local_scalar_dense",
    "aten::_to_copy",
    "aten::_unsafe_view",  # PyTorch's own is a view, which kron's out= form writes through
    "aten::arange.out",  # PyTorch's own calls arange.start_out
    "aten::as_strided_copy",
    "aten::as_strided_copy.out",
    "aten::as_strided_scatter",
    "aten::as_strided_scatter.out",
    "aten::bernoulli.out",
    "aten::copy",
    "aten::copy.out",
    "aten::equal",
    "aten::index.Tensor_out",
    "aten::index_put",
    "aten::masked_select",
    "aten::masked_select.out",
    "aten::nonzero",
    "aten::nonzero.out",
    "aten::range.out_",  # PyTorch's own calls range.out
}
# Modules of rules that compile together about as fast as one of them alone.
LIGHT = {"activation", "compare", "copies", "create", "pointwise", "unary", "views"}
# Rules in them that reduce, or loop.
HEAVY = ("softmax", "igamma", "zeta", "polygamma")
# Rules that C++ kernels call (csrc/torch/dispatch/: composed, copies, dynamic, observer, arange,
# nested).
INTERNAL = {
    "aten::_foreach_copy_",
    "aten::_fused_moving_avg_obs_fq_helper",
    "aten::_padded_dense_to_jagged_forward",
    "aten::arange.start_out",
    "aten::copy_",
    "aten::index.Tensor",
    "aten::index_put_",
    "aten::range.out",
    "aten::repeat_interleave.Tensor",
}


def schemas() -> dict[str, Any]:
    """All schemas of PyTorch and our own, by full name."""
    result = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(("aten::", "neuron::")):
            name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
            result[name] = schema
    return result


def is_view(schema: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def takes(schema: Any, kind: str) -> bool:
    return any(kind in str(a.type) for a in schema.arguments)


def dispatched(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def eligible(name: str, schema: Any) -> bool:
    """Whether a kernel of ours belongs there."""
    return (
        name not in OWN
        and not is_view(schema)
        and not takes(schema, "Device")
        and takes(schema, "Tensor")
        and not dispatched(name, "CompositeImplicitAutograd")
    )


def arguments(schema: Any) -> list[tuple[str, str]]:
    """Names and types of the arguments that a call reads: not ``out``, nor where and as what a
    factory creates its result, which an out= argument says already."""
    factory = takes(schema, "Device")
    return [
        (a.name, str(a.type))
        for a in schema.arguments
        if not is_out(a) and not (factory and a.name in FACTORY_OPTIONS)
    ]


def is_out(argument: Any) -> bool:
    return bool(argument.is_out)


def policies(schema: Any, rule: table.Rule, operands: frozenset[str]) -> list[str]:
    """``operands``: the rule's integers that are operands."""
    result = []
    for a in schema.arguments:
        kind = str(a.type).removeprefix("Optional[").rstrip("]")
        number = "number" in kind or kind == "float"
        if a.name in operands:
            result.append("operand")
        elif not number or a.name in rule.static:
            result.append("static")
        elif a.name in rule.static_one:
            result.append("static_one")
        else:
            result.append("wide" if rule.exact else "operand")
    while result and result[-1] == "static":
        result.pop()
    return result


def row(name: str, kind: str, schema: Any, rule: table.Rule) -> dict[str, Any]:
    result: dict[str, Any] = {"name": name}
    if kind != "functional":
        result["kind"] = kind
    if name != rule.overload:
        result["base"] = rule.overload
    listed = policies(schema, rule, rule.operand) if kind != "graph" else []
    in_graphs = policies(schema, rule, rule.operand | rule.graph_operand)
    if listed:
        result["policies"] = listed
    if in_graphs != listed and kind in ("functional", "graph"):
        result["graph_policies"] = in_graphs
    if "rng" in rule.wants:
        result["rng"] = True
    if "checks" in rule.wants:
        result["checks"] = True
    module = rule.function.__module__.split(".")[-1]
    heavy = rule.wants & {"checks", "rng"} or any(word in rule.overload for word in HEAVY)
    if module in LIGHT and not heavy:
        result["light"] = True
    if rule.exact:
        result["exact"] = True
    if rule.mutates:
        result["mutates"] = list(rule.mutates)
    if name in INTERNAL:
        result["internal"] = True
    return result


def rows() -> list[dict[str, Any]]:
    """All rows, sorted by name."""
    known = schemas()
    by_packet: dict[str, list[str]] = {}
    for name in known:
        by_packet.setdefault(name.split(".")[0], []).append(name)
    renamed = {base: name for name, base in RENAMED.items()}
    outs_of: dict[str, list[str]] = {}
    for name, base in RENAMED_OUT.items():
        outs_of.setdefault(base, []).append(name)
    result: dict[str, dict[str, Any]] = {}
    unknown = []
    for base, rule in sorted(table.load_rules().items()):
        schema = known.get(base)
        if schema is None:
            unknown.append(base)
            continue
        kind = "functional" if eligible(base, schema) else "graph"
        result[base] = row(base, kind, schema, rule)
        packet, _, overload = base.partition(".")
        inplace = renamed.get(base, packet + "_" + (f".{overload}" if overload else ""))
        if (
            RENAMED.get(inplace, base) == base
            and inplace in known
            and not is_view(schema)  # squeeze_ and its like change metadata alone
            and eligible(inplace, known[inplace])
        ):
            result[inplace] = row(inplace, "inplace", known[inplace], rule)
        wanted = arguments(schema)
        for name in by_packet.get(packet, []) + outs_of.get(base, []):
            other = known[name]
            outs = [a for a in other.arguments if is_out(a)]
            if outs and arguments(other) == wanted and eligible(name, other):
                result.setdefault(name, row(name, "out", other, rule))
    if unknown:
        raise SystemExit(f"rules for overloads that torch does not have: {', '.join(unknown)}")
    return [result[name] for name in sorted(result)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the file is not up to date")
    options = parser.parse_args()
    text = "[\n" + ",\n".join(json.dumps(r) for r in rows()) + "\n]\n"
    if options.check:
        if not PATH.exists() or PATH.read_text() != text:
            print(f"{PATH.name} is stale: run python tools/generate_overloads.py", file=sys.stderr)
            return 1
        return 0
    PATH.write_text(text)
    print(f"{text.count('name')} overloads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
