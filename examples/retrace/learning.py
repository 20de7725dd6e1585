"""Both sides of Retrace: the agent that learns and the policy that acts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from retrace.config import RetraceConfig
from retrace.loss import retrace_target
from tidemill import EnvSpec, PolicyContext, PolicyInput, PolicyOutput, Update
from tidemill.rl.networks.layers.linear import flat, linear
from tidemill.rl.optimizers import Adam
from tidemill.rl.target_network import TargetNetwork
from tidemill.rl.train_state import TrainedAgent, TrainState
from tidemill.rl.transitions import unrolled_transitions

LOG_PROB = "log_prob"
"""The extra column."""


class QNetwork(nn.Module):
    """Observations [B, ...] -> the value of each action, [B, A]."""

    def __init__(self, config: RetraceConfig, env_spec: EnvSpec, seed: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        widths = (env_spec.observation_size, *config.hidden_sizes)
        self.hidden = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
        self.head = linear(widths[-1], env_spec.num_actions, rng)

    def forward(self, observation: Tensor) -> Tensor:
        """Return Q, [B, A]."""
        x = flat(observation)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        q: Tensor = self.head(x)
        return q


class RetraceAgent(TrainedAgent):
    """A Q-network, its target and one optimizer."""

    recurrent_state_size = 0

    def __init__(self, config: RetraceConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config, self._frame_stack = config, env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        self._online = QNetwork(config, env_spec, seed).to(device)
        self._target = TargetNetwork(self._online, every=0, tau=config.tau)
        self._optimizer = Adam(self._online.parameters(), config.learning_rate)
        networks = {"online": self._online, "target": self._target.network}
        self._state = TrainState(networks, {"optimizer": self._optimizer})

    def decode(self, columns: Mapping[str, NDArray[Any]], index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the steps of each window, with the log-probability that the actor stored."""
        steps, gamma = self._config.steps, self._config.gamma
        return unrolled_transitions(columns, index, self._frame_stack, steps, gamma, extras=(LOG_PROB,))

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one update on the first action of each window."""
        target, trace = self._first_target(batch)
        q = self._online(batch["observation"][:, 0]).gather(1, batch["action"][:, :1]).squeeze(1)
        error = target - q
        loss = (weight * 0.5 * error.square()).mean()
        self._optimizer.minimize(loss, self._state.group)
        self._state.updates += 1
        self._target.update(self._optimizer.parameters, self._state.updates)
        metrics = {"loss": loss.detach(), "q": q.detach().mean(), "trace": trace.mean()}
        return Update(error.detach().abs(), metrics)

    @torch.no_grad()
    def _first_target(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the target of each window's first step, [B], and the traces, [n, B]."""
        observation, action = batch["observation"][:, 1:], batch["action"][:, 1:]
        q = self._target.network(observation.flatten(0, 1)).unflatten(0, observation.shape[:2])  # [B, n, A]
        chosen_q = q.gather(2, action.unsqueeze(-1)).squeeze(-1)
        is_greedy = (action == q.argmax(dim=2)).float()  # pi(a|s) of the greedy policy
        ratio = is_greedy / batch[LOG_PROB][:, 1:].exp()
        trace = self._config.trace_decay * ratio.clamp(max=1.0) * batch["continues"]
        columns = (batch["reward"], batch["discount"], trace, q.amax(dim=2), chosen_q)
        return retrace_target(*(column.transpose(0, 1) for column in columns))[0], trace.transpose(0, 1)


class RetracePolicy:
    """Epsilon-greedy, and says how likely each action was."""

    recurrent_state_size = 0

    def __init__(self, config: RetraceConfig, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._epsilon, self._num_actions, self._device = config.epsilon, env_spec.num_actions, context.device
        self._network = QNetwork(config, env_spec, context.seed).to(context.device).requires_grad_(False)
        self._rng = np.random.default_rng(context.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the network's parameters."""
        self._network.load_state_dict(dict(state))

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:  # noqa: ARG002
        """Return epsilon-greedy actions [N] and their log-probabilities; in evaluation greedy ones."""
        best = self._network(torch.from_numpy(policy_input.observation).to(self._device)).argmax(dim=1).cpu().numpy()
        if evaluation:
            return PolicyOutput(best)
        explores = self._rng.random(len(best)) < self._epsilon
        action = np.where(explores, self._rng.integers(self._num_actions, size=len(best)), best)
        probability = self._epsilon / self._num_actions + (1.0 - self._epsilon) * (action == best)
        return PolicyOutput(action, extras={LOG_PROB: np.log(probability).astype(np.float32)})

    def initial_priority(self, steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return 1 for each window, [K]."""
        return np.ones(steps["reward"].shape[1], dtype=np.float32)
