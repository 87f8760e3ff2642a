"""One case of the OpInfo measurement: builds its sample, runs it on both devices, compares.

A *unit* is (operator, dtype, kind); it has as many *cases* as the budget takes samples of distinct
shape class. ``run_unit`` yields one record a case, a plain dictionary:

``outcome``: "passed", "fallback" (passed, but an operator of it ran on the CPU), "failed", or
"skipped" (CPU itself cannot do the sample). ``cause`` groups failures, ``detail`` says more.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.forward_ad as fwad
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils import _pytree as pytree

import torch_neuronx
from opinfo_tolerances import AS_GOOD, DERIVATIVE, tolerance

DEVICE = "neuron"
KINDS = (
    "forward", "backward", "forward_ad", "second", "noncontiguous", "out", "inplace", "errors",
)  # fmt: skip
DTYPES = (
    "float32", "bfloat16", "float16", "int64", "int32", "bool", "uint8", "complex64", "float64",
)  # fmt: skip
OPS = {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db}
# Their results are whatever memory held.
UNDEFINED = re.compile(r"^(new_)?empty|^resize|^Tensor\.resize|^nn\.functional\.empty")
_REDUCED = (torch.bfloat16, torch.float16)


class Skip(Exception):
    """CPU cannot do this case either."""


class Mismatch(Exception):
    """The device's answer is not CPU's. ``cause`` groups, ``detail`` says more."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause, self.detail = cause, detail


# --- samples


_MARK = "_placed"


