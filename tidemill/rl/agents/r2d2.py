"""R2D2: recurrent double Q-learning from stored sequences (Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.arrays import Array, Floats
from tidemill.rl.agents.interface import NoiseRows, PolicyContext, Update
from tidemill.rl.agents.q_learning import QLearningAgent
from tidemill.rl.exploration import EpsilonGreedy, greedy
from tidemill.rl.losses import ItemLoss, assert_rank, mask_illegal, rescale, sequence_priority, unscale
from tidemill.rl.networks.layers.image import blank_images
from tidemill.rl.networks.layers.linear import Linear, linear
from tidemill.rl.networks.layers.lstm import LSTM, to_recurrent_state, to_state, unrolled, unrolled_past
from tidemill.rl.networks.layers.lstm import State as LSTMState
from tidemill.rl.networks.precision import MixedPrecision, Precision, acting_dtype
from tidemill.rl.networks.q_head import QHead
from tidemill.rl.networks.recurrent import observations_of
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.sequences import RETURN_COLUMNS, sequences, unroll_targets
from tidemill.rl.settings.q_learning import R2D2Config
from tidemill.types import ACTION_MASK, EnvSpec


def sequence_target(n_step_return: Tensor, bootstrap_discount: Tensor, bootstrap_q: Tensor, rescaled: bool) -> Tensor:
    """Return the target of each step, without a gradient: h(R + discount * h^-1(Q(s', a'))), of any shape.

    Ibid., section 2.3; without rescaling h is the identity.
    """
    value = unscale(bootstrap_q) if rescaled else bootstrap_q
    # where, not a product: after a termination the row may be of another episode, and anything
    target = n_step_return + torch.where(bootstrap_discount > 0.0, bootstrap_discount * value, 0.0)
    return (rescale(target) if rescaled else target).detach()


def sequence_loss(q: Tensor, target: Tensor, is_trained: Tensor, priority_mix: float) -> ItemLoss:
    """Return half the sum of squared errors of each sequence, and its priority; see `sequence_priority`.

    Args:
        q: Values predicted for the actions taken, [U, B].
        target: What they should have been, [U, B].
        is_trained: Steps that count, bool [U, B].
        priority_mix: eta.
    """
    assert_rank(2, q=q, target=target, is_trained=is_trained)
    error = torch.where(is_trained, q - target, 0.0)
    priority = sequence_priority(error.detach().abs().T, is_trained.T, priority_mix)
    return ItemLoss(0.5 * error.square().sum(dim=0), priority)


class RecurrentQNetwork(MixedPrecision):
    """Torso, fully connected layers, LSTM and head: T steps of B streams -> Q, float32 [T, B, A]."""

    def __init__(self, config: R2D2Config, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self._num_actions = env_spec.num_actions
        self.torso = build_torso(
            config.network, env_spec, rng, config.network_settings, standardized=config.normalize_observations
        )
        widths = (int(self.torso.outputs), *config.hidden_sizes)  # type: ignore[arg-type]  # every torso has it
        self.hidden = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
        self.lstm = LSTM(widths[-1] + env_spec.num_actions + 1, config.lstm_size, rng)
        self.head = QHead(
            config.lstm_size, config.head_sizes, env_spec.num_actions, 1, rng, dueling=config.dueling, noise_std=0.0
        )

    def forward(
        self, observation: Tensor, last_action: Tensor, last_reward: Tensor, is_first: Tensor, state: LSTMState
    ) -> tuple[Tensor, LSTMState]:
        """Return Q [T, B, A] and the state after the last step.

        Args:
            observation: [T, B, ...].
            last_action: Before each observation, int64 [T, B]; like the reward, meaningless where `is_first`.
            last_reward: With each observation, float32 [T, B].
            is_first: Whether an episode begins there, bool [T, B]: the recurrent_state is reset.
            state: Before the first step, each [B, H].
        """
        gates = self.gates(observation, self.before(last_action, last_reward, is_first))
        output, state = unrolled(gates, self.lstm.output_weight, is_first, state)
        return self.values(output), state

    def gates(self, observation: Tensor, before: Tensor) -> Tensor:
        """Return the LSTM's input at each step, [T, B, 4 H], from observations [T, B, ...] and `before`."""
        with self.matmul_precision(self.torso, *self.hidden):
            x: Tensor = self.torso(observation.flatten(0, 1))
            for layer in self.hidden:
                x = torch.relu(layer(x))
        return self.lstm.gates(torch.cat((x.float().unflatten(0, before.shape[:2]), before), dim=-1))

    def values(self, output: Tensor) -> Tensor:
        """Return Q [T, B, A] of the LSTM's outputs, [T, B, H]."""
        q: Tensor = self.head(output.flatten(0, 1)).squeeze(-1).unflatten(0, output.shape[:2])
        return q

    def set_compute_dtype(self, precision: Precision, images: Tensor) -> None:
        """Put what comes before the LSTM in the number format asked for; `auto` is timed on a batch of `images`."""
        dtype = acting_dtype(self.torso, images, precision)
        for module in (self.torso, *self.hidden):
            module.to(dtype)
            if isinstance(module, Linear):
                module.pack(len(images))

    def before(self, last_action: Tensor, last_reward: Tensor, is_first: Tensor) -> Tensor:
        """The last action and the last reward before each step, [T, B, A + 1]; zeros at the start of an episode.

        It is the last action, one-hot, and the last reward, squashed to -1 .. 1.
        """
        actions = torch.arange(self._num_actions, device=last_action.device)
        action = (last_action.unsqueeze(-1) == actions).float()  # torch's one_hot has the host look at every action
        both = torch.cat((action, last_reward.tanh().unsqueeze(-1)), dim=-1)
        return torch.where(is_first.unsqueeze(-1), 0.0, both)


