"""DQN (Mnih et al. 2015) and its variants: double, dueling, noisy, C51, QR, IQN, Munchausen; with all of it, BTR."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.arrays import Array
from tidemill.rl.agents.dqn_heads import QuantileHead, build_value_head
from tidemill.rl.agents.interface import NoiseRows, PolicyContext, Update
from tidemill.rl.agents.normalizer import ActedRewards, reward_columns
from tidemill.rl.agents.q_learning import QLearningAgent
from tidemill.rl.exploration import EpsilonGreedy, greedy
from tidemill.rl.losses import even_levels, log_policy_bonus, mask_illegal, soft_value
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.layers.image import blank_images
from tidemill.rl.networks.layers.linear import Linear, linear, xavier_uniform
from tidemill.rl.networks.layers.noisy import disable_noise, reset_noise, reset_noise_rows
from tidemill.rl.networks.precision import MixedPrecision, Precision, acting_dtype
from tidemill.rl.networks.q_head import QHead
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.process_group import draw_uniform
from tidemill.rl.returns import n_step
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.transitions import gather_frame_stacks, transitions
from tidemill.types import ACTION_MASK, EnvSpec


def gather_argmax(output: Tensor, chooser_q: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return the numbers of the action of largest `chooser_q` [B, A], [B, K], of a network's output [B, A, K].

    Only actions that are `legal`, bool [B, A], are compared; None: all are.

    With the target network's own Q it is Q-learning, with the online network's double Q-learning (van Hasselt et al.
    2016, eq. 4).
    """
    return gather_action(output, mask_illegal(chooser_q, legal).argmax(dim=1))


def gather_action(output: Tensor, action: Tensor) -> Tensor:
    """Return the numbers of one action of each item, [B, K], of a network's output [B, A, K]."""
    index = action[:, None, None].expand(-1, 1, output.shape[2])
    return output.gather(1, index).squeeze(1)


def munchausen_bonus(config: DQNConfig, q: Tensor, action: Tensor) -> Tensor:
    """Return `log_policy_bonus` with the settings' bounds, [B], of mean values [B, A] and actions [B]."""
    return log_policy_bonus(
        q,
        action,
        scale=config.munchausen_scale,
        temperature=config.munchausen_temperature,
        lowest=config.munchausen_lowest,
    )


class QuantileEmbedding(nn.Module):
    """Features [B, F] and levels [B, K] -> [B, K, F], each feature times what the level makes of it.

    A level t is described by cos(pi * i * t) for i from 0 to `cosines` - 1, and a linear layer with ReLU (Dabney et al.
    2018b, eq. 4).
    """

    def __init__(self, features: int, cosines: int, rng: torch.Generator) -> None:
        super().__init__()
        self.layer = linear(cosines, features, rng)
        self._cosines = cosines

    def forward(self, features: Tensor, level: Tensor) -> Tensor:
        """Return [B, K, F] in the features' number format."""
        order = torch.arange(self._cosines, device=level.device, dtype=level.dtype)
        waves = torch.cos(math.pi * order * level[:, :, None])
        return features[:, None, :] * torch.relu(self.layer(waves)).to(features.dtype)


class QNetwork(MixedPrecision):
    """A torso and a head: observations [B, ...] -> K numbers for each action, float32 [B, A, K].

    With `iqn` the numbers are quantiles, of levels that are joined to the features between torso and head.
    """

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.torso = build_torso(
            config.network, env_spec, rng, config.network_settings, standardized=config.normalize_observations
        )
        features = int(self.torso.outputs)  # type: ignore[arg-type]  # every torso has it
        self._levels = config.atoms if config.distribution == "iqn" else 0
        self.embedding = QuantileEmbedding(features, config.cosines, rng) if self._levels else None
        self.head = QHead(
            features,
            config.hidden_sizes,
            env_spec.num_actions,
            1 if self._levels else config.values_per_action,
            rng,
            dueling=config.dueling,
            noise_std=config.noisy_std if config.noisy else 0.0,
        )
        if config.initialisation == "xavier":
            xavier_uniform(self, rng)

    def forward(self, observation: Tensor, level: Tensor | None = None) -> Tensor:
        """Return [B, A, K]; what they mean says `tidemill.rl.agents.dqn_heads`.

        Args:
            observation: [B, ...].
            level: Of `iqn`, which quantiles, [B, K]; without it as many as the settings say, evenly spread.
        """
        with self.matmul_precision(self.torso, self.embedding, *self.head.hidden_layers()):
            features = self.torso(observation)
            if self.embedding is None:
                output: Tensor = self.head(features)
                return output
            if level is None:
                level = even_levels(self._levels, features.device).expand(len(features), -1)
            quantiles: Tensor = self.head(self.embedding(features, level))  # [B, K, A, 1]
        return quantiles.squeeze(-1).transpose(1, 2)

    def set_compute_dtype(self, precision: Precision, images: Tensor) -> None:
        """Put all but the last layers in the number format asked for; `images` is a batch that `auto` is timed on."""
        dtype = acting_dtype(self.torso, images, precision)
        rows = len(images) * max(self._levels, 1)
        for module in (self.torso, *self.head.hidden_layers()):
            module.to(dtype)
            if isinstance(module, Linear):
                module.pack(rows)


