"""``_unsafe_view`` is metadata, as PyTorch's own: it copies nothing and can be written to."""

from __future__ import annotations

import torch

import torch_neuronx


def test_unsafe_view_shares_the_storage_and_launches_nothing() -> None:
    x = torch.arange(6.0, device="neuron")
    torch_neuronx.clear_op_tracking()
    y = torch.ops.aten._unsafe_view(x, [2, 3])
    assert torch_neuronx.get_executed_ops() == []
    assert y.data_ptr() == x.data_ptr()
    y[1] = 9.0
    assert x.tolist() == [0.0, 1.0, 2.0, 9.0, 9.0, 9.0]


def test_kron_out() -> None:
    a, b = torch.randn(2, 3), torch.randn(3, 2)
    out = torch.zeros(6, 6, device="neuron")
    torch.kron(a.to("neuron"), b.to("neuron"), out=out)
    torch.testing.assert_close(out.cpu(), torch.kron(a, b))


def test_gradient_through_a_product_of_more_than_two_dimensions() -> None:
    a, w = torch.randn(2, 3, 4), torch.randn(4, 5)
    grads = []
    for device in ("cpu", "neuron"):
        x, y = (t.clone().to(device).requires_grad_() for t in (a, w))
        torch.matmul(x, y).square().sum().backward()
        assert x.grad is not None and y.grad is not None
        grads.append([x.grad.cpu(), y.grad.cpu()])
    for got, want in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
