"""What a name in a file means: imports and aliases resolved to dotted names."""

from __future__ import annotations

import ast


class Names:
    """Resolves ``cu.amp.x`` to ``torch.cuda.amp.x`` after ``import torch.cuda as cu``.

    Simple assignments of a resolved name (``nccl = torch.distributed``) count as aliases, and
    ``getattr(torch, "cuda")`` with a literal reads as the attribute.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._meaning: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        self._meaning[alias.asname] = alias.name
                    else:
                        top = alias.name.split(".")[0]
                        self._meaning[top] = top
            elif isinstance(node, ast.ImportFrom) and node.module:
                prefix = "." * node.level + node.module
                for alias in node.names:
                    self._meaning[alias.asname or alias.name] = f"{prefix}.{alias.name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
                if isinstance(target, ast.Name) and isinstance(value, (ast.Name, ast.Attribute)):
                    meaning = self.resolve(value)
                    if meaning and target.id not in self._meaning:
                        self._meaning[target.id] = meaning

    def resolve(self, node: ast.AST) -> str | None:
        """The dotted name of an expression that begins with an imported name, else None."""
        if isinstance(node, ast.Name):
            return self._meaning.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return f"{base}.{node.attr}" if base else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            literal = len(node.args) >= 2 and isinstance(node.args[1], ast.Constant)
            if node.func.id == "getattr" and literal:
                base = self.resolve(node.args[0])
                return f"{base}.{node.args[1].value}" if base else None  # type: ignore[attr-defined]
        return None