def build_network(config: DQNConfig, env_spec: EnvSpec, seed: int) -> QNetwork:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return QNetwork(config, env_spec, torch.Generator().manual_seed(seed))


class DQNAgent(QLearningAgent[QNetwork]):
    """A Q-network, its target and one optimizer."""

    recurrent_state_size = 0
    observation_columns = ("observation", "bootstrap_observation")

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self._stack_on_device = device.type == "cuda" and env_spec.frame_stack > 1
        self.window = config.window(env_spec.frame_stack)
        self._masks = (ACTION_MASK,) if env_spec.masks_actions else ()
        self._value_head = build_value_head(config, device)
        self._noise = torch.Generator(device).manual_seed(seed)
        online = build_network(config, env_spec, seed).to(device)
        super().__init__(config, env_spec, device, online, self._noise)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return n-step transitions; see `tidemill.rl.transitions.transitions`."""
        return transitions(
            columns,
            index,
            self._frame_stack,
            self._config.n_step,
            self._config.gamma,
            stack_on_device=self._stack_on_device,
            extras=(*(self._masks if self._config.munchausen_scale else ()), *reward_columns(self._config)),
            bootstrap_extras=self._masks,
        )

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Take one update on the loss of the values and move the target network if it is time."""
        return super().update(gather_frame_stacks(batch), weight)

    def _loss_of(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, [], the items' new priorities, [B], and the mean value of the actions taken, []."""
        bootstrap_q = self.bootstrap_values(batch["bootstrap_observation"], batch.get(f"bootstrap_{ACTION_MASK}"))
        n_step_return = batch["n_step_return"]
        if self._config.munchausen_scale:
            n_step_return = n_step_return + self._log_policy_bonus(batch)
        self._reset_noise(self._online, noisy=True)
        level = self._drawn_levels(len(n_step_return))
        chosen_q = gather_action(self._online(batch["observation"], level), batch["action"])
        head = self._value_head if level is None else QuantileHead(level)
        item = head.loss(chosen_q, n_step_return, batch["bootstrap_discount"], bootstrap_q)
        return (weight * item.loss).mean(), item.priority, self._value_head.mean(chosen_q.detach()).mean()

    @torch.no_grad()
    def bootstrap_values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Return the target network's numbers for the legal action chosen at the bootstrap observation, [B, K].

        With Munchausen nothing is chosen: they are the soft policy's.
        """
        noisy = self._config.noisy_target
        self._reset_noise(self._target.network, noisy=noisy)
        output: Tensor = self._target.network(observation, self._drawn_levels(len(observation)))
        if self._config.munchausen_scale:
            q = mask_illegal(self._value_head.mean(output), legal)
            return soft_value(output, q, self._config.munchausen_temperature)
        chooser = output
        if self._config.double:
            self._reset_noise(self._online, noisy=noisy)  # apart from that of the prediction
            chooser = self._online(observation)
        return gather_argmax(output, self._value_head.mean(chooser), legal)

    @torch.no_grad()
    def _log_policy_bonus(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the Munchausen bonus of the first reward, [B], by the target network with its last noise."""
        q = mask_illegal(self._value_head.mean(self._target.network(batch["observation"])), batch.get(ACTION_MASK))
        return munchausen_bonus(self._config, q, batch["action"])

    def _drawn_levels(self, count: int) -> Tensor | None:
        """Return the levels whose quantiles a pass of `count` items predicts, [B, K]; None except for `iqn`."""
        if self._config.distribution != "iqn":
            return None
        return draw_uniform((count, self._config.atoms), self._state.group, self._noise, self._noise.device)

    def _reset_noise(self, network: torch.nn.Module, *, noisy: bool) -> None:
        if self._config.noisy and noisy:
            reset_noise(network, self._noise)
        elif self._config.noisy:
            disable_noise(network)


class DQNPolicy:
    """Epsilon-greedy on a Q-network, which may be noisy besides."""

    recurrent_state_size = 0

    def __init__(self, config: DQNConfig, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._config = config
        self._rewards = ActedRewards(config)
        self.priority_uses_params = self._rewards.are_normalized
        self._device = context.device
        self._value_head = build_value_head(config, context.device)
        self._network = build_network(config, env_spec, context.seed).to(context.device).requires_grad_(False).eval()
        if env_spec.is_image:  # a small network's time is not in its products
            images = blank_images(env_spec, context.slot.num_envs)
            self._network.set_compute_dtype(context.precision, images.to(context.device))
        self._chance = EpsilonGreedy(config, context.slot, context.seed)
        self._noise = torch.Generator(context.device).manual_seed(context.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the Q-network's parameters, and the scale of rewards if it is there."""
        self._network.load_state_dict(self._rewards.load(state))

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return epsilon-greedy actions [N], or in evaluation those of largest Q, without noise.

        Each environment has separate noise, drawn again at each call. Initial priorities need the network's
        numbers for the action `chosen` and for the `best`, [N, K], in whose place Munchausen has the soft policy's, and
        the `bonus` of the reward, [N].
        """
        if evaluation:
            return PolicyOutput(greedy(self.q_values(policy_input.observation), policy_input.action_mask))
        return self.choose(policy_input, self.forward(policy_input), env_steps)

    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return the network's numbers for each action as `q`, [N, A, K]."""
        if self._config.noisy and noise:
            reset_noise_rows(self._network, noise)
        elif self._config.noisy:
            reset_noise(self._network, self._noise, rows=len(policy_input))
        return {"q": self._output(policy_input.observation)}

    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Return epsilon-greedy actions [N] by the network's numbers; see `act`."""
        numbers, legal = output["q"], policy_input.action_mask
        mean = self._value_head.mean(numbers)
        q = mean.cpu().numpy()
        action = self._chance.explore(q, env_steps, legal) if taken is None else taken
        chosen = gather_action(numbers, self._on_device(action)).cpu().numpy()
        best = gather_action(numbers, self._on_device(greedy(q, legal))).cpu().numpy()
        extras: dict[str, Array] = {**self._rewards.extras(policy_input)}
        if not self._config.munchausen_scale:
            return PolicyOutput(action, {"chosen": chosen, "best": best}, extras=extras)
        legal_q = mask_illegal(mean, None if legal is None else self._on_device(legal))
        soft = soft_value(numbers, legal_q, self._config.munchausen_temperature).cpu().numpy()
        bonus = munchausen_bonus(self._config, legal_q, self._on_device(action)).cpu().numpy()
        return PolicyOutput(action, {"chosen": chosen, "best": soft, "bonus": bonus}, extras=extras)

    def q_values(self, observation: Array) -> NDArray[np.float32]:
        """Return Q of every action without noise, float32 [N, A], for stacked observations, [N, ...]."""
        if self._config.noisy:
            disable_noise(self._network)
        q: NDArray[np.float32] = self._value_head.mean(self._output(observation)).cpu().numpy()
        return q

    @torch.inference_mode()
    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the priority that the learner's update gives each window, which starts at its oldest step, [K].

        It is exact while online and target parameters are equal to these (Horgan et al. 2018, section 3), except for
        the levels that an update of `iqn` draws.
        """
        target = n_step(
            steps["reward"][:-1].T,
            steps["terminated"][:-1].T,
            steps["truncated"][:-1].T,
            self._config.gamma,
        )
        bootstrap = steps["best"][target.bootstrap_index, np.arange(len(target.return_))]
        return_ = self._rewards.scaled(target.return_)
        return_ = return_ + steps["bonus"][0] if self._config.munchausen_scale else return_
        item = self._value_head.loss(
            chosen_q=self._on_device(steps["chosen"][0]),
            n_step_return=self._on_device(return_),
            bootstrap_discount=self._on_device(target.discount),
            bootstrap_q=self._on_device(bootstrap),
        )
        priority: NDArray[np.float32] = item.priority.cpu().numpy()
        return priority

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the actions of largest Q, without noise."""
        if self._config.noisy:
            disable_noise(self._network)
        return EvaluationNetwork(self._network, lambda network, seen: self._value_head.mean(network(seen)).argmax(1))

    @torch.inference_mode()
    def _output(self, observation: Array) -> Tensor:
        """Return the network's numbers, [N, A, K]."""
        output: Tensor = self._network(self._on_device(observation))  # as it lies in memory
        return output

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


build_agent = DQNAgent
build_policy = DQNPolicy
