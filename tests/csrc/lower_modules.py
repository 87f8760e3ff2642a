"""Lowers the modules of pjrt_test.cc: ``lower_modules.py DIRECTORY STABLEHLO_VERSION``."""

from __future__ import annotations

import pathlib
import sys

import jax
import jax.numpy as jnp
from jaxlib.mlir.dialects import stablehlo

F32 = jnp.float32


def several(x):
    return x.T, jnp.sum(x).astype(jnp.int64), (x > 2).reshape(-1)


def slow(x):
    return jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ x), x)


MODULES = {
    "add": (lambda a, b: a + b, [((8,), F32)] * 2, ()),
    "increment": (lambda x: x + 1, [((8,), F32)], (0,)),
    "several": (several, [((2, 3), F32)], ()),
    "corner": (lambda x: x[0, 0], [((256, 256), F32)], ()),
    "slow": (slow, [((256, 256), F32)], ()),
}


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    version = stablehlo.get_smaller_version(sys.argv[2], stablehlo.get_current_version())
    for name, (function, shapes, donated) in MODULES.items():
        args = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
        with jax.enable_x64(True):
            traced = jax.jit(function, donate_argnums=donated).trace(*args)
            module = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
        artifact = stablehlo.serialize_portable_artifact(module, version)
        (directory / f"{name}.mlirbc").write_bytes(artifact)


if __name__ == "__main__":
    main()
