"""State of one actor between two steps: stacks, recurrent states, and its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument
from tidemill.inference.wire import Opening, Seen
from tidemill.rl.agents.interface import NoiseRows
from tidemill.rl.policy_io import FrameStack, PolicyInput


class Session:
    """One actor's environments."""

    def __init__(self, opening: Opening, device: torch.device) -> None:
        """Know nothing yet: the first step must be whole.

        Args:
            opening: What the actor said, checked.
            device: Where its noise is drawn.
        """
        spec = opening.spec
        self._stack = FrameStack(opening.num_envs, spec.frame_stack, spec.observation_shape, spec.observation_dtype)
        self._needs_whole = spec.frame_stack > 1 or opening.recurrent_state_size > 0
        self._recurrent_state: NDArray[np.float32] | None = None
        rng = torch.Generator(device).manual_seed(opening.noise_seed)
        self.noise = NoiseRows(rng, opening.num_envs)
        """Where the noise of its environments comes from."""

    def take(self, seen: Seen) -> PolicyInput:
        """Return the policy's input for a step; its stacks change with the next step.

        Raises:
            InvalidArgument: The first step lacks what came before it.
        """
        if self._needs_whole and not seen.is_whole:
            raise InvalidArgument("seen is `newest`, must be `stacks` in a call's first step")
        self._needs_whole = False
        observation = seen.observation
        stacks = self._stack.restore(observation) if seen.is_whole else self._stack.push(observation, seen.is_first)
        state = self._recurrent_state if seen.recurrent_state is None else seen.recurrent_state
        assert state is not None, "the first step is whole"
        return PolicyInput(stacks, seen.is_first, seen.last_action, seen.last_reward, state)

    def remember(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Keep the recurrent state of an answer for the next step."""
        self._recurrent_state = arrays.get("recurrent_state")
