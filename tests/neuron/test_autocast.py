"""``torch.autocast("neuron")`` has CUDA's cast policy, and ``GradScaler`` checks on the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.autocast_test_lists import AutocastTestLists

from support import assert_same, no_fallback

REDUCED = [torch.bfloat16, torch.float16]


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


def calls(lists: AutocastTestLists, name: str, module: Any) -> Iterator[tuple[str, Any]]:
    """Name and result of each operator of one of torch's lists for CUDA's policy."""
    for entry in getattr(lists, name):
        operator, arguments = entry[0], entry[1]
        keywords = entry[2] if len(entry) > 2 and isinstance(entry[2], dict) else {}
        left_out = len(entry) > 2 and not isinstance(entry[2], dict) and bool(entry[2])
        if left_out or "cudnn" in operator or "miopen" in operator:
            continue
        if module is None:
            yield operator, getattr(arguments[0], operator)(*arguments[1:], **keywords)
        else:
            yield operator, getattr(module, operator)(*arguments, **keywords)


@pytest.fixture(scope="module")
def lists() -> AutocastTestLists:
    return AutocastTestLists("neuron")


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize(
    ("name", "module", "least"),
    [
        ("torch_fp16", torch, 25),
        ("nn_fp16", torch._C._nn, 1),
        ("linalg_fp16", torch._C._linalg, 2),
        ("methods_fp16", None, 1),
        ("torch_fp32", torch, 35),
        ("nn_fp32", torch._C._nn, 7),
        ("methods_fp32", None, 1),
    ],
)
def test_cast_policy_is_cudas(
    lists: AutocastTestLists, dtype: torch.dtype, name: str, module: Any, least: int
) -> None:
    expected = dtype if "16" in name else torch.float32
    seen = []
    # On fake tensors: the policy shows in dtypes, and nothing is compiled.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("neuron", dtype=dtype):
        for operator, result in calls(lists, name, module):
            seen.append(operator)
            for tensor in tensors(result):
                if tensor.is_floating_point():
                    assert tensor.dtype == expected, operator
    assert len(seen) >= least, seen


def test_mixed_inputs_are_promoted_to_the_widest(lists: AutocastTestLists) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("neuron"):
        results = list(calls(lists, "torch_need_autocast_promote", torch))
        assert len(results) >= 13
        for operator, result in results:
            for tensor in tensors(result):
                assert tensor.dtype in (torch.float32, torch.bool), operator


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_a_layer_computes_what_it_computes_by_hand(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 8)
    x = torch.randn(4, 16)
    device_layer, y = torch.nn.Linear(16, 8).to("neuron"), x.to("neuron")
    device_layer.load_state_dict(layer.state_dict())
    with no_fallback(), torch.autocast("neuron", dtype=dtype):
        out = device_layer(y)
        loss = torch.nn.functional.mse_loss(out, torch.zeros_like(out))
    assert out.dtype == dtype and loss.dtype == torch.float32
    loss.backward()
    assert device_layer.weight.grad.dtype == torch.float32  # the cast is part of the graph
    with torch.autocast("cpu", dtype=dtype):
        reference = layer(x)
        expected = torch.nn.functional.mse_loss(reference, torch.zeros_like(reference))
    expected.backward()
    assert_same(out, reference)
    assert_same(device_layer.weight.grad, layer.weight.grad, scale=500)  # reduced floats


def test_nesting_and_disabling() -> None:
    a = torch.ones(4, 4, device="neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("neuron")
        with torch.autocast("neuron", enabled=False):
            assert (a @ a).dtype == torch.float32
            with torch.autocast("neuron", dtype=torch.float16):
                assert (a @ a).dtype == torch.float16
        assert (a @ a).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.float16):  # another device's is its own affair
            assert (a @ a).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("neuron")
    assert (a @ a).dtype == torch.float32


def test_defaults_are_cudas() -> None:
    assert torch.get_autocast_dtype("neuron") == torch.get_autocast_dtype("cuda")
    with torch.autocast("neuron"):
        assert torch.get_autocast_dtype("neuron") == torch.float16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("neuron", dtype=torch.float32):
            assert torch.is_autocast_enabled("neuron")


def test_casts_of_weights_are_cached_within_a_context() -> None:
    weight = torch.ones(4, 4, device="neuron", requires_grad=True)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        first = torch.mm(weight, weight)
        second = torch.mm(weight, weight)
    (first.sum() + second.sum()).backward()
    casts = set()

    def collect(node: Any) -> None:
        for child, _ in node.next_functions:
            if child is not None:
                if "ToCopy" in child.name():
                    casts.add(child)
                collect(child)

    collect(first.grad_fn)
    collect(second.grad_fn)
    assert len(casts) == 1
    assert_same(weight.grad, torch.full((4, 4), 16.0))


def test_losses_that_overflow_are_refused() -> None:
    p = torch.full((3,), 0.5, device="neuron")
    with (
        torch.autocast("neuron", dtype=torch.float16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        torch.nn.functional.binary_cross_entropy(p, p)
    torch.nn.functional.binary_cross_entropy(p, p)


class Multiply(torch.autograd.Function):
    """A product whose dtypes the test can see."""

    seen: ClassVar[list[Any]] = []

    @staticmethod
    @torch.amp.custom_fwd(device_type="neuron")
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        Multiply.seen.append((a.dtype, torch.is_autocast_enabled("neuron")))
        return a @ b

    @staticmethod
    @torch.amp.custom_bwd(device_type="neuron")
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        Multiply.seen.append((grad.dtype, torch.is_autocast_enabled("neuron")))
        return grad @ b.t(), a.t() @ grad


class MultiplyInFloat(Multiply):
    """Runs without autocast, on inputs cast to float32."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="neuron", cast_inputs=torch.float32)
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        Multiply.seen.append((a.dtype, torch.is_autocast_enabled("neuron")))
        return a @ b


