"""scaled_dot_product_attention in every form, eager and compiled, against CPU; and which way it
takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_neuronx
from support import assert_same, no_fallback, to_device

FUSED = "aten::_scaled_dot_product_fused_attention_overrideable"
sdpa = F.scaled_dot_product_attention


def qkv(
    dtype: torch.dtype = torch.float32, kv_heads: int = 4, grad: bool = True
) -> list[torch.Tensor]:
    """Queries (2, 4, 5, 8), keys and values of 7 places, values 6 wide."""
    shapes = [(2, 4, 5, 8), (2, kv_heads, 7, 8), (2, kv_heads, 7, 6)]
    return [torch.randn(s).to(dtype).requires_grad_(grad) for s in shapes]


# name -> (keyword arguments, heads of keys and values)
FORMS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 4),
    "causal": ({"is_causal": True}, 4),
    "scale": ({"scale": 0.3}, 4),
    "grouped heads": ({"enable_gqa": True, "is_causal": True}, 2),
    "one key head": ({"enable_gqa": True}, 1),
    "mask of all": ({"attn_mask": "float 2,4,5,7"}, 4),
    "mask of keys": ({"attn_mask": "float 1,1,1,7"}, 4),
    "mask of two dimensions": ({"attn_mask": "float 5,7"}, 4),
    "boolean mask": ({"attn_mask": "bool 2,1,5,7"}, 4),
    "boolean mask, grouped heads": ({"attn_mask": "bool 1,4,5,7", "enable_gqa": True}, 2),
}


def keywords(name: str, dtype: torch.dtype) -> dict[str, Any]:
    given = dict(FORMS[name][0])
    if text := given.get("attn_mask"):
        kind, shape = text.split()
        mask = torch.randn([int(n) for n in shape.split(",")])
        # A gradient of the mask, too, where it has one. Row 1 sees nothing.
        given["attn_mask"] = mask.to(dtype).requires_grad_()
        if kind == "bool":
            given["attn_mask"] = mask > 0
            given["attn_mask"][..., 1, :] = False
    return given


def results(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], given: dict[str, Any]
) -> list[torch.Tensor]:
    """Output and gradients of everything that needs one."""
    out = function(*inputs, **given)
    leaves = [x for x in [*inputs, given.get("attn_mask")] if x is not None and x.requires_grad]
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.device, out.dtype)
    return [out, *torch.autograd.grad(out, leaves, weights)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_eager_with_gradients(name: str, dtype: torch.dtype) -> None:
    torch.default_generator.manual_seed(0)
    inputs, given = qkv(dtype, FORMS[name][1]), keywords(name, dtype)
    with sdpa_kernel(SDPBackend.MATH):
        expected = results(sdpa, inputs, given)
    with no_fallback():
        actual = results(sdpa, to_device(inputs), to_device(given))
        assert FUSED in torch_neuronx.get_executed_ops()
        assert f"{FUSED}_backward" in torch_neuronx.get_executed_ops()
    # Weights are rounded to the inputs' dtype before the last product, CPU's are not.
    scale = 1 if dtype == torch.float32 else 3
    assert_same(actual, expected, strides=False, scale=scale)


@pytest.mark.parametrize("name", FORMS)
def test_compiled_with_and_without_gradients(name: str) -> None:
    torch.default_generator.manual_seed(0)
    inputs, given = qkv(kv_heads=FORMS[name][1]), keywords(name, torch.float32)
    compiled = torch.compile(lambda *a, **k: sdpa(*a, **k), backend="neuron")
    device = to_device(inputs), to_device(given)
    with no_fallback():
        assert_same(results(compiled, *device), results(sdpa, inputs, given), strides=False)
        with torch.no_grad():
            assert_same(compiled(*device[0], **device[1]), sdpa(*inputs, **given), strides=False)


def fused_was_taken(call: Callable[[], object]) -> bool:
    torch_neuronx.clear_op_tracking()
    call()
    return FUSED in torch_neuronx.get_executed_ops()


def test_the_composition_is_taken_where_it_costs_less() -> None:
    few, long = to_device(qkv()), torch.zeros(1, 1, 300, 4, device="neuron")
    assert fused_was_taken(lambda: sdpa(*few))
    assert fused_was_taken(lambda: sdpa(long, long, long))
    with torch.no_grad():
        assert not fused_was_taken(lambda: sdpa(*few, dropout_p=0.5))
    long.requires_grad_()
    assert not fused_was_taken(lambda: sdpa(long, long, long))
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):
        assert fused_was_taken(lambda: sdpa(long, long, long))
        assert fused_was_taken(lambda: sdpa(*few, dropout_p=0.5))


def test_kernels_that_a_program_asks_for() -> None:
    inputs = to_device(qkv())
    with sdpa_kernel(SDPBackend.MATH):
        assert not fused_was_taken(lambda: sdpa(*inputs))
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(kernel):
            assert fused_was_taken(lambda: sdpa(*inputs))
            with pytest.raises(RuntimeError, match="No viable backend"):
                sdpa(*[x[0] for x in inputs])
    assert torch._fused_sdp_choice(*inputs) == SDPBackend.OVERRIDEABLE.value


@pytest.mark.parametrize("shape", [(5, 8), (4, 5, 8), (2, 3, 4, 5, 8)], ids=str)
def test_other_numbers_of_dimensions(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert_same(sdpa(*[x.to("neuron")] * 3), sdpa(x, x, x))


def test_empty_and_broadcast_batches() -> None:
    for shapes in (
        [(0, 2, 3, 4)] * 3,
        [(2, 2, 0, 4), (2, 2, 3, 4), (2, 2, 3, 4)],
        [(2, 2, 3, 4), (2, 2, 0, 4), (2, 2, 0, 4)],
        [(2, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)],
    ):
        inputs = [torch.randn(s) for s in shapes]
        with sdpa_kernel(SDPBackend.MATH):
            expected = sdpa(*inputs)
        assert_same(sdpa(*to_device(inputs)), expected, strides=False)


@pytest.mark.parametrize("kernels", [[SDPBackend.MATH], [SDPBackend.OVERRIDEABLE]], ids=str)
def test_dropout_draws_the_same_in_eager_and_compiled(kernels: list[SDPBackend]) -> None:
    inputs = to_device(qkv())

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(kernels):
            return sdpa(q, k, v, dropout_p=0.5)

    torch._dynamo.reset()
    seen = []
    for function in (attend, torch.compile(attend, backend="neuron")):
        torch.neuron.manual_seed(5)
        got = results(function, inputs, {})
        seen.append([*got, torch.rand(3, device="neuron")])  # and the generator is as far
    for eager, compiled in zip(*seen, strict=True):
        torch.testing.assert_close(eager.cpu(), compiled.cpu(), rtol=2e-5, atol=2e-5)


def test_transforms_take_the_composition() -> None:
    x, tangent = torch.randn(3, 1, 2, 4, 8), torch.randn(3, 1, 2, 4, 8)

    def attend(x: torch.Tensor) -> torch.Tensor:
        return sdpa(x, x, x, is_causal=True)

    for function in (
        torch.func.vmap(attend),
        lambda x: torch.func.jvp(torch.func.vmap(attend), (x,), (tangent.to(x.device),))[1],
        lambda x: torch.func.grad(lambda y: attend(y).square().sum())(x[0]),
        lambda x: torch.func.vmap(torch.func.grad(lambda y: attend(y).square().sum()))(x),
    ):
        with no_fallback(), sdpa_kernel([SDPBackend.MATH, SDPBackend.OVERRIDEABLE]):
            assert_same(function(x.to("neuron")), function(x), strides=False)


def test_sizes_that_change_in_a_compiled_graph() -> None:
    compiled = torch.compile(
        lambda q, k, v: sdpa(q, k, v, is_causal=True), backend="neuron", dynamic=True
    )
    for length in (4, 5, 9):
        inputs = [torch.randn(2, 2, length, 4) for _ in range(3)]
        with no_fallback():
            assert_same(compiled(*to_device(inputs)), sdpa(*inputs, is_causal=True), strides=False)
