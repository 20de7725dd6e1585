"""CUDA's fused step of an LSTM, which torch has no kernel of for CPUs, by plain operations on memory of the host."""

from __future__ import annotations

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("aten", "IMPL")


def forward(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output and cell, [B, H] each, and what the gates became, [B, 4 H]: input, forget, cell, output.

    The real kernel takes matrices alone, and so does this one.
    """
    for name, each in (("input_gates", input_gates), ("hidden_gates", hidden_gates), ("cx", cx)):
        torch._check(each.ndim == 2, lambda name=name, each=each: f"{name} has {each.ndim} dimensions, must have 2")
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    write, forget, new, read = gates.chunk(4, dim=1)
    write, forget, new, read = write.sigmoid(), forget.sigmoid(), new.tanh(), read.sigmoid()
    cell = forget * cx + write * new
    return read * cell.tanh(), cell, torch.cat((write, forget, new, read), dim=1)


def backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates, [B, 4 H], of `cx`, [B, H], and of a bias, [4 H]."""
    write, forget, new, read = workspace.chunk(4, dim=1)
    grad_output = torch.zeros_like(cx) if grad_hy is None else grad_hy
    squashed = cy.tanh()
    grad_cell = grad_output * read * (1 - squashed**2) + (0 if grad_cy is None else grad_cy)
    parts = (
        grad_cell * new * write * (1 - write),
        grad_cell * cx * forget * (1 - forget),
        grad_cell * write * (1 - new**2),
        grad_output * squashed * read * (1 - read),
    )
    gates = torch.cat(parts, dim=1)
    return gates, grad_cell * forget, gates.sum(0) if has_bias else gates.new_empty(0)


def install() -> None:
    """Have torch find them for tensors of the host, by which those of pretended GPUs are computed."""
    _LIBRARY.impl("_thnn_fused_lstm_cell", forward, "CPU")
    _LIBRARY.impl("_thnn_fused_lstm_cell_backward_impl", backward, "CPU")
