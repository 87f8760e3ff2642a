"""The static inventory: reads files, never runs them. Comments and plain strings are no hits."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from neuron_readiness.inventory import rules
from neuron_readiness.inventory.hit import Hit
from neuron_readiness.inventory.kernels import Kernels
from neuron_readiness.inventory.names import Names
from neuron_readiness.inventory.values import Value, Values

_DEVICES = ("cuda", "mps", "xpu", "hip", "xla", "hpu", "npu")
# Calls whose string argument is a device; anything else may say "cuda" and mean a word.
_TAKE_DEVICE = {
    "to",
    "device",
    "set_default_device",
    "empty_cache",
    "Generator",
    "get_device_module",
    "to_empty",
    "init_device_mesh",
}
_TAKE_AMP = {"autocast", "GradScaler", "get_autocast_dtype", "is_autocast_enabled"}
_DEVICE_ARGUMENTS = ("device", "map_location", "torch_device")
# Backends of collectives, with the devices that each moves data of.
_COLLECTIVE = {"nccl": ("cuda",), "rccl": ("cuda",), "xla": ("xla",), "hccl": ("hpu",)}
# Backends of torch.compile, with the devices that each makes code for.
_COMPILERS = {
    "inductor": ("cpu", "cuda", "xpu", "mps"),
    "cudagraphs": ("cuda",),
    "tensorrt": ("cuda",),
    "torch_tensorrt": ("cuda",),
    "onnxrt": ("cpu", "cuda"),
    "openxla": ("xla",),
    "neuron": ("neuron",),
    "hpu_backend": ("hpu",),
}
_VARIABLES = ("CUDA_", "NCCL_", "TORCH_NCCL_", "TORCH_CUDA_", "NVIDIA_", "HIP_", "ROCR_", "XLA_")
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
    found = set(_Scanner(tree, path, target).hits())
    return sorted(found, key=lambda h: (h.file, h.line, h.kind, h.text))


@dataclasses.dataclass
class _Held:
    """A string that reaches its uses through a name: reported where it is written, once."""

    rule: rules.Rule
    lines: set[int] = dataclasses.field(default_factory=set)


class _Scanner:
    def __init__(self, tree: ast.Module, path: Path, target: str) -> None:
        self._tree = tree
        self._file = str(path)
        self._target = target
        self._names = Names(tree)
        self._values = Values(tree, path, self._names)
        self._kernels = Kernels(tree, self._values)
        self._held: dict[Value, _Held] = {}
        self._defined = {
            node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }
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
            elif isinstance(node, ast.Compare):
                yield from self._compare(node)
            elif isinstance(node, ast.Subscript):
                yield from self._variable(node, self._names.resolve(node.value), node.slice)
                if self._masks(node):
                    yield self._hit(node, rules.MASK, ast.unparse(node)[:60])
        for name, default in self._values.parameters():
            if name in _DEVICE_ARGUMENTS:  # one that nobody uses is still offered to callers
                for value in self._values.of(default):
                    if self._foreign(value.text):
                        value = dataclasses.replace(value, holder=value.holder or name)
                        self._held.setdefault(value, _Held(rules.DEVICE_STRING))
        yield from self._through_names()

    def _hit(self, node: ast.AST, rule: rules.Rule, text: str) -> Hit:
        return self._made(self._file, getattr(node, "lineno", 0), rule, text)

    def _kernel(self, node: ast.AST, rule: rules.Rule, name: str, text: str) -> Hit:
        kernel = self._kernels.name(node, rule.kind, name)
        return dataclasses.replace(self._hit(node, rule, text), kernel=kernel)

    def _made(
        self, file: str, line: int, rule: rules.Rule, text: str, used: tuple[str, ...] = ()
    ) -> Hit:
        supported = True if self._target in rule.home else rule.supported
        return Hit(file, line, rule.kind, text, rule.assumes, supported, rule.suggestion, used)

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
                yield self._kernel(node, rule, name, f"import {name}")

    def _name(self, node: ast.Attribute | ast.Name) -> Iterator[Hit]:
        name = self._names.resolve(node)
        rule = _longest(name) if name else None
        # `torch.backends.cudnn.benchmark = True` uses the name; `cuda = torch.cuda` defines one.
        if rule is not None and (isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load)):
            yield self._kernel(node, rule, str(name), str(name))
        elif name and name.startswith("torch.ops.") and name.count(".") > 2:
            if name.split(".")[2] not in ("aten", "prims", "prim", "c10d", "_c10d_functional"):
                yield self._kernel(node, rules.CUSTOM_OPERATOR, name, name)
        elif (
            isinstance(node, ast.Attribute)
            and node.attr == "is_cuda"
            and name is None
            and self._target != "cuda"
        ):
            yield self._hit(node, rules.DEVICE_BRANCH, ".is_cuda")

    def _call(self, node: ast.Call) -> Iterator[Hit]:
        called = self._names.resolve(node.func) or ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        last = called.rsplit(".", 1)[-1] or method
        own = bool(called)  # a function of a module, not a method of some object
        for receiver, name in self._methods(node.func) if not own else []:
            if name in rules.METHODS and self._fits(node, name, receiver):
                yield self._hit(node, rules.METHODS[name], f".{name}()")
                break
        if isinstance(node.func, ast.Name):
            yield from self._builtin(node, node.func.id)
        if called == "torch.compile" or (last == "compile" and method and not own):
            yield from self._compile(node, called)
        if called == "torch.where" and len(node.args) == 1 and not node.keywords:
            yield self._hit(node, rules.NAMES["torch.nonzero"], "torch.where(condition)")
        if called in ("os.getenv", "os.environ.get", "os.environ.setdefault", "os.environ.pop"):
            yield from self._variable(node, "os.environ", node.args[0] if node.args else None)
        for position, value in enumerate(node.args):
            if last in _TAKE_AMP and position == 0:
                yield from self._devices(value, f"{last}(", rules.AMP_STRING)
            elif last == "init_process_group":
                yield from self._collectives(value, "init_process_group(")
            elif last in ("type", "set_default_tensor_type"):
                yield from self._tensor_type(value, last)
            elif last in _TAKE_DEVICE:
                yield from self._devices(value, f"{last}(", rules.DEVICE_STRING)
        yield from self._keywords(node)

    def _builtin(self, node: ast.Call, name: str) -> Iterator[Hit]:
        """``getattr(torch, "cuda")``, and ``int(x.sum())``, which reads a value like ``item``."""
        if name == "getattr":
            dotted = self._names.resolve(node)
            rule = _longest(dotted) if dotted else None
            if rule is not None:
                yield self._hit(node, rule, str(dotted))
        elif name in ("int", "float", "bool") and len(node.args) == 1:
            inner = node.args[0]
            if isinstance(inner, ast.Call) and self._reads(inner):
                yield self._hit(node, rules.METHODS["item"], ast.unparse(node)[:60])

    def _keywords(self, node: ast.Call) -> Iterator[Hit]:
        for keyword in node.keywords:
            name, value = keyword.arg or "", keyword.value
            if name in _DEVICE_ARGUMENTS:
                yield from self._devices(value, f"{name}=", rules.DEVICE_STRING)
            elif name == "device_type":
                yield from self._devices(value, f"{name}=", rules.AMP_STRING)
            elif name == "backend":
                yield from self._collectives(value, "backend=")
            elif name == "dtype":
                for found in self._values.of(value):
                    if found.text in ("float64", "double"):
                        rule = rules.NAMES["torch.float64"]
                        yield from self._found(value, found, rule, f"dtype={found.text!r}")
            elif name in rules.ARGUMENTS and _truthy(value):
                yield self._hit(value, rules.ARGUMENTS[name], f"{name}=...")

    # -- strings that matter where they are used

    def _devices(self, node: ast.expr, use: str, rule: rules.Rule) -> Iterator[Hit]:
        """Foreign devices that ``node`` may be. Together with the CPU they are a choice that ends
        on the host wherever the foreign device is absent."""
        values = self._values.of(node)
        if rule is rules.DEVICE_STRING and any(v.text == "cpu" for v in values):
            rule = rules.DEVICE_CHOICE
        for value in values:
            if self._foreign(value.text):
                yield from self._found(node, value, rule, _shown(use, value.text))

    def _collectives(self, node: ast.expr, use: str) -> Iterator[Hit]:
        for value in self._values.of(node):
            # "cpu:gloo,cuda:nccl" names a backend for each device.
            named = value.text.lower().replace(",", ":").split(":")
            if any(self._target not in _COLLECTIVE.get(n, (self._target,)) for n in named):
                text = _shown(use, value.text)
                yield from self._found(node, value, rules.BACKEND_STRING, text)

    def _tensor_type(self, node: ast.expr, use: str) -> Iterator[Hit]:
        for value in self._values.of(node):
            if value.text.startswith("torch.cuda."):
                text = _shown(f"{use}(", value.text)
                yield from self._found(node, value, rules.DEVICE_STRING, text)

    def _found(self, node: ast.expr, value: Value, rule: rules.Rule, text: str) -> Iterator[Hit]:
        if not value.holder and value.file == self._file:
            yield self._hit(node, rule, text)
        else:
            self._held.setdefault(value, _Held(rule)).lines.add(node.lineno)

    def _through_names(self) -> Iterator[Hit]:
        """Where the change belongs: at the constant, not at each of its uses."""
        for value, held in self._held.items():
            lines = sorted(held.lines)
            place = "" if value.file == self._file else f" of {Path(self._file).name}"
            uses = ", ".join(map(str, lines[:8])) + (", ..." if len(lines) > 8 else "")
            plural = "line" if len(lines) == 1 else "lines"
            text = f"{value.holder} = {value.text!r}"
            text += f", used in {plural} {uses}{place}" if lines else ""
            used = tuple(f"{self._file}:{n}" for n in lines)
            yield self._made(value.file, value.line, held.rule, text, used)

    def _compile(self, node: ast.Call, called: str) -> Iterator[Hit]:
        given = {k.arg: k.value for k in node.keywords}
        backend = given.get("backend")
        of_torch = called == "torch.compile"
        if backend is not None:
            for value in self._values.of(backend):
                devices = _COMPILERS.get(value.text)
                if devices is not None and self._target not in devices:
                    rule = dataclasses.replace(
                        rules.COMPILER, assumes=f"a compiler for {', '.join(devices)}"
                    )
                    text = _shown("backend=", value.text)
                    yield from self._found(backend, value, rule, text)
        elif of_torch and None not in given and self._target not in _COMPILERS["inductor"]:
            yield self._hit(node, rules.COMPILER_DEFAULT, "torch.compile without `backend`")
        for value in self._values.of(given["mode"]) if of_torch and "mode" in given else []:
            if value.text in ("reduce-overhead", "max-autotune") and self._target != "cuda":
                text = _shown("mode=", value.text)
                yield from self._found(given["mode"], value, rules.COMPILE_MODE, text)
        dynamic = given.get("dynamic")
        if of_torch and isinstance(dynamic, ast.Constant) and dynamic.value is True:
            yield self._hit(node, rules.COMPILE_DYNAMIC, "dynamic=True")

    def _variable(self, node: ast.expr, owner: str | None, key: ast.expr | None) -> Iterator[Hit]:
        """``os.environ["CUDA_VISIBLE_DEVICES"]``: settings of one vendor's software."""
        if owner != "os.environ" or key is None or self._target == "cuda":
            return
        for value in self._values.of(key):
            if value.text.startswith(_VARIABLES):
                yield from self._found(node, value, rules.VARIABLE, value.text)

    def _compare(self, node: ast.Compare) -> Iterator[Hit]:
        """``x.device.type == "cuda"``: a way that the target does not take."""
        sides = [node.left, *node.comparators]
        about_device = any(
            isinstance(part, ast.Attribute) and part.attr in ("device", "device_type")
            for side in sides
            for part in ast.walk(side)
        )
        for side in sides if about_device else []:
            for value in self._values.of(side):
                if self._foreign(value.text):
                    text = ast.unparse(node)[:80]
                    yield self._hit(node, rules.DEVICE_BRANCH, text)
                    return

    def _methods(self, function: ast.expr) -> Iterator[tuple[ast.expr, str]]:
        """Receiver and name of a method that is called: ``x.cuda()``, ``getattr(x, "cuda")()``, and
        ``f = x.cuda; f()``."""
        for node in (function, *self._values.given(function)):
            if isinstance(node, ast.Attribute):
                yield node.value, node.attr
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "getattr"
                and len(node.args) > 1
            ):
                yield from ((node.args[0], v.text) for v in self._values.of(node.args[1]))

    def _is_own(self, receiver: ast.expr, method: str) -> bool:
        """Whether a receiver is an object of a class of this file that has such a method itself;
        what the method does is looked at where it is written."""
        made = [receiver] if isinstance(receiver, ast.Call) else self._values.given(receiver)
        return bool(made) and all(
            isinstance(m, ast.Call)
            and isinstance(m.func, ast.Name)
            and method in self._defined.get(m.func.id, ())
            for m in made
        )

    def _fits(self, node: ast.Call, method: str, receiver: ast.expr) -> bool:
        """``.numpy()`` and the like take no positional argument where they belong to a tensor;
        after ``.cpu()`` a read has been brought to the host on purpose."""
        if method in rules.WITHOUT_ARGUMENTS and node.args:
            return False
        if self._is_own(receiver, method):
            return False
        if method in ("numpy", "tolist") and isinstance(receiver, ast.Call):
            before = receiver.func
            return not (isinstance(before, ast.Attribute) and before.attr == "cpu")
        return True

    def _masks(self, node: ast.Subscript) -> bool:
        """``x[x > 0]``, or the same through a name: a comparison of what is indexed picks elements.
        Texts and fields within it (``d["a"] > 0``) are another library's tables."""
        if not isinstance(node.ctx, ast.Load) or not isinstance(node.value, ast.Name):
            return False
        for mask in (node.slice, *self._values.given(node.slice)):
            while isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
                mask = mask.operand
            if isinstance(mask, ast.Compare) and self._compares(mask, node.value.id):
                return True
        return False

    def _compares(self, mask: ast.Compare, name: str) -> bool:
        if isinstance(mask.ops[0], (ast.In, ast.NotIn, ast.Is, ast.IsNot)):
            return False
        parts = list(ast.walk(mask))
        texts = any(isinstance(p, ast.Constant) and isinstance(p.value, str) for p in parts)
        called = {id(p.func) for p in parts if isinstance(p, ast.Call)}
        fields = any(isinstance(p, ast.Attribute) and id(p) not in called for p in parts)
        sides = (mask.left, *mask.comparators)
        own = any(
            isinstance(p, ast.Name) and p.id == name for side in sides for p in ast.walk(side)
        )
        sized = any(isinstance(p, ast.Name) and p.id == "len" for p in parts)
        return own and not texts and not fields and not sized

    def _foreign(self, text: str) -> bool:
        kind = text.split(":")[0].lower()
        return kind in _DEVICES and kind != self._target

    def _branch(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> Iterator[Hit]:
        for part in ast.walk(node.test):
            if isinstance(part, ast.Call) and self._reads(part):
                yield self._hit(node, rules.BRANCH, ast.unparse(node.test)[:80])
                return

    def _reads(self, node: ast.Call) -> bool:
        """Whether a call gives one value of a tensor, as far as names tell."""
        name = self._names.resolve(node.func) or ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name:
            return name.startswith("torch.") and name.rsplit(".", 1)[-1] in _TO_VALUE
        return method in _TO_VALUE and not node.args


def _shown(use: str, text: str) -> str:
    """``device='cuda'`` or ``to('cuda')``."""
    return f"{use}{text!r}" + (")" if use.endswith("(") else "")


def _longest(name: str) -> rules.Rule | None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        rule = rules.NAMES.get(".".join(parts[:end]))
        if rule is not None:
            return rule
    return None


def _truthy(node: ast.AST) -> bool:
    return not (isinstance(node, ast.Constant) and not node.value)
