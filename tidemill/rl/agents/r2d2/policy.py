"""R2D2's acting side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.agents.interface import Array, NoiseRows, PolicyContext
from tidemill.rl.agents.r2d2.loss import sequence_loss, sequence_target
from tidemill.rl.agents.r2d2.networks import build_network
from tidemill.rl.exploration import EpsilonGreedy, greedy
from tidemill.rl.networks.image import blank_images
from tidemill.rl.networks.lstm import to_recurrent_state, to_state
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.sequences import RETURN_COLUMNS, unroll_targets
from tidemill.rl.settings.q_learning import R2D2Config
from tidemill.types import EnvSpec

Floats = NDArray[np.float32]


class R2D2Policy:
    """Epsilon-greedy on a recurrent Q-network, whose state it keeps in the inputs."""

    priority_uses_params = False

    def __init__(self, config: R2D2Config, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._config = config
        self._shape = config.shape(env_spec.frame_stack)
        self._device = context.device
        self._network = build_network(config, env_spec, context.seed).to(context.device).requires_grad_(False)
        self._network.eval()
        if env_spec.is_image:
            images = blank_images(env_spec, context.slot.num_envs)
            self._network.set_compute_dtype(context.precision, images.to(context.device))
        self._chance = EpsilonGreedy(config, context.slot, context.seed)
        self.recurrent_state_size = config.recurrent_state_size

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the network's parameters."""
        self._network.load_state_dict(dict(state))

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return epsilon-greedy actions [N], or in evaluation those of largest Q.

        Initial priorities want back the values of the action `chosen` and of the `best`, [N].
        """
        output = self.forward(policy_input)
        if not evaluation:
            return self.choose(policy_input, output, env_steps)
        q, recurrent_state = _arrays(output)
        return PolicyOutput(greedy(q, policy_input.action_mask), recurrent_state=recurrent_state)

    def choose(self, policy_input: PolicyInput, output: Mapping[str, Tensor], env_steps: int = 0) -> PolicyOutput:
        """Return epsilon-greedy actions [N] by Q; see `act`."""
        q, recurrent_state = _arrays(output)
        action = self._chance.explore(q, env_steps, policy_input.action_mask)
        rows, best = np.arange(len(q)), greedy(q, policy_input.action_mask)
        return PolicyOutput(action, {"chosen": q[rows, action], "best": q[rows, best]}, recurrent_state)

    @torch.inference_mode()
    def initial_priority(self, steps: Mapping[str, Array]) -> Floats:
        """Return the priority that the learner's update gives each sequence, which starts at its oldest step, [K].

        It is exact while all parameters are equal to these, those of the steps of the burn-in included.
        """
        target = unroll_targets({name: steps[name].T for name in RETURN_COLUMNS}, self._shape, self._config.gamma)
        bootstrap_q = steps["best"].T[np.arange(len(target.bootstrap))[:, None], target.bootstrap]
        unroll = slice(self._shape.burn_in, self._shape.burn_in + self._shape.unroll)
        arrays = (
            target.return_,
            target.discount,
            bootstrap_q,
            steps["chosen"][unroll].T,
            ~steps["is_reset_step"][unroll].T,
        )
        return_, discount, best, chosen, is_trained = (torch.from_numpy(array.T.copy()) for array in arrays)
        values = sequence_target(return_, discount, best, self._config.value_rescaling)
        priority: Floats = sequence_loss(chosen, values, is_trained, self._config.priority_mix).priority.numpy()
        return priority

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return Q as `q`, [N, A], and the next `recurrent_state`, [N, 2 H]."""
        arrays = (
            policy_input.observation,
            policy_input.last_action,
            policy_input.last_reward,
            policy_input.is_first,
            policy_input.recurrent_state,
        )
        *step, recurrent_state = (torch.from_numpy(array).to(self._device) for array in arrays)
        q, state = self._network(*(column.unsqueeze(0) for column in step), to_state(recurrent_state))
        return {"q": q.squeeze(0), "recurrent_state": to_recurrent_state(state)}


def _arrays(output: Mapping[str, Tensor]) -> tuple[Floats, Floats]:
    return output["q"].cpu().numpy(), output["recurrent_state"].cpu().numpy()


def build(config: R2D2Config, env_spec: EnvSpec, context: PolicyContext) -> R2D2Policy:
    """Return the acting side of R2D2; `tidemill.rl.agents.registry` calls this."""
    return R2D2Policy(config, env_spec, context)
