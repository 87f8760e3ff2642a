"""Results that do not depend on what else is in the program (decision D6).

XLA changes floating-point results when it fuses: a multiply and an add become one rounding, and
its simplifier re-associates (``(x + 1e8) - 1e8``), turns divisions into multiplications and so on.
``fence`` rewrites a traced program so that every operator (a *stage*: what lies between two
``end_stage`` marks) gives the bits that it gives alone:

* A stage in which no rounded result feeds another rounding operation stays open to fusion. The bits
  of every rounded result are combined with a zero that only the run time knows before another
  stage may compute with them; so no constant is folded across either.
* Any other stage (reductions, products, convolutions, sorts, scatters, loops, and element-wise
  operators of several roundings) is kept as it is, between optimization barriers.

``zero`` is a 0-d int32 parameter of the program that must be zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

_MARK = "torchneuron stage"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Rounding element-wise primitives with one right answer (IEEE 754). Those that become polynomials
# (exp, tanh, erf, ...) are not among them: how their multiplications and additions are contracted
# differs with what surrounds them, and with whether an element falls into a loop's vectorised part.
ARITHMETIC = _words("add sub mul div rem integer_pow sqrt square add_any")
# They round, but what they give does not depend on what reads it.
CONVERSIONS = _words("convert_element_type reduce_precision")
ROUNDING = ARITHMETIC | CONVERSIONS
# Exact ones; those in MOVES never look at a value, so they pass on what still is to be fenced.
EXACT = _words("""
    neg abs sign floor ceil round max min clamp select_n eq ne lt le gt ge is_finite and or xor not
    shift_left shift_right_logical shift_right_arithmetic population_count clz iota
    bitcast_convert_type random_bits stop_gradient random_seed random_wrap
""")
MOVES = _words("""
    broadcast_in_dim reshape transpose squeeze expand_dims slice dynamic_slice gather concatenate
    pad rev copy copy_p dynamic_update_slice optimization_barrier
