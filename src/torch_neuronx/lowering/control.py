"""Control flow: PyTorch's higher-order operators as StableHLO's ``case`` and ``while``.

A rule takes the operator's arguments, functions as ``Body``, and gives its results and the error
word of the index checks inside (``checks``). Numbers among the operands are already written into
the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_neuronx.lowering.errors import LoweringError


class Body(Protocol):
    """A function on arrays: its results, and its error word (int64[2])."""

    def __call__(self, *inputs: Any) -> tuple[tuple[Any, ...], Any]: ...


RULES: dict[str, Callable[..., tuple[Any, Any]]] = {}


def _rule(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES[name] = function
        return function

    return register


def strong(x: Any) -> Any:
    """``x`` without weak type: what a branch and a loop give must agree in it."""
    return x if x is None else lax.convert_element_type(x, jnp.result_type(x))


def _arrays(operands: Any) -> tuple[Any, ...]:
    return tuple(strong(jnp.asarray(x)) for x in operands)


def _first(words: Any) -> Any:
    """Of error words (n, 2), the first that says that something failed."""
    if words.shape[0] == 0:
        return jnp.zeros(2, np.int64)
    return words[jnp.argmax(words[:, 0] != 0)]


def _keep(word: Any, later: Any) -> Any:
    return jnp.where(word[0] != 0, word, later)


@_rule("higher_order::cond")
def cond(pred: Any, true_body: Body, false_body: Body, operands: Any) -> Any:
    """One of two branches."""
    return lax.cond(
        jnp.asarray(pred, bool).reshape(()),
        lambda xs: true_body(*xs),
        lambda xs: false_body(*xs),
        _arrays(operands),
    )


@_rule("higher_order::while_loop")
def while_loop(cond_body: Body, body: Body, carried: Any, additional: Any = ()) -> Any:
    """``body`` while ``cond_body`` holds."""
    fixed = _arrays(additional)

    def holds(values: Any, word: Any) -> Any:
        (go_on,), checked = cond_body(*values, *fixed)
        return jnp.asarray(go_on, bool).reshape(()), values, _keep(word, checked)

    def step(state: Any) -> Any:
        _, values, word = state
        values, checked = body(*values, *fixed)
        return holds(values, _keep(word, checked))

    state = holds(_arrays(carried), jnp.zeros(2, np.int64))
    _, values, word = lax.while_loop(lambda s: s[0], step, state)
    return values, word


@_rule("higher_order::while_loop_stack_output")
def while_loop_stack_output(
    cond_body: Body, body: Body, carried: Any, additional: Any, turns: int
) -> Any:
    """What each turn of ``while_loop`` carries on, stacked; the number of turns is known. One that
    makes none gives what it starts with, as one row."""
    fixed = _arrays(additional)
    start = _arrays(carried)

    def step(state: Any, _: Any) -> Any:
        values, word = state
        results, checked = body(*values, *fixed)
        return (results, _keep(word, checked)), results

    state = start, jnp.zeros(2, np.int64)
    if turns > 1:
        (_, word), stacked = lax.scan(step, state, None, length=turns)
        return stacked, word
    (go_on,), checked = cond_body(*start, *fixed)
    (values, word), _ = lax.cond(
        jnp.asarray(go_on, bool).reshape(()), lambda: step(state, None), lambda: (state, start)
    )
    return tuple(v[None] for v in values), _keep(checked, word)


@_rule("higher_order::map_impl")
def map_impl(body: Body, xs: Any, fixed: Any = ()) -> Any:
    """``body`` for every slice of ``xs`` along their first dimension."""
    rest = _arrays(fixed)
    results, words = lax.map(lambda slices: body(*slices, *rest), _arrays(xs))
    return results, _first(words)


@_rule("higher_order::scan")
def scan(body: Body, init: Any, xs: Any, additional: Any = ()) -> Any:
    """``body`` for one slice of ``xs`` after the other, with carried values."""
    fixed = _arrays(additional)
    start = _arrays(init)

    def step(carry: Any, slices: Any) -> Any:
        values, word = carry
        results, checked = body(*values, *slices, *fixed)
        return (results[: len(start)], _keep(word, checked)), results[len(start) :]

    (values, word), stacked = lax.scan(step, (start, jnp.zeros(2, np.int64)), _arrays(xs))
    return (*values, *stacked), word


@_rule("higher_order::associative_scan")
def associative_scan(body: Body, xs: Any, additional: Any = ()) -> Any:
    """Prefixes of ``xs`` along their first dimension under an associative function."""
    fixed = _arrays(additional)

    def combine(left: Any, right: Any) -> Any:
        results, word = body(*left, *right, *fixed)
        if not isinstance(word, np.ndarray):
            raise LoweringError("associative_scan: its function checks indices")
        return results

    arrays = _arrays(xs)
    if not arrays or arrays[0].shape[0] < 2:
        return arrays, jnp.zeros(2, np.int64)
    return lax.associative_scan(jax.vmap(combine), arrays), jnp.zeros(2, np.int64)


@_rule("higher_order::invoke_subgraph")
def invoke_subgraph(body: Body, identifier: Any, *operands: Any) -> Any:
    """A call."""
    return body(*operands)
