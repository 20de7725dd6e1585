"""A long short-term memory that is reset wherever an episode starts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

State = tuple[Tensor, Tensor]
"""Output and cell of every item, each [B, H]."""


class Recurrence(NamedTuple):
    """Inputs of a recurrent network for B sequences of T steps, besides observations.

    Attributes:
        is_first: Steps before which the state becomes 0, bool [T, B].
        recurrent_state: Before the first step, as a policy keeps it: output and cell side by side, float32 [B, 2 H].
    """

    is_first: Tensor
    recurrent_state: Tensor

    def at(self, index: Tensor) -> Recurrence:
        """Return some of the sequences."""
        return Recurrence(self.is_first[:, index], self.recurrent_state[index])


def to_state(recurrent_state: Tensor) -> State:
    """Return the LSTM's state of what a policy remembers, [B, 2 H]."""
    output, cell = recurrent_state.chunk(2, dim=-1)
    return output, cell


def to_recurrent_state(state: State) -> Tensor:
    """Return the LSTM's state as a policy remembers it, [B, 2 H]."""
    return torch.cat(state, dim=-1)


class LSTM(nn.Module):
    """Sequences [T, B, F] -> [T, B, H] (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    torch's own knows no resets within a sequence. The product with the inputs is made for all steps at once; only that
    with the outputs goes step by step.
    """

    def __init__(self, inputs: int, size: int, rng: torch.Generator) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(size)  # as torch.nn.LSTM starts
        self.input_weight = nn.Parameter(torch.empty(4 * size, inputs).uniform_(-bound, bound, generator=rng))
        self.output_weight = nn.Parameter(torch.empty(4 * size, size).uniform_(-bound, bound, generator=rng))
        bias = torch.zeros(4 * size)
        bias[size : 2 * size] = 1.0  # the forget gate starts open (Jozefowicz et al. 2015)
        self.bias = nn.Parameter(bias)
        self.size = size

    def gates(self, x: Tensor) -> Tensor:
        """Return the inputs' [T, B, F] share of the gates of each step, [T, B, 4 H]: write, forget, new, read."""
        return functional.linear(x, self.input_weight, self.bias)

    def forward(self, x: Tensor, is_first: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the outputs of all steps and the state after the last.

        Args:
            x: [T, B, F].
            is_first: Steps before which an item's state becomes 0, bool [T, B].
            state: Before the first step.
        """
        return unrolled(self.gates(x), self.output_weight, is_first, state)


def unrolled(
    gates: Tensor, weight: Tensor, is_first: Tensor, state: State, fixed: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, State]:
    """Return the outputs of all steps and the state after the last, of one LSTM or of two in step with each other.

    On a GPU a step is three kernels, and three more on the way back, so two together cost as many as one.

    Args:
        gates: Of the inputs, as `LSTM.gates` returns them, [T, B, 4 H].
        weight: From outputs to gates, [4 H, H].
        is_first: Steps before which an item's state becomes 0, bool [T, B].
        state: Before the first step, each [B, H], or [2, B, H] with `fixed`.
        fixed: Gates and weight of the second LSTM, which get no gradient.

    Returns:
        Outputs [T, B, H], or [T, 2, B, H] with `fixed`.
    """
    acts = len(gates) == 1 and gates.device.type == "cpu"
    if torch.compiler.is_compiling() or acts:
        outputs, cell = _traced(gates, weight, is_first, state, fixed)
    else:
        outputs, cell = _Unroll.apply(gates, weight, *(fixed or (None, None)), is_first, *state)  # type: ignore[no-untyped-call]  # torch's
    return outputs, (outputs[-1], cell)


def unrolled_past(
    burn_in_gates: Tensor,
    gates: Tensor,
    weight: Tensor,
    is_first: Tensor,
    state: State,
    fixed: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the outputs of the steps after a burn-in, which only warms the state up: no gradient flows into it.

    Args:
        burn_in_gates: Gates of the burn-in's steps, without a graph, [S, B, 4 H].
        gates: Gates of the steps after it, [T, B, 4 H].
        weight: From outputs to gates, [4 H, H].
        is_first: Steps before which the state becomes 0, bool [S + T, B].
        state: Before the burn-in, each [B, H], or [2, B, H] with `fixed`.
        fixed: Gates [S + T, B, 4 H] and weight of a second LSTM, as in `unrolled`.

    Returns:
        Outputs [T, B, H], or [T, 2, B, H] with `fixed`.
    """
    burn_in = len(burn_in_gates)
    if burn_in:
        warming = None if fixed is None else (fixed[0][:burn_in], fixed[1])
        with torch.no_grad():
            _, state = unrolled(burn_in_gates, weight, is_first[:burn_in], state, warming)
    rest = None if fixed is None else (fixed[0][burn_in:], fixed[1])
    return unrolled(gates, weight, is_first[burn_in:], state, rest)[0]


_CLOSED = -1e9
"""Of a forget gate: its sigmoid is 0, and so is its gradient."""


def _together(gates: Tensor, weight: Tensor, fixed_gates: Tensor | None, fixed_weight: Tensor | None) -> State:
    """Return gates [T, N, B, 4 H] and weights [N, 4 H, H] of two LSTMs, or those of one without N."""
    if fixed_gates is None or fixed_weight is None:
        return gates, weight
    return torch.stack((gates, fixed_gates), dim=1), torch.stack((weight, fixed_weight))


def _close_forget_gates(gates: Tensor, is_first: Tensor) -> None:
    """Have steps that begin an episode forget the cell, in place: one kernel for all steps instead of one for each."""
    size = gates.shape[-1] // 4
    mask = is_first.view(len(is_first), *(1 for _ in gates.shape[2:-1]), is_first.shape[1], 1)
    gates[..., size : 2 * size].masked_fill_(mask, _CLOSED)


def _kept(is_first: Tensor, like: Tensor) -> Tensor:
    """Return 0 where an episode begins and 1 elsewhere, [T, B, 1]."""
    return (~is_first).to(like.dtype).unsqueeze(-1)


def _traced(
    gates: Tensor, weight: Tensor, is_first: Tensor, state: State, fixed: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and the last cell by operations that a compiler sees through, and that cost one step the least."""
    gates, weight = _together(gates, weight, *(fixed or (None, None)))
    keep = _kept(is_first, gates)
    add_product = torch.addmm if weight.ndim == 2 else torch.baddbmm
    output, cell = state
    outputs = []
    for step_gates, step_keep in zip(gates.unbind(), keep.unbind(), strict=True):
        output, cell = output * step_keep, cell * step_keep
        write, forget, new, read = add_product(step_gates, output, weight.mT).chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
        output = read.sigmoid() * cell.tanh()
        outputs.append(output)
    return torch.stack(outputs), cell


class _Unroll(torch.autograd.Function):
    """All steps of `unrolled`, and all of them back in the reverse order."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - keeps what it is given
        gates: Tensor,
        weight: Tensor,
        fixed_gates: Tensor | None,
        fixed_weight: Tensor | None,
        is_first: Tensor,
        output: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last cell."""
        ctx.is_pair = fixed_gates is not None
        own_weight = weight
        gates, weight = _together(gates, weight, fixed_gates, fixed_weight)
        gates = gates if ctx.is_pair else gates.clone()  # written to below
        _close_forget_gates(gates, is_first)
        keep, first = _kept(is_first, gates), output
        outputs, cells, activations = [], [cell], []
        for step_gates, step_keep in zip(gates.unbind(), keep.unbind(), strict=True):
            output, cell, activation = _step(step_gates, output * step_keep, cells[-1], weight)
            outputs.append(output)
            if any(ctx.needs_input_grad):
                cells.append(cell)
                activations.append(activation)
            else:
                cells = [cell]
        stacked = torch.stack(outputs)
        if activations:
            ctx.save_for_backward(own_weight, keep, first, stacked, *cells, *activations)
        return stacked, cell

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        grad_outputs: Tensor,
        grad_cell: Tensor,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of gates, weight and state; of two LSTMs only the first has any."""
        weight, keep, first, outputs, *saved = ctx.saved_tensors
        cells, activations = saved[: len(outputs) + 1], saved[len(outputs) + 1 :]
        if ctx.is_pair:
            grad_outputs, outputs, grad_cell, first = grad_outputs[:, 0], outputs[:, 0], grad_cell[0], first[0]
            cells, activations = [cell[0] for cell in cells], [each[0] for each in activations]
        grad_output, grad_gates = grad_outputs[-1], []
        for step in reversed(range(len(outputs))):
            grad_step, grad_cell = _step_back(grad_output, grad_cell, cells[step], cells[step + 1], activations[step])
            grad_gates.append(grad_step)
            if step:
                grad_output = torch.addcmul(grad_outputs[step - 1], grad_step @ weight, keep[step])
        grad_gates.reverse()
        stacked = torch.stack(grad_gates)
        before = torch.cat((first[None], outputs[:-1])) * keep
        grad_weight = stacked.flatten(0, 1).mT @ before.flatten(0, 1)
        needs_state = any(ctx.needs_input_grad[5:]) and not ctx.is_pair
        grad_state = ((grad_gates[0] @ weight) * keep[0], grad_cell) if needs_state else (None, None)
        return stacked, grad_weight, None, None, None, *grad_state


def _step(gates: Tensor, output: Tensor, cell: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return output and cell, [..., B, H] each, and what the gates became, [..., B, 4 H], of one step.

    Args:
        gates: Of the inputs, [..., B, 4 H].
        output: Of the step before, 0 where an episode begins.
        cell: Of the step before.
        weight: From outputs to gates, [..., 4 H, H].
    """
    if gates.device.type == "cuda":  # torch's own kernel takes two dimensions
        flat = torch.matmul(output, weight.mT).flatten(0, -2)
        made = torch.ops.aten._thnn_fused_lstm_cell(gates.flatten(0, -2), flat, cell.flatten(0, -2))
        output, cell, activation = (each.view(*gates.shape[:-1], -1) for each in made)
        return output, cell, activation
    size = output.shape[-1]
    activation = (torch.addmm if gates.ndim == 2 else torch.baddbmm)(gates, output, weight.mT)
    activation[..., : 2 * size].sigmoid_()
    activation[..., 2 * size : 3 * size].tanh_()
    activation[..., 3 * size :].sigmoid_()
    write, forget, new, read = activation.chunk(4, dim=-1)
    cell = torch.addcmul(forget * cell, write, new)
    return read * cell.tanh(), cell, activation


def _step_back(
    grad_output: Tensor, grad_cell: Tensor, before: Tensor, cell: Tensor, activation: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a step's gates, [B, 4 H], and of the cell before it, [B, H].

    Args:
        grad_output: Of what the step returned, [B, H].
        grad_cell: Likewise.
        before: The cell before the step.
        cell: After it.
        activation: What the gates became.
    """
    if activation.device.type == "cuda":
        back = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
        grad_gates, grad_before, _ = back(grad_output, grad_cell, before, cell, activation, False)
        return grad_gates, grad_before
    write, forget, new, read = activation.chunk(4, dim=-1)
    squashed = cell.tanh()
    grad_cell = grad_cell + grad_output * read * (1 - squashed * squashed)
    parts = (
        grad_cell * new * (write * (1 - write)),
        grad_cell * before * (forget * (1 - forget)),
        grad_cell * write * (1 - new * new),
        grad_output * squashed * (read * (1 - read)),
    )
    return torch.cat(parts, dim=-1), grad_cell * forget
