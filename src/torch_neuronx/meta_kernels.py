"""Shapes of operators that reach this device and have no whole meta kernel in PyTorch 2.13.

Registered beside PyTorch's own, so that eager planning, fake tensors and torch.compile know them.
"""

from __future__ import annotations

import torch


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """hy like hx (N, H), and the workspace (N, 5 H)."""
    hy = torch.empty_like(hx, memory_format=torch.contiguous_format)
    return hy, hx.new_empty(hx.shape[0], 5 * hx.shape[1])


def gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of both gates (N, 3 H), of hx (N, H), and of both biases (3 H) if there are any."""
    n, hidden = workspace.shape[0], workspace.shape[1] // 5
    gates = workspace.new_empty(n, 3 * hidden)
    bias = workspace.new_empty(3 * hidden) if has_bias else None
    return (
        gates,
        torch.empty_like(gates),
        workspace.new_empty(n, hidden),
        bias,
        None if bias is None else torch.empty_like(bias),
    )


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """hy and cy like cx (N, H), and the workspace like the gates (N, 4 H).

    PyTorch's own needs the biases; a network made with bias=False has none.
    """
    workspace = torch.empty_like(input_gates, memory_format=torch.contiguous_format)
    hy = torch.empty_like(cx, memory_format=torch.contiguous_format)
    return hy, torch.empty_like(hy), workspace


_KERNELS = {
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}
_libraries: list[torch.library.Library] = []  # an IMPL library undoes itself when it is dropped


def register() -> None:
    """Register them all; where PyTorch has one, it knows only part of the calls."""
    library = torch.library.Library("aten", "IMPL", "Meta")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, allow_override=True)
    _libraries.append(library)