def build_network(config: R2D2Config, env_spec: EnvSpec, seed: int) -> RecurrentQNetwork:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return RecurrentQNetwork(config, env_spec, torch.Generator().manual_seed(seed))


_STEPS = ("observation", "last_action", "last_reward", "is_first")


class R2D2Agent(QLearningAgent[RecurrentQNetwork]):
    """A recurrent Q-network, its target and one optimizer."""

    observation_columns = ("observation",)

    def __init__(self, config: R2D2Config, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._shape = config.shape(env_spec.frame_stack)
        self.window = config.window(env_spec.frame_stack)
        self.recurrent_state_size = config.recurrent_state_size
        self._masks = (ACTION_MASK,) if env_spec.masks_actions else ()
        online = build_network(config, env_spec, seed).to(device)
        super().__init__(config, env_spec, device, online, sequences=self._shape)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return sequences; see `tidemill.rl.sequences.sequences`."""
        return sequences(columns, index, self._shape, self._config.gamma, row_extras=self._masks)

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        rest = {name: column for name, column in batch.items() if name != "stack"}
        return super()._updated({**rest, "observation": observations_of(batch)}, weight)

    def _loss_of(self, batch: Mapping[str, Tensor], weight: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, [], the sequences' new priorities, [B], and the mean value of the actions taken, []."""
        steps = {name: batch[name].transpose(0, 1) for name in _STEPS}
        q, target_q = self._unrolled(steps, batch["recurrent_state"])
        chosen_q = q[: self._config.unroll].gather(2, batch["action"].transpose(0, 1).unsqueeze(-1)).squeeze(-1)
        target = self._targets(batch, q.detach(), target_q)
        item = sequence_loss(chosen_q, target, batch["is_trained"].transpose(0, 1), self._config.priority_mix)
        return (weight * item.loss).mean(), item.priority, chosen_q.detach().mean()

    def _unrolled(self, steps: Mapping[str, Tensor], recurrent_state: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q of both networks, of the steps after the burn-in, [U + n, B, A], from the states that it ends with.

        Online and target network go step by step together, so that a GPU is given half of the kernels.
        """
        burn_in = self._config.burn_in
        is_first = steps["is_first"]
        online = self._online
        target = self._target.network
        weight = online.lstm.output_weight
        target_weight = target.lstm.output_weight
        output, cell = (part.expand(2, -1, -1) for part in to_state(recurrent_state))
        observation = steps["observation"].contiguous()  # parts of it are then views
        before = online.before(steps["last_action"], steps["last_reward"], is_first)
        with torch.no_grad():
            target_gates = target.gates(observation, before)
            warming = online.gates(observation[:burn_in], before[:burn_in]) if burn_in else target_gates[:0]
        gates = online.gates(observation[burn_in:], before[burn_in:])
        outputs = unrolled_past(warming, gates, weight, is_first, (output, cell), (target_gates, target_weight))
        q: Tensor = online.values(outputs[:, 0])
        with torch.no_grad():
            return q, target.values(outputs[:, 1])

    @torch.no_grad()
    def _targets(self, batch: Mapping[str, Tensor], online_q: Tensor, target_q: Tensor) -> Tensor:
        """Return the target of each step of the unroll, [U, B], by Q of both networks, [U + n, B, A]."""
        legal = batch[ACTION_MASK].transpose(0, 1)[self._config.burn_in :] if ACTION_MASK in batch else None
        best = mask_illegal(online_q if self._config.double else target_q, legal).argmax(dim=2, keepdim=True)
        value = target_q.gather(2, best).squeeze(2)  # of every step, [U + n, B]
        bootstrap_q = value.gather(0, batch["bootstrap"].transpose(0, 1) - self._config.burn_in)
        return sequence_target(
            n_step_return=batch["n_step_return"].transpose(0, 1),
            bootstrap_discount=batch["bootstrap_discount"].transpose(0, 1),
            bootstrap_q=bootstrap_q,
            rescaled=self._config.value_rescaling,
        )


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

    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Return epsilon-greedy actions [N] by Q; see `act`."""
        q, recurrent_state = _arrays(output)
        action = self._chance.explore(q, env_steps, policy_input.action_mask) if taken is None else taken
        best = greedy(q, policy_input.action_mask)
        rows = np.arange(len(q))
        return PolicyOutput(action, {"chosen": q[rows, action], "best": q[rows, best]}, recurrent_state)

    @torch.inference_mode()
    def initial_priority(self, steps: Mapping[str, Array]) -> Floats:
        """Return the priority that the learner's update gives each sequence, which starts at its oldest step, [K].

        It is exact while all parameters are equal to these, those of the steps of the burn-in included.
        """
        target = unroll_targets({name: steps[name].T for name in RETURN_COLUMNS}, self._shape, self._config.gamma)
        bootstrap_q = steps["best"].T[np.arange(len(target.bootstrap))[:, None], target.bootstrap]
        unroll = slice(self._shape.burn_in, self._shape.burn_in + self._shape.unroll)
        values = sequence_target(
            n_step_return=_time_first(target.return_),
            bootstrap_discount=_time_first(target.discount),
            bootstrap_q=_time_first(bootstrap_q),
            rescaled=self._config.value_rescaling,
        )
        item = sequence_loss(
            q=torch.from_numpy(steps["chosen"][unroll].copy()),
            target=values,
            is_trained=torch.from_numpy(~steps["is_reset_step"][unroll]),
            priority_mix=self._config.priority_mix,
        )
        priority: Floats = item.priority.numpy()
        return priority

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return Q as `q`, [N, A], and the next `recurrent_state`, [N, 2 H]."""
        q, state = self._network(
            observation=self._one_step(policy_input.observation),
            last_action=self._one_step(policy_input.last_action),
            last_reward=self._one_step(policy_input.last_reward),
            is_first=self._one_step(policy_input.is_first),
            state=to_state(torch.from_numpy(policy_input.recurrent_state).to(self._device)),
        )
        return {"q": q.squeeze(0), "recurrent_state": to_recurrent_state(state)}

    def _one_step(self, array: Array) -> Tensor:
        """Return the observations of N environments as one step of N streams, [1, N, ...]."""
        return torch.from_numpy(array).to(self._device).unsqueeze(0)


def _time_first(array: Array) -> Tensor:
    """Return an array [K, U] as [U, K]."""
    return torch.from_numpy(array.T.copy())


def _arrays(output: Mapping[str, Tensor]) -> tuple[Floats, Floats]:
    return output["q"].cpu().numpy(), output["recurrent_state"].cpu().numpy()


build_agent = R2D2Agent
build_policy = R2D2Policy
