"""A long short-term memory that is reset wherever an episode starts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

State = tuple[Tensor, Tensor]
"""Output and cell of every item, each [B, H]."""


class Recurrence(NamedTuple):
    """What a recurrent network must know of B sequences of T steps, besides what it sees.

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
    """Return what a policy remembers, [B, 2 H], of the LSTM's state."""
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

    def forward(self, x: Tensor, is_first: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the outputs of all steps and the state after the last.

        Args:
            x: [T, B, F].
            is_first: Steps before which an item's state becomes 0, bool [T, B].
            state: Before the first step.
        """
        gates = functional.linear(x, self.input_weight, self.bias)
        keep = (~is_first).to(x.dtype).unsqueeze(-1)
        output, cell = state
        outputs = []
        for step_gates, step_keep in zip(gates.unbind(), keep.unbind(), strict=True):
            output, cell = output * step_keep, cell * step_keep
            write, forget, new, read = torch.addmm(step_gates, output, self.output_weight.mT).chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + write.sigmoid() * new.tanh()
            output = read.sigmoid() * cell.tanh()
            outputs.append(output)
        return torch.stack(outputs), (output, cell)
