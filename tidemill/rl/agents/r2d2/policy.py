"""R2D2's acting side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Acting, Array, Decision
from tidemill.rl.agents.r2d2.config import R2D2Config
from tidemill.rl.agents.r2d2.loss import sequence_loss, sequence_target
from tidemill.rl.agents.r2d2.networks import build_network, to_state
from tidemill.rl.epsilon_greedy import EpsilonGreedy
from tidemill.rl.networks.image import blank_images
from tidemill.rl.percept import Percept
from tidemill.rl.sequences import RETURN_COLUMNS, unroll_targets
from tidemill.types import EnvSpec

Floats = NDArray[np.float32]


class R2D2Policy:
    """Epsilon-greedy on a recurrent Q-network, whose state it keeps in the percepts."""

    def __init__(self, config: R2D2Config, env_spec: EnvSpec, acting: Acting) -> None:
        self._config = config
        self._shape = config.shape(env_spec.frame_stack)
        self._device = acting.device
        self._network = build_network(config, env_spec, acting.seed).to(acting.device).requires_grad_(False)
        if env_spec.observation_dtype == "uint8":
            images = blank_images(env_spec, acting.place.num_envs)
            self._network.compute_in(acting.precision, images.to(acting.device))
        self._chance = EpsilonGreedy(config, acting.place, acting.seed)
        self.memory_size = config.memory_size

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the network's parameters."""
        self._network.load_state_dict(dict(state))

    def explore(self, percept: Percept, env_steps: int) -> Decision:
        """Return epsilon-greedy actions [N], with the values of the one `taken` and the `best` for first priorities."""
        q, memory = self._think(percept)
        action = self._chance.explore(q, env_steps)
        return Decision(action, {"taken": q[np.arange(len(q)), action], "best": q.max(axis=1)}, memory)

    def greedy(self, percept: Percept) -> Decision:
        """Return the actions of largest Q, [N]."""
        q, memory = self._think(percept)
        return Decision(q.argmax(axis=1), memory=memory)

    @torch.inference_mode()
    def first_priority(self, ticks: Mapping[str, Array]) -> Floats:
        """Return the priority that the learner's update gives each sequence, which starts at its oldest tick, [K].

        It is exact while all parameters are equal to these, those of the ticks of the burn-in included.
        """
        target = unroll_targets({name: ticks[name].T for name in RETURN_COLUMNS}, self._shape, self._config.gamma)
        following = ticks["best"].T[np.arange(len(target.bootstrap))[:, None], target.bootstrap]
        unroll = slice(self._shape.burn_in, self._shape.burn_in + self._shape.unroll)
        arrays = (target.return_, target.discount, following, ticks["taken"][unroll].T, ~ticks["was_reset"][unroll].T)
        return_, discount, best, taken, is_trained = (torch.from_numpy(array.T.copy()) for array in arrays)
        values = sequence_target(return_, discount, best, self._config.value_rescaling)
        priority: Floats = sequence_loss(taken, values, is_trained, self._config.priority_mix).priority.numpy()
        return priority

    @torch.inference_mode()
    def _think(self, percept: Percept) -> tuple[Floats, Floats]:
        """Return Q [N, A], and what is to be remembered, [N, 2 H]."""
        arrays = (percept.observation, percept.last_action, percept.last_reward, percept.is_first, percept.memory)
        *step, memory = (torch.from_numpy(array).to(self._device) for array in arrays)
        q, state = self._network(*(column.unsqueeze(0) for column in step), to_state(memory))
        return q.squeeze(0).cpu().numpy(), torch.cat(state, dim=-1).cpu().numpy()


def build(config: R2D2Config, env_spec: EnvSpec, acting: Acting) -> R2D2Policy:
    """Return the acting side of R2D2; `tidemill.rl.agents.build` calls this."""
    return R2D2Policy(config, env_spec, acting)