class _Placed(TorchFunctionMode):
    """Marks tensors that were made with an explicit device, and all that is computed of them.

    Sample generators leave some arguments on the CPU on purpose; the mark tells them apart though
    all are built there.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        placed = any(
            isinstance(x, torch.device)
            or x == "cpu"
            or (isinstance(x, torch.Tensor) and getattr(x, _MARK, False))
            for x in leaves
            if isinstance(x, (torch.device, torch.Tensor, str))
        )
        if placed:
            for x in pytree.tree_leaves(result):
                if isinstance(x, torch.Tensor):
                    with contextlib.suppress(Exception):
                        setattr(x, _MARK, True)
        return result


def _marked(x: torch.Tensor) -> bool:
    return bool(getattr(x, _MARK, False))


def tensors(tree: Any) -> list[torch.Tensor]:
    """Tensors of a tree, in order."""
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def shape_class(sample: Any) -> Any:
    """What makes two samples the same kind of case: ranks, emptiness, layout, option values."""

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            ones = tuple(s == 1 for s in x.shape)
            return (str(x.dtype), x.ndim, x.numel() == 0, ones, x.is_contiguous())
        return type(x).__name__ if isinstance(x, (int, float, complex)) else repr(x)

    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    return str(spec), tuple(map(leaf, leaves))


def samples(op: Any, dtype: torch.dtype, grad: bool, budget: int | None) -> Iterator[Any]:
    """Up to ``budget`` samples of distinct shape class, built on the CPU, the same each time.

    The first ones, unless nothing can be told from them: then the last gives way to one that
    tells.
    """
    torch.manual_seed(20)
    seen: set[Any] = set()
    kept: list[Any] = []
    with _Placed():
        every = enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad))
        for i, sample in every:
            which = shape_class(sample)
            if budget is None or which not in seen:
                seen.add(which)
                kept.append(sample)
            if budget is not None and (len(kept) >= budget or i > _MANY):
                break
        if budget is not None and not any(_tells(op, x) for x in kept):
            later = (x for i, x in every if i <= _MANY)
            other = next((x for x in later if _tells(op, x)), None)
            kept = [*kept[: budget - 1], other] if other is not None else kept
    yield from kept


_MANY = 300


def _tells(op: Any, sample: Any) -> bool:
    """Whether a sample is computed on the device, and CPU's result of it has elements and not all
    of them are nan."""
    if not tensors(_parts(sample)) and "device" not in sample.kwargs:
        return False
    with torch.no_grad(), contextlib.suppress(Exception):
        state = torch.get_rng_state()
        results = tensors(_call(op, _copies(_parts(sample))))
        torch.set_rng_state(state)
        return any(t.numel() > 0 and not t.isnan().all() for t in results) or not results
    return True


def move(tree: Any, memo: dict[int, torch.Tensor] | None = None) -> Any:
    """A tree with the tensors that the generator placed copied to the device, layout kept."""
    memo = {} if memo is None else memo

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return DEVICE if isinstance(x, torch.device) or x == "cpu" else x
        if not _marked(x) or x.layout != torch.strided:
            return x
        if id(x) not in memo:
            memo[id(x)] = to_device(x)
        return memo[id(x)]

    return pytree.tree_map(one, tree)


def to_device(x: torch.Tensor) -> torch.Tensor:
    """A leaf on the device with the same sizes, strides, lazy bits and ``requires_grad``."""
    plain = x.detach()
    conj, neg = plain.is_conj(), plain.is_neg()
    if conj:
        plain = plain.conj()
    if neg:
        plain = torch._neg_view(plain)
    overlaps = any(s == 0 and n > 1 for s, n in zip(plain.stride(), plain.shape, strict=True))
    if plain.is_contiguous() and plain.storage_offset() == 0:
        y = plain.to(DEVICE)
    elif plain.numel() == 0:
        y = torch.empty_strided(plain.shape, plain.stride(), dtype=x.dtype, device=DEVICE)
    else:
        reach = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True))
        length = plain.storage_offset() + reach
        whole = plain.untyped_storage().nbytes() // plain.element_size()
        if not overlaps and whole <= 4 * plain.numel() + 64:
            length = whole  # as_strided reads between and behind the elements
        if overlaps or length > 4 * plain.numel() + 64:
            base = plain.as_strided((length,), (1,), 0).clone().to(DEVICE)
            y = base.as_strided(plain.shape, plain.stride(), plain.storage_offset())
        else:
            base = plain.as_strided((length,), (1,), 0).to(DEVICE)
            y = base.as_strided(plain.shape, plain.stride(), plain.storage_offset())
    if conj:
        y = y.conj()
    if neg:
        y = torch._neg_view(y)
    return y.requires_grad_(x.requires_grad) if x.requires_grad else y


# --- comparison


def to_cpu(tree: Any) -> Any:
    """A tree with every tensor copied to the CPU. Raises the device's pending errors."""
    return pytree.tree_map(lambda x: x.detach().cpu() if isinstance(x, torch.Tensor) else x, tree)


