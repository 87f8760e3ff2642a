"""``torch.kaiser_window`` is made on the device, as CPU makes it."""

from __future__ import annotations

import pytest
import torch

from support import no_fallback

# Of CPU's result; bfloat16 on CPU is computed in bfloat16 all the way.
TOLERANCES = {torch.float32: 2e-6, torch.float64: 2e-6, torch.bfloat16: 0.05}


@pytest.mark.parametrize("length", [0, 1, 2, 5, 64])
@pytest.mark.parametrize("periodic", [True, False])
def test_lengths(length: int, periodic: bool) -> None:
    with no_fallback():
        window = torch.kaiser_window(length, periodic=periodic, device="neuron")
    assert window.device.type == "neuron"
    expected = torch.kaiser_window(length, periodic=periodic)
    torch.testing.assert_close(window.cpu(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("beta", [0.0, 2.5, 14.0, -3.0])
def test_shape_parameter(beta: float) -> None:
    window = torch.kaiser_window(9, False, beta, device="neuron")
    torch.testing.assert_close(
        window.cpu(), torch.kaiser_window(9, False, beta), rtol=2e-6, atol=2e-6
    )


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_dtypes(dtype: torch.dtype) -> None:
    window = torch.kaiser_window(12, dtype=dtype, device="neuron").cpu()
    expected = torch.kaiser_window(12, dtype=dtype)
    assert window.dtype == dtype
    torch.testing.assert_close(window, expected, rtol=0, atol=TOLERANCES[dtype])


def test_out_and_the_default_dtype() -> None:
    out = torch.empty(6, device="neuron")
    torch.ops.aten.kaiser_window.out(6, out=out)
    torch.testing.assert_close(out.cpu(), torch.kaiser_window(6), rtol=2e-6, atol=2e-6)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.kaiser_window(4, device="neuron").dtype == torch.bfloat16
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_length": -1}, "non-negative window_length"),
        ({"window_length": 4, "dtype": torch.int64}, "floating point dtypes"),
        ({"window_length": 4, "dtype": torch.complex64}, "not implemented for 'ComplexFloat'"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_what_cpu_refuses(arguments: dict[str, object], message: str, device: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.kaiser_window(**arguments, device=device)
