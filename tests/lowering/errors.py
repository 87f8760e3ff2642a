"""What the index checks of a program report, compared with what CPU PyTorch raises."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tests.lowering.harness import _Builder, flatten, full_arguments, name_of, overload_of

from torch_neuronx.lowering import build, table
from torch_neuronx.lowering import program as ir


def _on_meta(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to("meta")
    return [_on_meta(y) for y in x] if isinstance(x, (list, tuple)) else x


def check_error(name: str, *args: Any, **kwargs: Any) -> list[np.ndarray]:
    """Run overload ``name``, which CPU refuses, and compare exception and text.

    Returns the results, to look at what the clamped or dropped access left.
    """
    op = overload_of(name)
    filled = full_arguments(op, args, kwargs)
    arguments = op._schema.arguments
    positional = [v for v, a in zip(filled, arguments, strict=True) if not a.kwarg_only]
    keywords = {a.name: v for v, a in zip(filled, arguments, strict=True) if a.kwarg_only}
    try:
        op(*positional, **keywords)
    except Exception as error:
        want = (type(error).__name__, str(error).split("\n")[0])
    else:
        raise AssertionError(f"{name}: CPU accepts these arguments")
    meta = flatten(op(*_on_meta(positional), **{k: _on_meta(v) for k, v in keywords.items()}))
    rule = table.load_rules()[name]
    with jax.enable_x64(True):
        builder = _Builder(rule, "eager")
        refs = tuple(
            builder.argument(v, a, str(a.real_type)) for v, a in zip(filled, arguments, strict=True)
        )
        buffers = builder.buffers
        if "rng" in rule.wants:
            buffers = [*buffers, jnp.uint64(7), jnp.uint64(0)]
        outputs = tuple(ir.Array(name_of(t.dtype), tuple(t.shape)) for t in meta)
        program = ir.Program(
            params=tuple(builder.params),
            nodes=(ir.Node(name, refs, outputs),),
            outputs=tuple(ir.Output(ir.Result(0, i)) for i in range(len(outputs))),
            uses_rng="rng" in rule.wants,
        )
        checks = build.lower(program, platform="cpu", version="1.9.3").checks
        *results, word = build.evaluate(program, *buffers)
    number, value = (int(x) for x in word)
    assert number, f"{name}: nothing was reported, CPU raises {want}"
    failed = checks[number - 1]
    assert (failed.exception, failed.message.format(value=value)) == want
    return [np.asarray(r) for r in results]
