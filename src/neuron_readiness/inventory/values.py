"""Which strings an expression may be: constants followed from where they are written to their use.

Flow is not followed: a name may have every value that it is given anywhere in its scope, so that
both sides of ``"cuda" if torch.cuda.is_available() else "cpu"`` are found, and a value that only
passes through a variable, a parameter's default, an attribute or a table of settings is found too.
"""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from neuron_readiness.inventory.names import Names

_LOOKUPS = ("get", "pop", "setdefault", "getenv")  # lookup(key, default)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclasses.dataclass(frozen=True)
class Value:
    """A string and where it is written. ``holder``: what holds it there (``D = 'cuda'``), "" for a
    literal that stands in the expression itself."""

    text: str
    file: str
    line: int
    holder: str = ""


class Values:
    """Strings of a module's expressions."""

    def __init__(self, tree: ast.Module, path: Path, names: Names) -> None:
        self._path, self._names = path, names
        self._scope: dict[int, ast.AST] = {}  # a node's innermost function or class, else module
        self._outer: dict[int, ast.AST] = {}
        self._given: dict[tuple[int, str], list[ast.expr]] = defaultdict(list)
        self._attributes: dict[str, list[ast.expr]] = defaultdict(list)
        self._entries: dict[tuple[str, str], list[ast.expr]] = defaultdict(list)
        self._module = tree
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = defaultdict(list)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions[node.name].append(node)
        self._enter(tree, tree)

    def of(self, node: ast.expr) -> list[Value]:
        """Every string that ``node`` may be; nothing where it is not a matter of literals."""
        return list(dict.fromkeys(self._of(node, "", set())))

    def given(self, node: ast.expr) -> list[ast.expr]:
        """Every expression that a name is given in its scope; nothing for what is no name."""
        return self._held(node)[1] if isinstance(node, ast.Name) else []

    def module_level(self, name: str) -> list[Value]:
        """Values of a name that another file imports from this one."""
        return [
            value
            for given in self._given[id(self._module), name]
            for value in self._of(given, name, set())
        ]

    def parameters(self) -> Iterator[tuple[str, ast.expr]]:
        """Parameters of functions with their defaults."""
        for node in ast.walk(self._module):
            if isinstance(node, Function):
                yield from _defaults(node.args)

    # -- where names get their values

    def _enter(self, node: ast.AST, scope: ast.AST) -> None:
        self._scope[id(node)] = scope
        inner = scope
        if isinstance(node, Function | ast.ClassDef):
            inner = node
            # A function's names are not looked up in the class around it.
            self._outer[id(node)] = self._module if isinstance(scope, ast.ClassDef) else scope
            if not isinstance(node, ast.ClassDef):
                for name, default in _defaults(node.args):
                    self._given[id(node), name].append(default)
        self._assigned(node, scope)
        for child in ast.iter_child_nodes(node):
            self._enter(child, inner)

    def _assigned(self, node: ast.AST, scope: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, scope)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._bind(node.target, node.value, scope)
        elif isinstance(node, ast.Call):
            self._pass(node)
            option = _option(node)
            if option is not None:
                self._attributes[option[0]].append(option[1])

    def _bind(self, target: ast.expr, value: ast.expr, scope: ast.AST) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(one, its, scope)
        elif isinstance(target, ast.Name):
            self._given[id(scope), target.id].append(value)
            if isinstance(scope, ast.ClassDef):  # also reached as an attribute
                self._attributes[target.id].append(value)
            if isinstance(value, ast.Dict):
                for key, entry in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant):
                        self._entries[target.id, str(key.value)].append(entry)
        elif isinstance(target, ast.Attribute):
            self._attributes[target.attr].append(value)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            index = target.slice.value if isinstance(target.slice, ast.Constant) else ""
            self._entries[target.value.id, str(index)].append(value)

    def _pass(self, call: ast.Call) -> None:
        """Arguments of a call to a function of this file are values of its parameters."""
        function = call.func
        method = isinstance(function, ast.Attribute)
        name = function.attr if isinstance(function, ast.Attribute) else ""
        if isinstance(function, ast.Name):
            name = function.id
        for called in self._functions.get(name, []):
            names = [a.arg for a in (*called.args.posonlyargs, *called.args.args)]
            if method and names[:1] in (["self"], ["cls"]):
                names = names[1:]
            for parameter, value in zip(names, call.args, strict=False):
                self._given[id(called), parameter].append(value)
            for keyword in call.keywords:
                if keyword.arg is not None:
                    self._given[id(called), keyword.arg].append(keyword.value)

    # -- what an expression may be

    def _of(self, node: ast.expr, holder: str, seen: set[int]) -> Iterator[Value]:
        """``seen``: expressions that were looked at, so that each is once, however names lead in
        circles."""
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Value(node.value, str(self._path), node.lineno, holder)
        elif isinstance(node, ast.JoinedStr) and node.values:
            first = node.values[0]
            value = first.value if isinstance(first, ast.FormattedValue) else first
            yield from self._of(value, holder, seen)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
            yield from self._of(node.left, holder, seen)
        elif isinstance(node, ast.IfExp):
            yield from self._of(node.body, holder, seen)
            yield from self._of(node.orelse, holder, seen)
        elif isinstance(node, ast.BoolOp):
            for part in node.values:
                yield from self._of(part, holder, seen)
        elif isinstance(node, ast.NamedExpr):
            yield from self._of(node.value, holder, seen)
        elif isinstance(node, ast.Call):
            yield from self._call(node, holder, seen)
        else:
            name, found = self._held(node)
            for given in found:
                yield from self._of(given, name, seen)
            if not found:
                yield from self._imported(node, name)

    def _call(self, node: ast.Call, holder: str, seen: set[int]) -> Iterator[Value]:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        if isinstance(function, ast.Name):
            name = function.id
        if name == "format" and isinstance(function, ast.Attribute):
            yield from self._of(function.value, holder, seen)
        elif name == "str" and node.args:
            yield from self._of(node.args[0], holder, seen)
        elif name in _LOOKUPS and len(node.args) > 1:
            yield from self._of(node.args[1], holder, seen)

    def _held(self, node: ast.expr) -> tuple[str, list[ast.expr]]:
        """What holds a value, as it is written, and the values that it is given."""
        if isinstance(node, ast.Name):
            scope: ast.AST | None = self._scope.get(id(node), self._module)
            while scope is not None:
                if given := self._given.get((id(scope), node.id)):
                    return node.id, given
                scope = self._outer.get(id(scope))
            return node.id, []
        if isinstance(node, ast.Attribute):
            if self._names.resolve(node) is None:
                return node.attr, self._attributes.get(node.attr, [])
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = str(node.slice.value)
            if isinstance(node.value, ast.Name):
                return f"{node.value.id}[{key!r}]", self._entries.get((node.value.id, key), [])
        return "", []

    def _imported(self, node: ast.expr, name: str) -> Iterator[Value]:
        """A constant of a module in the file's own folder."""
        dotted = self._names.resolve(node)
        if not dotted or "." not in dotted:
            return
        module, _, name = dotted.lstrip(".").rpartition(".")
        place = self._path.parent.joinpath(*module.split(".")) if module else self._path.parent
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file() and path != self._path and (other := of_file(path)) is not None:
                yield from other.module_level(name)
                return


@cache
def of_file(path: Path) -> Values | None:
    """Values of a file, or None if it is no Python."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return None
    return Values(tree, path, Names(tree))


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    if arguments.defaults:
        last = positional[-len(arguments.defaults) :]
        yield from ((a.arg, d) for a, d in zip(last, arguments.defaults, strict=True))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


def _option(node: ast.Call) -> tuple[str, ast.expr] | None:
    """``add_argument("--device", default="cuda")``: the attribute it fills, and its default."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return None
    flags = [a.value for a in node.args if isinstance(a, ast.Constant)]
    given = {k.arg: k.value for k in node.keywords}
    default = given.get("default")
    if default is None or not flags:
        return None
    long = next((f for f in flags if str(f).startswith("--")), flags[0])
    named = given.get("dest")
    name = named.value if isinstance(named, ast.Constant) else long
    return str(name).lstrip("-").replace("-", "_"), default
