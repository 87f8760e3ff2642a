"""Which custom kernel a line is part of: one kernel has a definition, imports and uses."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from neuron_readiness.inventory.hit import NOT_SEEN
from neuron_readiness.inventory.values import Values

KINDS = ("triton", "nki", "extension", "custom-operator", "cuda-library")


class Kernels:
    """``name(node, kind, resolved)`` of a scanned module."""

    def __init__(self, tree: ast.Module, values: Values) -> None:
        self._values = values
        self._calls = {id(n.func): n for n in ast.walk(tree) if isinstance(n, ast.Call)}
        self._decorates = {
            id(d.func if isinstance(d, ast.Call) else d): n.name
            for n in ast.walk(tree)
            if isinstance(n, (ast.FunctionDef, ast.ClassDef))
            for d in n.decorator_list
        }

    def name(self, node: ast.AST, kind: str, resolved: str) -> str:
        """``ns::operator``, ``ns::`` of a whole library, the function that a decorator makes a
        kernel of, an extension's name, or a package; "" where the line does not say."""
        if kind == "cuda-library":
            return resolved.split(".")[0]
        if resolved.startswith("torch.ops."):
            return "::".join(resolved.split(".")[2:4])
        if kind == "custom-operator":
            given = self._argument(node, ("name", "ns"))
            return f"{given}::" if given and resolved.endswith(".Library") else given
        if kind == "extension":
            return self._argument(node, ("name",))
        return self._decorates.get(id(node), "") if kind in ("triton", "nki") else ""

    def _argument(self, node: ast.AST, keywords: tuple[str, ...]) -> str:
        call = self._calls.get(id(node))
        if call is None:
            return ""
        given = [k.value for k in call.keywords if k.arg in keywords]
        texts = {v.text for a in (given or call.args)[:1] for v in self._values.of(a)}
        return texts.pop() if len(texts) == 1 else ""


def in_source(
    hits: Iterable[dict[str, Any]], reached: Iterable[str]
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Kernels that source names and no case reached: (name, the first of its hits, whether one of
    its lines may have run), each once. ``reached``: overloads, ``ns::operator`` or
    ``ns::operator.overload``."""
    hits = [h for h in hits if h["kind"] in KINDS]
    named = {h["kind"] for h in hits if h["kernel"]}
    ran = {overload.rpartition(".")[0] or overload for overload in reached}
    operators = ran | {h["kernel"] for h in hits if not h["kernel"].endswith("::")}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for hit in hits:
        kernel = hit["kernel"]
        if kernel in ran:
            continue
        if kernel.endswith("::") and any(o.startswith(kernel) for o in operators):
            continue  # its operators count one by one
        if not kernel and hit["kind"] in named:
            continue  # an import, or a line within a kernel that counts
        # Without a name all lines of a kind in a file are one.
        found.setdefault((hit["kind"], kernel or hit["file"]), []).append(hit)
    for lines in found.values():
        hit = lines[0]
        place = f"{hit['file'].rsplit('/', 1)[-1]}:{hit['line']}"
        name = f"{hit['kernel'] or hit['text']} ({hit['kind']}) at {place}"
        yield name, hit, any(h.get("reach") != NOT_SEEN for h in lines)