def test_custom_functions_see_the_state_of_their_forward() -> None:
    x = torch.ones(3, 3, device="neuron", dtype=torch.bfloat16, requires_grad=True)
    Multiply.seen.clear()
    with torch.autocast("neuron", dtype=torch.bfloat16):
        y = Multiply.apply(x, x)
    y.sum().backward()
    assert Multiply.seen == [(torch.bfloat16, True), (torch.bfloat16, True)]
    Multiply.seen.clear()
    with torch.autocast("neuron", dtype=torch.bfloat16):
        y = MultiplyInFloat.apply(x, x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert Multiply.seen == [(torch.float32, False), (torch.float32, False)]


# -- GradScaler -----------------------------------------------------------------------------------


def scaler_of(device: str) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device, init_scale=256.0, growth_interval=2)


def steps(device: str, gradients: list[float]) -> tuple[list[float], torch.Tensor]:
    """Scales after each step with these gradients, and the weight after all of them."""
    weight = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = scaler_of(device)
    scales = []
    for gradient in gradients:
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([weight], 100.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, weight.detach()


def test_scaler_skips_overflows_and_grows() -> None:
    gradients = [1.0, float("inf"), 0.5, 0.25, float("nan"), 1.0]
    with no_fallback(), warnings.catch_warnings():
        warnings.simplefilter("error")  # the scale's reciprocal is float64: no warning
        scales, weight = steps("neuron", gradients)
    expected_scales, expected = steps("cpu", gradients)
    assert scales == expected_scales == [256.0, 128.0, 128.0, 256.0, 128.0, 128.0]
    assert_same(weight, expected)


def test_the_check_for_overflow_stays_on_the_device() -> None:
    weight = torch.ones(3, device="neuron", requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    scaler = scaler_of("neuron")
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)  # a fused optimizer takes the scale and the flag as tensors
    (found,) = scaler._found_inf_per_device(optimizer).values()
    assert found.device.type == "neuron"
    assert found.item() == 1.0
    assert_same(weight.detach(), torch.ones(3))


def test_scaler_state_round_trips() -> None:
    scaler = scaler_of("neuron")
    scaler.scale(torch.ones(1, device="neuron"))
    scaler.update(64.0)
    twin = scaler_of("neuron")
    twin.load_state_dict(scaler.state_dict())
    assert twin.get_scale() == 64.0
    assert_same(twin.scale(torch.ones(2, device="neuron")), torch.full((2,), 64.0))
