"""The static inventory: reads files, never runs them. Comments and plain strings are no hits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from neuron_readiness.inventory import rules
from neuron_readiness.inventory.hit import Hit
from neuron_readiness.inventory.names import Names

_DEVICES = ("cuda", "mps", "xpu", "hip", "xla", "hpu", "npu")
# Calls whose string argument is a device; anything else may say "cuda" and mean a word.
_TAKE_DEVICE = {
    "to",
    "device",
    "set_default_device",
    "empty_cache",
    "Generator",
    "get_device_module",
}
_COLLECTIVE = {"nccl", "rccl", "xla", "hccl"}
# Reductions that give one value: `if x.sum() > 0`.
_TO_VALUE = {
    "any",
    "all",
    "sum",
    "max",
    "min",
    "mean",
    "item",
    "isnan",
    "equal",
    "allclose",
    "norm",
}


def scan(path: Path, target: str) -> list[Hit]:
    """Hits of a Python file, in order. ``target``: kind of device that it is to run on; what names
    that very device is no hit. A file that does not parse is one hit that says so."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        line = getattr(error, "lineno", 0) or 0
        why = f"the file cannot be read as Python: {error}"
        return [Hit(str(path), line, "unreadable", why, "", None, "check this file by hand")]
    found = set(_Scanner(tree, str(path), target).hits())
    return sorted(found, key=lambda h: (h.line, h.kind, h.text))


class _Scanner:
    def __init__(self, tree: ast.Module, file: str, target: str) -> None:
        self._tree = tree
        self._file = file
        self._target = target
        self._names = Names(tree)
        self._inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}

    def hits(self) -> Iterator[Hit]:
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self._import(node)
            elif isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in self._inner:
                yield from self._name(node)
            if isinstance(node, ast.Call):
                yield from self._call(node)
            elif isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
                yield from self._branch(node)

    def _hit(self, node: ast.AST, rule: rules.Rule, text: str) -> Hit:
        supported = rule.supported
        if self._target == "cuda" and ("CUDA" in rule.assumes or "cuda" in rule.kind):
            supported = True
        line = getattr(node, "lineno", 0)
        return Hit(self._file, line, rule.kind, text, rule.assumes, supported, rule.suggestion)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Hit]:
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            base = node.module or ""
            names = [] if node.level else [f"{base}.{a.name}" for a in node.names]
        for name in names:
            rule = _longest(name)
            # Dtypes and functions of torch count where they are used.
            if rule is not None and (not name.startswith("torch.") or name.count(".") > 1):
                yield self._hit(node, rule, f"import {name}")

    def _name(self, node: ast.Attribute | ast.Name) -> Iterator[Hit]:
        name = self._names.resolve(node)
        rule = _longest(name) if name else None
        if rule is not None and isinstance(node.ctx, ast.Load):
            yield self._hit(node, rule, str(name))

    def _call(self, node: ast.Call) -> Iterator[Hit]:
        called = self._names.resolve(node.func) or ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        last = called.rsplit(".", 1)[-1] or method
        own = bool(called)  # a function of a module, not a method of some object
        if not own and method in rules.METHODS and self._fits(node, method):
            yield self._hit(node, rules.METHODS[method], f".{method}()")
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            name = self._names.resolve(node)
            rule = _longest(name) if name else None
            if rule is not None:
                yield self._hit(node, rule, str(name))
        for position, value in enumerate(node.args):
            text = _text(value)
            if text is None:
                continue
            if last == "autocast" and position == 0 and self._foreign(text):
                yield self._hit(value, rules.AMP_STRING, f"autocast({text!r})")
            elif last == "init_process_group" and text.lower() in _COLLECTIVE:
                yield self._hit(value, rules.BACKEND_STRING, f"init_process_group({text!r})")
            elif last in _TAKE_DEVICE and self._foreign(text):
                yield self._hit(value, rules.DEVICE_STRING, f"{last}({text!r})")
        yield from self._keywords(node, last)

    def _keywords(self, node: ast.Call, last: str) -> Iterator[Hit]:
        for keyword in node.keywords:
            text = _text(keyword.value)
            name = keyword.arg or ""
            if name in ("device", "map_location") and text and self._foreign(text):
                yield self._hit(keyword.value, rules.DEVICE_STRING, f"{name}={text!r}")
            elif name == "device_type" and text and self._foreign(text):
                yield self._hit(keyword.value, rules.AMP_STRING, f"{name}={text!r}")
            elif name == "backend" and text and text.lower() in _COLLECTIVE:
                yield self._hit(keyword.value, rules.BACKEND_STRING, f"backend={text!r}")
            elif name == "dtype" and text in ("float64", "double"):
                yield self._hit(keyword.value, rules.NAMES["torch.float64"], f"dtype={text!r}")
            elif name in rules.ARGUMENTS and _truthy(keyword.value):
                yield self._hit(keyword.value, rules.ARGUMENTS[name], f"{name}=...")

    def _fits(self, node: ast.Call, method: str) -> bool:
        """``.numpy()`` and the like take no positional argument where they belong to a tensor;
        after ``.cpu()`` a read has been brought to the host on purpose."""
        if method in ("numpy", "item", "tolist", "nonzero", "double", "pin_memory") and node.args:
            return False
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        if method in ("numpy", "tolist") and isinstance(receiver, ast.Call):
            before = receiver.func
            return not (isinstance(before, ast.Attribute) and before.attr == "cpu")
        return True

    def _foreign(self, text: str) -> bool:
        kind = text.split(":")[0].lower()
        return kind in _DEVICES and kind != self._target

    def _branch(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> Iterator[Hit]:
        for part in ast.walk(node.test):
            if not isinstance(part, ast.Call):
                continue
            name = self._names.resolve(part.func) or ""
            method = part.func.attr if isinstance(part.func, ast.Attribute) else ""
            of_torch = name.startswith("torch.") and name.rsplit(".", 1)[-1] in _TO_VALUE
            of_tensor = not name and method in _TO_VALUE and not part.args
            if of_torch or of_tensor:
                yield self._hit(node, rules.BRANCH, ast.unparse(node.test)[:80])
                return


def _longest(name: str) -> rules.Rule | None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        rule = rules.NAMES.get(".".join(parts[:end]))
        if rule is not None:
            return rule
    return None


def _text(node: ast.AST) -> str | None:
    """A literal string, or the literal beginning of an f-string (f"cuda:{rank}")."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr) and node.values:
        return _text(node.values[0])
    return None


def _truthy(node: ast.AST) -> bool:
    return not (isinstance(node, ast.Constant) and not node.value)
