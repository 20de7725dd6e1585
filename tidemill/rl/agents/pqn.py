"""PQN: Q(lambda) on fresh rollouts, without replay or target network (Gallici et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tidemill.arrays import Array
from tidemill.rl.agents.interface import NoiseRows, PolicyContext, Update
from tidemill.rl.agents.on_policy import rollouts
from tidemill.rl.agents.update_graph import recorded
from tidemill.rl.exploration import EpsilonGreedy, greedy
from tidemill.rl.losses import assert_rank, generalized_advantage, mask_illegal
from tidemill.rl.minibatches import ORDERS, Shuffle
from tidemill.rl.networks.evaluation import EvaluationNetwork
from tidemill.rl.networks.layers.linear import linear
from tidemill.rl.networks.precision import MixedPrecision, in_float32
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.optimizers import Adam, LearningRateDecay, averaged_gradients, clip_, trained_parameters
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.on_policy import PQNConfig
from tidemill.rl.train_state import TrainedAgent, TrainState
from tidemill.types import ACTION_MASK, EnvSpec


def lambda_target(
    q: Tensor, legal: Tensor | None, reward: Tensor, discount: Tensor, continues: Tensor, decay: float
) -> Tensor:
    """Return R_t = r_t + discount_t * (lambda * R_t+1 + (1 - lambda) * max over a of Q(s_t+1, a)), [T, B].

    Where the episode ends, or the rollout, the maximum stands in for R_t+1. It is the target of
    generalized advantages with that maximum as the value.

    Args:
        q: Values of every action of all T + 1 steps, [T + 1, B, A].
        legal: Which of them may be chosen, bool [T + 1, B, A]; None: all.
        reward: r_t, [T, B].
        discount: gamma, or 0 where step t terminated, [T, B].
        continues: Whether step t + 1 belongs to the episode of step t, bool [T, B].
        decay: Lambda, 0 to 1.
    """
    assert_rank(3, q=q)
    value = mask_illegal(q, legal).amax(dim=2)
    return generalized_advantage(
        reward=reward,
        discount=discount,
        continues=continues,
        value=value[:-1],
        next_value=value[1:],
        decay=decay,
    ).target


def q_loss(chosen_q: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of half the squared errors, []; 0 where no weight is.

    Args:
        chosen_q: Values of the actions taken, [M].
        target: What they are to be, without a gradient, [M].
        weight: 0 for a step that is not trained on, [M].
    """
    assert_rank(1, chosen_q=chosen_q, target=target, weight=weight)
    return (0.5 * weight * (chosen_q - target).square()).sum() / weight.sum().clamp(min=1.0)