""")
_CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
          "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}  # fmt: skip
_BITS = {2: np.int16, 4: np.int32, 8: np.int64}


def end_stage(values: Sequence[Any]) -> list[Any]:
    """Mark ``values`` as the results of a stage that ends here."""
    return [checkpoint_name(x, _MARK) for x in values]


def fence(
    function: Callable[..., list[Any]], params: Sequence[Any], zero: Any, close: bool = True
) -> list[Any]:
    """``function(*params)`` with every stage exact; ``zero`` is the run-time zero.

    Without ``close``, only stages of one rounding are: the others have no barriers and no fences.
    """
    closed, tree = jax.make_jaxpr(function, return_shape=True)(*params)
    results = _Interpreter(zero, close).program(closed, params)
    return jax.tree.unflatten(jax.tree.structure(tree), results)


def _is_mark(eqn: Any) -> bool:
    return eqn.primitive.name == "name" and eqn.params["name"] == _MARK


def _inner(eqn: Any) -> Any | None:
    field = _CALLS.get(eqn.primitive.name)
    return None if field is None else eqn.params[field]


def _is_open(eqns: Sequence[Any], rounded: set[Any]) -> bool:
    """Whether only element-wise primitives are here, and none of several roundings in a row.

    ``rounded``: variables that hold a rounded result of the stage; grows.
    """
    for eqn in eqns:
        name = eqn.primitive.name
        feeds = [a for a in eqn.invars if not isinstance(a, core.Literal) and a in rounded]
        inner = _inner(eqn)
        if inner is not None:
            jaxpr = inner.jaxpr
            inside = {v for v, a in zip(jaxpr.invars, eqn.invars, strict=True) if a in feeds}
            if not _is_open(jaxpr.eqns, inside):
                return False
            rounded.update(
                v
                for v, a in zip(eqn.outvars, jaxpr.outvars, strict=True)
                if not isinstance(a, core.Literal) and a in inside
            )
            continue
        if name not in ROUNDING | EXACT | MOVES:
            return False
        kinds = [np.dtype(v.aval.dtype) for v in eqn.outvars]
        if any(np.issubdtype(d, np.complexfloating) for d in kinds):
            return False  # no integer has a complex number's bits
        computes = name in ARITHMETIC and any(jnp.issubdtype(d, np.floating) for d in kinds)
        if computes and feeds:
            return False
        if computes or feeds:
            rounded.update(eqn.outvars)
    return True


class _Value:
    """A value and, once something computes with it, its fenced twin."""

    def __init__(self, raw: Any, open_: bool) -> None:
        self.raw = raw
        self.open = open_  # still to be fenced
        self._fenced: Any = None

    def fenced(self, zero: Any) -> Any:
        if not self.open:
            return self.raw
        if self._fenced is None:
            self._fenced = _fence(self.raw, zero)
        return self._fenced


def _fence(x: Any, zero: Any) -> Any:
    dtype = np.dtype(x.dtype)
    if dtype.itemsize not in _BITS or not jnp.issubdtype(dtype, np.floating):
        return x
    bits = jax.lax.bitcast_convert_type(x, _BITS[dtype.itemsize])
    return jax.lax.bitcast_convert_type(bits ^ zero.astype(bits.dtype), dtype)


class _Interpreter:
    def __init__(self, zero: Any, close: bool) -> None:
        self.zero = zero
        self.barrier = jax.lax.optimization_barrier if close else lambda values: values
        self.close = close

    def program(self, closed: Any, params: Sequence[Any]) -> list[Any]:
        jaxpr = closed.jaxpr
        env: dict[Any, _Value] = {}
        # Parameters are unknown to the compiler as they are.
        for var, x in zip(jaxpr.invars, params, strict=True):
            env[var] = _Value(x, False)
        for var, x in zip(jaxpr.constvars, closed.consts, strict=True):
            env[var] = _Value(x, True)
        stage: list[Any] = []
        last_use = {a: len(jaxpr.eqns) for a in jaxpr.outvars if not isinstance(a, core.Literal)}
        for i, eqn in reversed(list(enumerate(jaxpr.eqns))):
            for a in eqn.invars:
                if not isinstance(a, core.Literal):
                    last_use.setdefault(a, i)
        for i, eqn in enumerate(jaxpr.eqns):
            if not _is_mark(eqn):
                stage.append(eqn)
                continue
            if stage:
                self.stage(stage, env, last_use, i)
                stage = []
            for source, var in zip(eqn.invars, eqn.outvars, strict=True):
                value = self.read(env, source)
                # Beyond its stage a value is fenced before anything computes with it.
                env[var] = _Value(value.raw, True)
        if stage:
            self.stage(stage, env, last_use, len(jaxpr.eqns))
        return [self.read(env, v).raw for v in jaxpr.outvars]

    def read(self, env: dict[Any, _Value], atom: Any) -> _Value:
        if isinstance(atom, core.Literal):
            return _Value(atom.val, False)
        return env[atom]

    def stage(
        self, eqns: list[Any], env: dict[Any, _Value], last_use: dict[Any, int], end: int
    ) -> None:
        if _is_open(eqns, set()):
            self.open_stage(eqns, env)
        else:
            self.closed_stage(eqns, env, last_use, end)

    def open_stage(self, eqns: Sequence[Any], env: dict[Any, _Value]) -> None:
        for eqn in eqns:
            inputs = [self.read(env, a) for a in eqn.invars]
            inner = _inner(eqn)
            if inner is not None:
                jaxpr = inner.jaxpr
                scope = dict(zip(jaxpr.invars, inputs, strict=True))
                scope.update(
                    (v, _Value(c, False))
                    for v, c in zip(jaxpr.constvars, inner.consts, strict=True)
                )
                self.open_stage(jaxpr.eqns, scope)
                results = [self.read(scope, v) for v in jaxpr.outvars]
            else:
                name = eqn.primitive.name
                moves = name in MOVES
                raws = [v.raw if moves else v.fenced(self.zero) for v in inputs]
                open_ = name in ROUNDING or (moves and any(v.open for v in inputs))
                results = [_Value(x, open_) for x in _bind(eqn, raws)]
            env.update(zip(eqn.outvars, results, strict=True))

    def closed_stage(
        self, eqns: list[Any], env: dict[Any, _Value], last_use: dict[Any, int], end: int
    ) -> None:
        outer = dict.fromkeys(
            a for e in eqns for a in e.invars if not isinstance(a, core.Literal) and a in env
        )
        # A barrier may be gone by the time that XLA's CPU compiler fuses: a fence never is.
        fenced = [env[a].fenced(self.zero) if self.close else env[a].raw for a in outer]
        scope: dict[Any, Any] = dict(zip(outer, self.barrier(fenced), strict=True))
        for eqn in eqns:
            raws = [a.val if isinstance(a, core.Literal) else scope[a] for a in eqn.invars]
            scope.update(zip(eqn.outvars, _bind(eqn, raws), strict=True))
        made = [v for e in eqns for v in e.outvars if last_use.get(v, -1) >= end]
        results = self.barrier([scope[v] for v in made])
        env.update((v, _Value(x, self.close)) for v, x in zip(made, results, strict=True))


def _bind(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    with eqn.ctx.manager:
        result = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(result) if eqn.primitive.multiple_results else [result]