def compare(got: Any, want: Any, op: str, kind: str, *, values: bool = True) -> None:
    """Raises ``Mismatch`` unless structure, dtypes, shapes and values agree (nan equals nan)."""
    a, shape_a = pytree.tree_flatten(got)
    b, shape_b = pytree.tree_flatten(want)
    if len(a) != len(b):
        raise Mismatch("structure", f"{shape_a} for {shape_b}")
    for x, y in zip(a, b, strict=True):
        if isinstance(y, torch.Tensor) != isinstance(x, torch.Tensor):
            raise Mismatch("structure", f"{type(x).__name__} for {type(y).__name__}")
        if not isinstance(y, torch.Tensor):
            if values and x != y and not (x != x and y != y):
                if isinstance(y, torch.device):
                    continue
                if isinstance(y, (float, complex)):
                    compare(torch.tensor(x), torch.tensor(y), op, kind)
                    continue
                raise Mismatch("value of a number", f"{x!r} for {y!r}")
            continue
        if x.dtype != y.dtype:
            raise Mismatch("dtype", f"{x.dtype} for {y.dtype}")
        if x.shape != y.shape:
            raise Mismatch("shape", f"{tuple(x.shape)} for {tuple(y.shape)}")
        if not values or y.numel() == 0:
            continue
        x, y = x.detach(), y.detach()
        if x.layout != torch.strided or y.layout != torch.strided:
            x, y = x.to_dense(), y.to_dense()
        x, y = x.cpu().resolve_conj().resolve_neg(), y.resolve_conj().resolve_neg()
        rtol, atol = tolerance(op, y.dtype, kind)
        try:
            torch.testing.assert_close(x, y, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            text = " ".join(str(error).split())
            nans = y.dtype.is_floating_point and bool((x.isnan() != y.isnan()).any())
            raise Mismatch("nan" if nans else "values", text[:200]) from None


def strides_differ(got: Any, want: Any) -> str:
    """The first result whose strides are not CPU's, in dimensions where they can be seen."""
    for x, y in zip(tensors(got), tensors(want), strict=False):
        if y.numel() < 2 or x.layout != torch.strided or y.layout != torch.strided:
            continue
        a = [s for s, n in zip(x.stride(), x.shape, strict=True) if n != 1]
        b = [s for s, n in zip(y.stride(), y.shape, strict=True) if n != 1]
        if a != b:
            return f"{x.stride()} for {y.stride()} of {tuple(y.shape)}"
    return ""


def raised(tree: Any) -> Any:
    """Reduced floats, and dtype arguments that ask for them, as float32."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in _REDUCED:
            return x.detach().float().requires_grad_(x.requires_grad)
        return torch.float32 if isinstance(x, torch.dtype) and x in _REDUCED else x

    return pytree.tree_map(one, tree)


def verify(
    got: Any, want: Any, op: Any, name: str, kind: str, sample: Any, again: Callable[[Any], Any]
) -> None:
    """``compare``, with the freedoms that PyTorch leaves.

    These are: the positions of equal elements (sort, topk, ...), the order of the eigenvalues of a
    general matrix, the phase of singular and eigen
    vectors (the OpInfo's own ``output_process_fn_grad`` removes it), and, for reduced floats, one
    rounding of the float32 result instead of CPU's several. ``again(tree)`` is the computation of
    ``want`` on other inputs.
    """
    if kind in _VALUES:
        got, want = _ordered(op.name, got), _ordered(op.name, want)
    try:
        compare(got, want, name, kind)
        return
    except Mismatch as error:
        if error.cause not in ("values", "nan"):
            raise
        first = error
    got = to_cpu(got)
    if kind in ("backward", "forward_ad", "second") and _has_ties(sample, name):
        return  # which of equal elements gets the gradient is free
    if kind in _VALUES and name.split(".")[0] in _CHOOSE:
        a, b = tensors(got), tensors(want)
        source, dim = sample.input, _dim(sample, name)
        if len(a) == 1 and name == "argsort" and source.ndim:
            compare(source.gather(dim, a[0]), source.gather(dim, b[0]), name, kind)
            return
        if len(a) == 2 and source.ndim and a[1].dtype == torch.int64:
            compare(a[0], b[0], name, kind)
            index = a[1] if a[1].ndim == source.ndim else a[1].unsqueeze(dim)
            chosen = source.gather(dim, index)
            compare(chosen if a[1].ndim == source.ndim else chosen.squeeze(dim), b[0], name, kind)
            return
    process = getattr(sample, "output_process_fn_grad", None)
    if kind in _VALUES and process is not None:
        with contextlib.suppress(Mismatch, RuntimeError, TypeError, AttributeError):
            compare(to_cpu(process(got)), to_cpu(process(want)), name, kind)
            if process(want) is not want:
                return
    if any(t.dtype in _REDUCED for t in tensors(want)):
        try:
            once = again(raised((sample.input, sample.args, sample.kwargs)))
        except Exception:
            raise first from None
        rounded = [t.to(w.dtype) for t, w in zip(tensors(once), tensors(want), strict=False)]
        try:
            compare(tensors(got), rounded, name, kind)
        except Mismatch:
            # A derivative is a chain of operators: CPU rounds between them, too.
            if kind not in DERIVATIVE or not _as_good(got, tensors(once), want, name, kind):
                raise
        return
    if first.cause == "values":
        parts = (sample.input, sample.args, sample.kwargs)
        try:
            exact, single = again(_as(parts, _WIDE)), again(_as(parts, _NARROW))
        except Exception:
            raise first from None
        if _as_good(got, exact, single, name, kind):
            return
    raise first


def _as_good(got: Any, exact: Any, single: Any, name: str, kind: str) -> bool:
    """Whether the device's results are about as near to those of a wider dtype (``exact``) as
    CPU's in the same dtype (``single``) are."""
    results, exact, single = tensors(got), tensors(exact), tensors(single)
    if not len(results) == len(exact) == len(single):
        return False
    for x, best, peer in zip(results, exact, single, strict=True):
        if not (x.dtype.is_floating_point or x.dtype.is_complex):
            if not torch.equal(x, best):
                return False
            continue
        wide = torch.float32 if x.dtype in _REDUCED else _WIDE.get(x.dtype, x.dtype)
        x, best, peer = x.to(wide), best.detach().to(wide), peer.detach().to(wide)
        rtol, atol = tolerance(name, x.dtype, kind)
        error, allowed = (x - best).abs(), (peer - best).abs().max()
        finite = best.isfinite()
        if not torch.equal(x[~finite].nan_to_num(0), best[~finite].nan_to_num(0)):
            return False
        if not bool((error <= AS_GOOD * allowed + atol + rtol * best.abs())[finite].all()):
            return False
    return True


_WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_NARROW = {wide: narrow for narrow, wide in _WIDE.items()}


def _as(tree: Any, dtypes: dict[torch.dtype, torch.dtype]) -> Any:
    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in dtypes:
            return x.detach().to(dtypes[x.dtype]).requires_grad_(x.requires_grad)
        return dtypes.get(x, x) if isinstance(x, torch.dtype) else x

    return pytree.tree_map(one, tree)


_VALUES = ("forward", "noncontiguous", "out")
_CHOOSE = (
    "sort",
    "argsort",
    "topk",
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
    "msort",
    "max",
    "min",
)


def _has_ties(sample: Any, name: str) -> bool:
    x = sample.input
    return (
        name.split(".")[0] in _CHOOSE
        and isinstance(x, torch.Tensor)
        and x.detach().unique().numel() < x.numel()
    )


def _dim(sample: Any, name: str) -> int:
    if "dim" in sample.kwargs:
        return int(sample.kwargs["dim"])
    first = sample.args[1:] if name.split(".")[0] in ("topk", "kthvalue") else sample.args
    ints = [a for a in first if isinstance(a, int) and not isinstance(a, bool)]
    return ints[0] if ints else -1


# --- the kinds


def _call(op: Any, parts: Any) -> Any:
    result = op(parts[0], *parts[1], **parts[2])
    return _ordered(op.name, result) if "out" not in parts[2] else result


def _ordered(name: str, result: Any) -> Any:
    """Eigenvalues of a general matrix come in no order: by their real parts, and vectors as they.

    Pairs of a real matrix have equal real parts, so the imaginary ones count a little."""
    if name not in ("linalg.eig", "linalg.eigvals"):
        return result
    values, *vectors = tensors(result)
    known = values.detach().cpu()
    order = (known.real + 1e-3 * known.imag).argsort(dim=-1).to(values.device)
    ordered = [values.gather(-1, order)]
    ordered += [v.gather(-1, order.unsqueeze(-2).expand(v.shape)) for v in vectors]
    return pytree.tree_unflatten(ordered, pytree.tree_flatten(result)[1])


def _parts(sample: Any) -> Any:
    return (sample.input, sample.args, sample.kwargs)


def _copies(parts: Any) -> Any:
    """Fresh leaves with the same contents, marks kept: an operator may write to its arguments."""
    memo: dict[int, torch.Tensor] = {}

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
            return x
        if id(x) not in memo:
            y = x.detach()
            if x.is_contiguous() and not x.is_conj() and not x.is_neg():
                y = y.clone()
            y = y.requires_grad_(x.requires_grad) if x.requires_grad else y
            setattr(y, _MARK, _marked(x))
            memo[id(x)] = y
        return memo[id(x)]

    return pytree.tree_map(one, parts)


# Whether the computation at hand seeded the generator itself, as some database entries do, which
# then restore its state: `_seeded` is in place of the function they use, and restores nothing.
_seeds = [0, 0]  # computations that seeded and then drew; that seeded


def _seeded(op: Any, *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(42)
    before = torch.get_rng_state()
    result = op(*args, **kwargs)
    _seeds[0] += not torch.equal(before, torch.get_rng_state())
    _seeds[1] += 1
    return result


common_methods_invocations.wrapper_set_seed = _seeded


class _Reference:
    """CPU's answer, or what it raised, and whether it drew random numbers."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        _seeds[:] = [0, 0]
        self.error: Exception | None = None
        self.value: Any = None
        try:
            self.value = compute()
        except Exception as error:
            self.error = error
        drew = not torch.equal(before, torch.get_rng_state())
        self.random = bool(_seeds[0]) or (drew and _seeds[1] == 0)


_UNSUPPORTED = re.compile(
    r"not implemented for|not supported|unsupported|does not support|not yet supported|expected "
    r".*(float|dtype|type)|only supports|only support", re.IGNORECASE)  # fmt: skip


def _same_error(error: Exception, compute: Callable[[], Any]) -> None:
    """CPU refused: the device may do better with a dtype, and must refuse all else alike."""
    if _UNSUPPORTED.search(str(error)):
        raise Skip(f"CPU: {type(error).__name__}: {error}")
    _expect(error, compute)


def _expect(error: Exception, compute: Callable[[], Any]) -> bool:
    """The device must raise ``error``'s type; whether the text is the same too."""
    try:
        to_cpu(compute())
        torch.get_device_module("neuron").synchronize()
    except Exception as other:
        _settle()
        if type(other) is type(error):
            return _first_line(other) == _first_line(error)
        raise Mismatch(
            f"raised {type(other).__name__} instead of {type(error).__name__}",
            f"{_first_line(other)} | CPU: {_first_line(error)}",
        ) from None
    raise Mismatch(f"no {type(error).__name__}", f"CPU: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def _settle() -> None:
    """Reads pending errors of the device, so that the next case does not get them."""
    for _ in range(3):
        try:
            torch.get_device_module("neuron").synchronize()
            return
        except Exception:
            continue


def forward(op: Any, name: str, sample: Any, kind: str = "forward") -> str:
    """The result of a call; its strides when they differ."""
    reference = _Reference(lambda: _call(op, _copies(_parts(sample))))
    on_device = lambda: _call(op, move(_copies(_parts(sample))))  # noqa: E731
    if reference.error is not None:
        _same_error(reference.error, on_device)
        return ""
    got = on_device()
    if reference.random or UNDEFINED.match(name):
        compare(to_cpu(got), reference.value, name, kind, values=False)
    else:
        verify(got, reference.value, op, name, kind, sample, lambda p: _call(op, p))
    return strides_differ(got, reference.value)


def noncontiguous(op: Any, name: str, sample: Any) -> str:
    """As ``forward``, every tensor argument strided."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.layout == torch.strided and x.numel() > 1:
            y = noncontiguous_like(x)
            setattr(y, _MARK, _marked(x))
            return y
        return x

    strided = type(sample)(
        pytree.tree_map(one, sample.input),
        args=pytree.tree_map(one, sample.args),
        kwargs=pytree.tree_map(one, sample.kwargs),
        output_process_fn_grad=sample.output_process_fn_grad,
    )
    return forward(op, name, strided, "noncontiguous")


def _differentiable(sample: Any, result: Any) -> list[torch.Tensor]:
    process = getattr(sample, "output_process_fn_grad", None)
    value = process(result) if process is not None else result
    return [
        t
        for t in tensors(value)
        if t.requires_grad and (t.dtype.is_floating_point or t.dtype.is_complex)
    ]


def _noise(like: list[Any], seed: int) -> list[torch.Tensor]:
    """Fixed cotangents or tangents on the CPU, in the dtypes and shapes of ``like``."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for t in like:
        wide = torch.complex64 if t.dtype.is_complex else torch.float32
        result.append(torch.randn(t.shape, dtype=wide, generator=generator).to(t.dtype))
    return result


def _gradients(op: Any, sample: Any, parts: Any, second: bool) -> list[Any]:
    leaves = list({id(t): t for t in tensors(parts) if t.requires_grad}.values())
    outputs = _differentiable(sample, _call(op, parts))
    if not leaves or not outputs:
        raise Skip("nothing to differentiate")
    device = outputs[0].device
    seeds = [g.to(t.device) for g, t in zip(_noise(outputs, 5), outputs, strict=True)]
    grads = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True, create_graph=second)
    if not second:
        return list(grads)
    again = [g for g in grads if g is not None and g.requires_grad]
    if not again:
        return list(grads)
    seeds = [g.to(device) for g in _noise(again, 6)]
    return list(torch.autograd.grad(again, leaves, seeds, allow_unused=True))


def _derivative(op: Any, name: str, sample: Any, kind: str, compute: Any) -> str:
    reference = _Reference(lambda: compute(_copies(_parts(sample))))
    on_device = lambda: compute(move(_copies(_parts(sample))))  # noqa: E731
    if isinstance(reference.error, Skip):
        raise reference.error
    if reference.error is not None:
        _same_error(reference.error, on_device)
        return ""
    got = on_device()
    if reference.random:
        compare(to_cpu(got), reference.value, name, kind, values=False)
    else:
        verify(got, reference.value, op, name, kind, sample, compute)
    return ""


def backward(op: Any, name: str, sample: Any) -> str:
    """First derivatives, reverse mode."""
    return _derivative(op, name, sample, "backward", lambda p: _gradients(op, sample, p, False))


def second(op: Any, name: str, sample: Any) -> str:
    """Second derivatives: reverse over reverse."""
    return _derivative(op, name, sample, "second", lambda p: _gradients(op, sample, p, True))


def forward_ad(op: Any, name: str, sample: Any) -> str:
    """Tangents of the results, forward mode."""

    def compute(parts: Any) -> list[Any]:
        leaves = list({id(t): t for t in tensors(parts) if t.requires_grad}.values())
        if not leaves:
            raise Skip("nothing to differentiate")
        noise = dict(zip(map(id, leaves), _noise(leaves, 7), strict=True))
        with fwad.dual_level():
            dual = pytree.tree_map(
                lambda x: (
                    fwad.make_dual(x.detach(), noise[id(x)].to(x.device))
                    if isinstance(x, torch.Tensor) and id(x) in noise
                    else x
                ),
                parts,
            )
            result = _call(op, dual)
            process = getattr(sample, "output_process_fn_grad", None)
            result = process(result) if process is not None else result
            return [fwad.unpack_dual(t).tangent for t in tensors(result)]

    return _derivative(op, name, sample, "forward_ad", compute)


def out(op: Any, name: str, sample: Any) -> str:
    """``out=``: as it should be, to be resized, of a wrong dtype, on the wrong device."""
    reference = _Reference(lambda: _call(op, _copies(_parts(sample))))
    if reference.error is not None or not tensors(reference.value):
        raise Skip("no result on CPU")
    want = reference.value
    values = not (reference.random or UNDEFINED.match(name))
    single = isinstance(want, torch.Tensor)

    def with_out(device: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        made = [make(t) for t in tensors(want)]
        parts = _copies(_parts(sample))
        parts = parts if device == "cpu" else move(parts)
        made = [t.to(device) for t in made]
        places = [t.untyped_storage().data_ptr() for t in made]
        outs = made[0] if single else tuple(made)
        result = op(parts[0], *parts[1], **{**parts[2], "out": outs})
        for r, m in zip(tensors(result), made, strict=True):
            if r is not m:
                raise Mismatch("out= is not what comes back")
        moved = [t.untyped_storage().data_ptr() != p for t, p in zip(made, places, strict=True)]
        return made, any(m for m, t in zip(moved, tensors(want), strict=True) if t.numel())

    def filled(t: torch.Tensor) -> torch.Tensor:
        return torch.ones(t.shape, dtype=t.dtype)

    def wrong(t: torch.Tensor) -> torch.Tensor:
        other = torch.int64 if t.dtype.is_floating_point or t.dtype.is_complex else torch.float32
        return torch.ones(t.shape, dtype=other)

    for label, make in (
        ("right", filled),
        ("resized", lambda t: torch.empty(0, dtype=t.dtype)),
        ("wrong dtype", wrong),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = _Reference(functools.partial(with_out, "cpu", make))
                if expected.error is not None:
                    _expect(expected.error, functools.partial(with_out, DEVICE, make))
                    continue
                got, moved = with_out(DEVICE, make)
                got = pytree.tree_unflatten(to_cpu(got), pytree.tree_structure(want))
                expected_value = pytree.tree_unflatten(
                    expected.value[0], pytree.tree_structure(want)
                )
                if values:
                    verify(got, expected_value, op, name, "out", sample, lambda p: _call(op, p))
                else:
                    compare(got, expected_value, name, "out", values=False)
                if moved and label == "right":
                    raise Mismatch("the storage of out= was replaced")
            except Mismatch as error:
                raise Mismatch(f"{label}: {error.cause}", error.detail) from None
            except Exception as error:
                raise Mismatch(
                    f"{label}: raised {type(error).__name__}", _first_line(error)
                ) from error
    if any(_marked(t) for t in tensors(_parts(sample))):
        parts = move(_copies(_parts(sample)))
        made = [filled(t) for t in tensors(want)]
        try:
            op(parts[0], *parts[1], **{**parts[2], "out": made[0] if single else tuple(made)})
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            _settle()
        else:
            raise Mismatch("wrong device: accepted")
    return ""


def inplace(op: Any, name: str, sample: Any) -> str:
    """The in-place variant on a tensor of its own, on a view, and on an expanded tensor."""
    variant = op.inplace_variant
    if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
        raise Skip("the input is broadcast")

    def whole(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x

    def view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.ones((2, *x.shape), dtype=x.dtype).to(x.device)
        base[1].copy_(x)
        return base, base[1]

    def strided(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.ones((*x.shape, 2), dtype=x.dtype).to(x.device)
        base.select(-1, 1).copy_(x)
        return base, base.select(-1, 1)

    def expanded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        base = x.reshape(-1)[:1].clone()
        return base, base.expand(x.shape)

    for label, make in (
        ("whole", whole), ("view", view), ("strided", strided), ("expanded", expanded),
    ):  # fmt: skip
        if label == "expanded" and sample.input.numel() < 2:
            continue

        def compute(device: str, make: Any = make) -> Any:
            parts = _copies(_parts(sample))
            parts = parts if device == "cpu" else move(parts)
            base, target = make(parts[0].detach())
            result = variant(target, *parts[1], **parts[2])
            if result is not target:
                raise Mismatch("what comes back is not the argument")
            return base

        try:
            reference = _Reference(functools.partial(compute, "cpu"))
            if isinstance(reference.error, Mismatch):
                raise Skip("not in place on CPU")
            if reference.error is not None:
                try:
                    _same_error(reference.error, functools.partial(compute, DEVICE))
                except Skip:
                    if label == "whole":
                        raise
                continue
            try:
                got = compute(DEVICE)
            except RuntimeError as error:
                if label == "expanded" and "more than one element" in str(error):
                    continue  # CPU lets it pass: which write stays is undefined
                raise
            if reference.random or UNDEFINED.match(name):
                compare(to_cpu(got), reference.value, name, "inplace", values=False)
            else:

                def again(p: Any, make: Any = make) -> Any:
                    base, target = make(p[0].detach().clone())
                    variant(target, *p[1], **p[2])
                    return base

                verify(got, reference.value, op, name, "inplace", sample, again)
        except Mismatch as error:
            raise Mismatch(f"{label}: {error.cause}", error.detail) from None
    return ""


RUN: dict[str, Callable[[Any, str, Any], str]] = {
    "forward": forward,
    "backward": backward,
    "forward_ad": forward_ad,
    "second": second,
    "noncontiguous": noncontiguous,
    "out": out,
    "inplace": inplace,
}


def applies(name: str, dtype_name: str, kind: str) -> bool:
    """Whether a unit has cases at all."""
    op, dtype = OPS[name], getattr(torch, dtype_name)
    if kind == "errors":
        return op.error_inputs_func is not None and dtype_name == "float32"
    if dtype not in op.supported_dtypes("cpu"):
        return False
    float_like = dtype.is_floating_point or dtype.is_complex
    if kind in ("backward", "second"):
        ok = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        return ok and float_like and (kind == "backward" or op.supports_gradgrad)
    if kind == "forward_ad":
        return op.supports_forward_ad and float_like
    if kind == "out":
        return bool(op.supports_out)
    if kind == "inplace":
        return op.inplace_variant is not None
    return True


def _cases(name: str, dtype_name: str, kind: str, budget: int | None) -> Iterator[Any]:
    """Functions of no argument, one a case; each gives a note ("" mostly) or raises."""
    op, dtype = OPS[name], getattr(torch, dtype_name)
    if kind == "errors":
        torch.manual_seed(20)
        with _Placed():
            listed = list(op.error_inputs("cpu"))
        for item in listed:
            yield lambda item=item: _error_case(op, item)
        return
    grad = kind in ("backward", "forward_ad", "second")
    take = 1 if kind == "second" and budget is not None else budget
    for sample in samples(op, dtype, grad, take):
        yield lambda sample=sample: RUN[kind](op, name, sample)


def _error_case(op: Any, item: Any) -> str:
    parts = _parts(item.sample_input)
    reference = _Reference(lambda: _call(op, _copies(parts)))
    if reference.error is None:
        raise Skip("CPU raises nothing")
    same = _expect(reference.error, lambda: _call(op, move(_copies(parts))))
    return "" if same else "text"


def run_unit(
    name: str, dtype: str, kind: str, budget: int | None, start: int = 0,
    begin: Callable[[int], None] = lambda i: None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One record a case from case ``start`` on. ``begin(i)`` is called before case i runs."""
    from torch_neuronx.eager import tracking

    try:
        cases = list(_cases(name, dtype, kind, budget))
    except Exception as error:  # the generator itself: nothing of ours ran
        yield {
            "op": name, "dtype": dtype, "kind": kind, "case": 0, "outcome": "skipped",
            "cause": "no samples", "detail": f"{type(error).__name__}: {_first_line(error)}",
        }  # fmt: skip
        return
    for i, case in enumerate(cases):
        if i < start:
            continue
        begin(i)
        record: dict[str, Any] = {"op": name, "dtype": dtype, "kind": kind, "case": i}
        tracking.clear()
        since = time.time()
        clock = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                note = case()
            record["outcome"] = "passed"
            if note:
                record["note"] = note
        except Skip as reason:
            record |= {"outcome": "skipped", "cause": "CPU", "detail": str(reason)[:200]}
        except Mismatch as error:
            record |= {"outcome": "failed", "cause": error.cause, "detail": error.detail[:400]}
        except Exception as error:
            record |= {
                "outcome": "failed",
                "cause": f"raised {type(error).__name__}",
                "detail": _first_line(error)[:400],
            }
        _settle()
        record["seconds"] = round(time.perf_counter() - clock, 3)
        made = [e for e in torch_neuronx.compile_events() if e["time_s"] >= since]
        record["compiled"] = sum(e["source"] == "compiled" for e in made)
        record["loaded"] = len(made) - record["compiled"]
        record["native"] = tracking.executed_ops()
        if fallen := tracking.fallback_ops():
            record["fallback"] = fallen
            if record["outcome"] == "passed":
                record["outcome"] = "fallback"
        yield record