class NormalisedQNetwork(MixedPrecision):
    """A torso, hidden layers with a layer norm (Ba et al. 2016) and a ReLU each: observations [B, ...] -> Q [B, A].

    The norm bounds how far values of unseen states can run off, which is what a target network is for elsewhere
    (Gallici et al. 2024).
    """

    def __init__(self, config: PQNConfig, env_spec: EnvSpec, rng: torch.Generator) -> None:
        super().__init__()
        self.torso = build_torso(config.network, env_spec, rng, config.network_settings)
        widths = (int(self.torso.outputs), *config.hidden_sizes)  # type: ignore[arg-type]  # every torso has it
        self.hidden = nn.ModuleList(linear(a, b, rng) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in config.hidden_sizes)
        self.head = linear(widths[-1], env_spec.num_actions, rng)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the value of every action, float32 [B, A]."""
        with self.matmul_precision(self.torso, self.hidden):
            x: Tensor = self.torso(observation)
            for layer, norm in zip(self.hidden, self.norms, strict=True):
                x = torch.relu(in_float32(norm, layer(x)))
        q: Tensor = self.head(x)
        return q


def build_network(config: PQNConfig, env_spec: EnvSpec, seed: int) -> NormalisedQNetwork:
    """Return the network, its parameters decided by `seed` alone, on the CPU."""
    return NormalisedQNetwork(config, env_spec, torch.Generator().manual_seed(seed))


class PQNAgent(TrainedAgent):
    """A Q-network and one optimizer. One update makes `epochs * minibatches` gradient steps."""

    recurrent_state_size = 0
    observation_columns = ("observation",)

    def __init__(self, config: PQNConfig, env_spec: EnvSpec, device: torch.device, seed: int) -> None:
        self._config = config
        self._frame_stack = env_spec.frame_stack
        self.window = config.window(env_spec.frame_stack)
        self.network = build_network(config, env_spec, seed).to(device)
        self.network.set_update_format(config, env_spec, device)
        learned = trained_parameters(self.network)
        self._optimizer = Adam(learned, config.learning_rate, epsilon=config.optimizer_epsilon)
        recording = config.compile == "cuda-graphs"
        decay = LearningRateDecay([self._optimizer], config.learning_rate_decay_updates, on_device=recording)
        self._shuffle = Shuffle(config.minibatches, seed, device)
        self._state = TrainState({"network": self.network}, {"optimizer": self._optimizer}, self._shuffle.rng)
        self._run_update = recorded(self._updated, config.compile, device, self._state, decay)

    def decode(self, columns: Mapping[str, Array], index: NDArray[np.int64]) -> dict[str, Array]:
        """Return rollouts; see `tidemill.rl.agents.on_policy.rollouts`."""
        return rollouts(columns, index, self.window, self._frame_stack, self._config.gamma, extras=())

    def update(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        """Learn from a rollout, whose targets stay as they are before the first step; the priorities are 1.

        Reports the loss and the norm of the gradient of the last gradient step.
        """
        orders = self._shuffle.orders(batch["is_trained"].numel(), self._config.epochs)
        return self._run_update({**batch, ORDERS: orders}, weight, None)

    def _updated(self, batch: Mapping[str, Tensor], weight: Tensor) -> Update:
        rollout = {name: column.transpose(0, 1) for name, column in batch.items() if name != ORDERS}
        target, q = self.targets(rollout)
        steps = {
            "observation": rollout["observation"][:-1],
            "action": rollout["action"][:-1],
            "target": target,
            "weight": rollout["is_trained"] * weight,
        }
        flat = {name: column.flatten(0, 1) for name, column in steps.items()}
        metrics = {"q": q}
        for order in batch[ORDERS].unbind():
            minibatches = self._shuffle.minibatches(order)
            for index in minibatches:
                # the loss of all steps is a mean, which their order does not change
                part = flat if len(minibatches) == 1 else {name: column[index] for name, column in flat.items()}
                metrics |= self._step(part)
        return Update(torch.ones_like(weight), metrics)

    @torch.no_grad()
    def targets(self, rollout: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the target of each step's action, [T, B], and the mean value of those taken, [].

        Args:
            rollout: What `decode` returned with time first: observations and masks of T + 1 steps, the rest of T.
        """
        observation = rollout["observation"]
        q = self.network(observation.flatten(0, 1)).unflatten(0, observation.shape[:2])
        target = lambda_target(
            q,
            legal=rollout.get(ACTION_MASK),
            reward=rollout["reward"],
            discount=rollout["discount"],
            continues=rollout["continues"],
            decay=self._config.trace_decay,
        )
        return target, q.gather(2, rollout["action"].unsqueeze(2)).mean()

    def _step(self, steps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        chosen_q = self.network(steps["observation"]).gather(1, steps["action"].unsqueeze(1)).squeeze(1)
        loss = q_loss(chosen_q, steps["target"], steps["weight"])
        gradients = averaged_gradients(loss, self._optimizer.parameters, self._state.group)
        grad_norm = clip_(gradients, self._config.max_grad_norm)
        self._optimizer.step(gradients)
        return {"loss": loss.detach(), "grad_norm": grad_norm}


class PQNPolicy:
    """Epsilon-greedy on a Q-network."""

    recurrent_state_size = 0
    priority_uses_params = False

    def __init__(self, config: PQNConfig, env_spec: EnvSpec, context: PolicyContext) -> None:
        self._device = context.device
        self._network = build_network(config, env_spec, context.seed).to(context.device).requires_grad_(False).eval()
        self._chance = EpsilonGreedy(config, context.slot, context.seed)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take the network's parameters."""
        self._network.load_state_dict(dict(state))

    @torch.inference_mode()
    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Return epsilon-greedy actions [N], or in evaluation those of largest Q."""
        output = self.forward(policy_input)
        if evaluation:
            return PolicyOutput(greedy(output["q"].cpu().numpy(), policy_input.action_mask))
        return self.choose(policy_input, output, env_steps)

    @torch.inference_mode()
    def forward(self, policy_input: PolicyInput, noise: Sequence[NoiseRows] = ()) -> dict[str, Tensor]:
        """Return the value of every action as `q`, [N, A]."""
        observation = torch.from_numpy(np.ascontiguousarray(policy_input.observation)).to(self._device)
        return {"q": self._network(observation)}

    def choose(
        self,
        policy_input: PolicyInput,
        output: Mapping[str, Tensor],
        env_steps: int = 0,
        taken: Array | None = None,
    ) -> PolicyOutput:
        """Return epsilon-greedy actions [N] by the values, or those that were taken."""
        if taken is not None:
            return PolicyOutput(taken)
        q = output["q"].cpu().numpy()
        return PolicyOutput(self._chance.explore(q, env_steps, policy_input.action_mask))

    def evaluation_network(self) -> EvaluationNetwork:
        """Return from observations to the actions of largest Q."""
        return EvaluationNetwork(self._network, lambda network, seen: network(seen).argmax(1))

    def initial_priority(self, steps: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return 1 for each window: each is used once, in the order they came."""
        return np.ones(steps["reward"].shape[1], dtype=np.float32)


build_agent = PQNAgent
build_policy = PQNPolicy
