"""Agents and batches that the tests of every algorithm share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import Agent
from tidemill.rl.policy_io import PolicyInput
from tidemill.rl.process_group import SingleProcess, flat_mean
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig, PQNConfig
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.registry import AgentConfig, extra_columns_of
from tidemill.rl.settings.soft_actor_critic import SACConfig, SACDiscreteConfig
from tidemill.types import EnvSpec

VECTOR = EnvSpec((3,), "float32", num_actions=4)
CONTINUOUS = EnvSpec((3,), "float32", action_shape=(2,))
CONTINUOUS_BYTES = EnvSpec((30,), "uint8", frame_stack=2, action_shape=(2, 2))
IMAGE = EnvSpec((36, 40), "uint8", frame_stack=4, num_actions=4)
PIXELS = EnvSpec((36, 40), "uint8", frame_stack=4, action_shape=(2,))
COLOURS = EnvSpec((9, 12, 3), "uint8", frame_stack=2, num_actions=4)

SMALL_R2D2: dict[str, Any] = {
    "hidden_sizes": (16,),
    "lstm_size": 8,
    "head_sizes": (16,),
    "burn_in": 2,
    "unroll": 4,
    "period": 2,
    "n_step": 3,
}
"""Sizes of a recurrent agent that is quick to test."""

SMALL_LSTM: dict[str, Any] = {"lstm_size": 8, "burn_in": 2, "unroll": 4, "period": 2, "n_step": 3}
"""Sizes of a recurrent agent of continuous actions that is quick to test."""

OWN = {"width": 12, "blocks": 1}
"""Settings of the torso under examples/."""

OWN_NETWORK: list[tuple[str, type[Any], EnvSpec, dict[str, Any]]] = [
    ("dqn", DQNConfig, VECTOR, {"hidden_sizes": (16,)}),
    ("r2d2", R2D2Config, VECTOR, SMALL_R2D2),
    ("ppo", PPOConfig, VECTOR, {"hidden_sizes": (16,), "unroll": 5}),
    ("impala", IMPALAConfig, CONTINUOUS, {"hidden_sizes": (16,), "unroll": 5}),
    ("pqn", PQNConfig, VECTOR, {"hidden_sizes": (16,), "unroll": 5}),
    ("sac", SACConfig, CONTINUOUS, {"hidden_sizes": (16,), "actor_ema_decay": 0.9}),
    ("sac_crossq", SACConfig, CONTINUOUS, {"hidden_sizes": (16,), "crossq": True}),
    ("sac_lstm", SACConfig, CONTINUOUS, {"hidden_sizes": (16,), **SMALL_LSTM}),
    ("sac_discrete", SACDiscreteConfig, VECTOR, {"hidden_sizes": (16,)}),
    ("ddpg", DDPGConfig, CONTINUOUS_BYTES, {"actor_sizes": (16,), "critic_sizes": (16, 16)}),
    ("td3", TD3Config, CONTINUOUS, {"hidden_sizes": (16,)}),
    ("td3_lstm", TD3Config, CONTINUOUS, {"hidden_sizes": (16,), **SMALL_LSTM}),
    ("d4pg", D4PGConfig, CONTINUOUS, {"actor_sizes": (16,), "critic_sizes": (16, 16)}),
]
"""Every algorithm with it."""

CASES: dict[str, tuple[AgentConfig, EnvSpec]] = {
    "dqn": (DQNConfig(network="mlp", hidden_sizes=(16,), target_update_period=10), VECTOR),
    "dqn_soft_target": (
        DQNConfig(network="mlp", hidden_sizes=(16,), target_update_period=0, loss="mse", double=False),
        VECTOR,
    ),
    "dqn_image": (
        DQNConfig(
            network="nature_group_norm",
            hidden_sizes=(16,),
            dueling=False,
            target_update_period=3,
            update_precision="float32",
        ),
        IMAGE,
    ),
    "dqn_rainbow": (
        DQNConfig(
            network="mlp",
            hidden_sizes=(16,),
            noisy=True,
            distribution="c51",
            atoms=11,
            exploration="none",
            target_update_period=5,
        ),
        VECTOR,
    ),
    "dqn_quantiles_rmsprop": (
        DQNConfig(
            network="mlp",
            hidden_sizes=(16, 8),
            distribution="qr",
            atoms=7,
            optimizer="rmsprop",
            tau=0.1,
            learning_rate_decay_updates=1_000,
        ),
        VECTOR,
    ),
    "dqn_munchausen": (
        DQNConfig(network="mlp", hidden_sizes=(16,), double=False, munchausen_scale=0.9, distribution="qr", atoms=7),
        VECTOR,
    ),
    "dqn_btr": (
        DQNConfig(
            network="impala",
            network_settings={"width": 2, "spectral_norm": True, "pool": 2},
            hidden_sizes=(16,),
            noisy=True,
            double=False,
            distribution="iqn",
            atoms=4,
            cosines=8,
            munchausen_scale=0.9,
            update_precision="float32",
        ),
        COLOURS,
    ),
    "dqn_colours": (
        DQNConfig(
            network="impala", hidden_sizes=(16,), initialisation="xavier", noisy=True, update_precision="float32"
        ),
        COLOURS,
    ),
    "r2d2": (
        R2D2Config(network="mlp", **SMALL_R2D2, target_update_period=5, learning_rate_decay_updates=1_000),
        VECTOR,
    ),
    "r2d2_image": (
        R2D2Config(
            network="nature",
            **SMALL_R2D2,
            dueling=False,
            double=False,
            value_rescaling=False,
            target_update_period=0,
            update_precision="float32",
        ),
        IMAGE,
    ),
    "ppo": (PPOConfig(hidden_sizes=(16,), unroll=5, epochs=2, minibatches=3), VECTOR),
    "ppo_continuous": (
        PPOConfig(
            hidden_sizes=(16,),
            activation="relu",
            unroll=5,
            epochs=3,
            clip_value=False,
            normalize_advantage=False,
            target_kl=0.01,
            learning_rate_decay_updates=1_000,
        ),
        CONTINUOUS,
    ),
    "ppo_normalized": (
        PPOConfig(
            hidden_sizes=(16,), unroll=5, epochs=2, minibatches=2, normalize_observations=True, normalize_rewards=True
        ),
        CONTINUOUS,
    ),
    "ppo_std_of_observation": (
        PPOConfig(hidden_sizes=(16,), unroll=5, epochs=1, minibatches=2, gaussian_std="observation"),
        CONTINUOUS,
    ),
    "ppo_image": (
        PPOConfig(
            network="nature",
            encoder_sizes=(16,),
            hidden_sizes=(),
            unroll=5,
            epochs=1,
            minibatches=2,
            update_precision="float32",
        ),
        IMAGE,
    ),
    "ppo_lstm": (
        PPOConfig(
            lstm_size=8,
            encoder_sizes=(16,),
            hidden_sizes=(16,),
            unroll=5,
            epochs=2,
            minibatches=3,
            clip_decay_updates=9,
        ),
        VECTOR,
    ),
    "ppo_lstm_image": (
        PPOConfig(
            network="nature",
            lstm_size=8,
            hidden_sizes=(),
            unroll=5,
            epochs=1,
            minibatches=2,
            update_precision="float32",
        ),
        IMAGE,
    ),
    "impala": (IMPALAConfig(hidden_sizes=(16,), unroll=5), VECTOR),
    "impala_normalized": (
        IMPALAConfig(hidden_sizes=(16,), unroll=5, normalize_observations=True, normalize_rewards=True),
        VECTOR,
    ),
    "impala_continuous": (
        IMPALAConfig(
            hidden_sizes=(16,),
            unroll=5,
            trace_decay=0.9,
            max_rho=2.0,
            learning_rate_decay_updates=1_000,
            update_precision="float32",  # `auto` would be another format on a GPU than on some processors
        ),
        CONTINUOUS_BYTES,
    ),
    "impala_std_of_observation": (IMPALAConfig(hidden_sizes=(16,), unroll=5, gaussian_std="observation"), CONTINUOUS),
    "impala_lstm": (IMPALAConfig(lstm_size=8, hidden_sizes=(16,), unroll=5), CONTINUOUS),
    "impala_colours": (
        IMPALAConfig(network="impala", hidden_sizes=(), unroll=5, update_precision="float32"),
        COLOURS,
    ),
    "pqn": (PQNConfig(hidden_sizes=(16, 16), unroll=5, epochs=2, minibatches=3), VECTOR),
    "pqn_image": (
        PQNConfig(
            network="nature_group_norm",
            hidden_sizes=(16,),
            exploration="ladder",
            unroll=5,
            epochs=1,
            minibatches=2,
            update_precision="float32",
        ),
        IMAGE,
    ),
    "sac": (SACConfig(hidden_sizes=(16, 16)), CONTINUOUS),
    "sac_all_options": (
        SACConfig(
            hidden_sizes=(16,),
            critic_layer_norm=True,
            temperature="fixed",
            initial_temperature=0.1,
            policy_delay=2,
            actor_ema_decay=0.9,
            learning_rate_decay_updates=1_000,
        ),
        CONTINUOUS,
    ),
    "sac_tqc": (SACConfig(hidden_sizes=(16,), critic_sizes=(16, 16), critics=3, quantiles=7), CONTINUOUS_BYTES),
    "sac_crossq": (
        SACConfig(
            hidden_sizes=(16,),
            critic_sizes=(16, 16),
            crossq=True,
            crossq_warmup_updates=5,
            adam_beta1=0.5,
            policy_delay=2,
        ),
        CONTINUOUS,
    ),
    "sac_crossq_quantiles": (SACConfig(hidden_sizes=(16,), crossq=True, quantiles=5), CONTINUOUS),
    "sac_discrete": (SACDiscreteConfig(hidden_sizes=(16, 16)), VECTOR),
    "sac_discrete_image": (
        SACDiscreteConfig(
            network="nature",
            hidden_sizes=(16,),
            temperature="fixed",
            initial_temperature=0.1,
            n_step=3,
            max_grad_norm=1.0,
            target_update_period=3,
            learning_rate_decay_updates=1_000,
            update_precision="float32",
        ),
        IMAGE,
    ),
    "sac_lstm": (
        SACConfig(
            hidden_sizes=(16,), **SMALL_LSTM, policy_delay=2, actor_ema_decay=0.9, learning_rate_decay_updates=1_000
        ),
        CONTINUOUS,
    ),
    "sac_lstm_tqc": (SACConfig(hidden_sizes=(16,), critics=3, quantiles=7, **SMALL_LSTM), CONTINUOUS),
    "sac_lstm_image": (
        SACConfig(network="nature", hidden_sizes=(16,), quantiles=5, **SMALL_LSTM, update_precision="float32"),
        PIXELS,
    ),
    "sac_image": (SACConfig(network="nature", hidden_sizes=(16, 16), update_precision="float32"), PIXELS),
    "dqn_normalized": (
        DQNConfig(hidden_sizes=(16,), target_update_period=10, normalize_observations=True, normalize_rewards=True),
        VECTOR,
    ),
    "r2d2_normalized": (R2D2Config(**SMALL_R2D2, target_update_period=5, normalize_observations=True), VECTOR),
    "sac_normalized": (
        SACConfig(
            hidden_sizes=(16,), policy_delay=2, actor_ema_decay=0.9, normalize_observations=True, normalize_rewards=True
        ),
        CONTINUOUS,
    ),
    "sac_discrete_normalized": (
        SACDiscreteConfig(hidden_sizes=(16,), normalize_observations=True, normalize_rewards=True),
        VECTOR,
    ),
    "ddpg_normalized": (
        DDPGConfig(
            actor_sizes=(16,), critic_sizes=(16,), action_layer=0, normalize_observations=True, normalize_rewards=True
        ),
        CONTINUOUS_BYTES,
    ),
    "td3_normalized": (
        TD3Config(hidden_sizes=(16,), n_step=3, normalize_observations=True, normalize_rewards=True),
        CONTINUOUS,
    ),
    "d4pg_normalized": (
        D4PGConfig(actor_sizes=(16,), critic_sizes=(16, 16), target_update_period=3, normalize_observations=True),
        CONTINUOUS,
    ),
    "ddpg": (DDPGConfig(actor_sizes=(16,), critic_sizes=(16, 16)), CONTINUOUS),
    "ddpg_all_options": (
        DDPGConfig(
            actor_sizes=(16, 8),
            actor_activation="tanh",
            critic_sizes=(16,),
            action_layer=0,
            critic_weight_decay=0.0,
            n_step=5,
            learning_rate_decay_updates=1_000,
            noise=NoiseConfig(kind="gaussian", greedy_fraction=0.4, hold_probability=0.1),
        ),
        CONTINUOUS_BYTES,
    ),
    "td3": (TD3Config(hidden_sizes=(16, 16)), CONTINUOUS),
    "td3_bytes": (
        TD3Config(hidden_sizes=(16,), n_step=3, policy_delay=1, target_noise=0.0, learning_rate_decay_updates=1_000),
        CONTINUOUS_BYTES,
    ),
    "td3_lstm": (TD3Config(hidden_sizes=(16,), **SMALL_LSTM, learning_rate_decay_updates=1_000), CONTINUOUS),
    "td3_lstm_image": (TD3Config(network="nature", hidden_sizes=(16,), **SMALL_LSTM, policy_delay=1), PIXELS),
    "d4pg": (D4PGConfig(actor_sizes=(16,), critic_sizes=(16, 16), target_update_period=3), CONTINUOUS),
    "d4pg_soft_target": (
        D4PGConfig(
            actor_sizes=(16,),
            critic_sizes=(16,),
            action_layer=0,
            target_update_period=0,
            tau=0.1,
            num_atoms=7,
            learning_rate_decay_updates=1_000,
        ),
        CONTINUOUS,
    ),
    **{
        f"{algorithm}_own_network": (config(network="networks:ResidualTorso", network_settings=OWN, **sizes), env_spec)
        for algorithm, config, env_spec, sizes in OWN_NETWORK
    },
}
"""Settings and environment by name: every network and option takes part in one.

Images are updated in float32 on every machine: tests compare with figures worked out in it.
"""

DISTINCT_CASES = {
    name: case
    for name, case in CASES.items()
    if not name.endswith("own_network") or name in {f"{each}_own_network" for each in ("dqn", "sac_crossq", "td3")}
}
"""All but the torso of a user in most algorithms, whose updates are those of these.

`unit/rl/test_own_networks.py` trains it in all of them.
"""


_STATE_SIZES: dict[str, int] = {}


def recurrent_state_size(config: AgentConfig, env_spec: EnvSpec) -> int:
    """Return how many numbers the policy of these settings remembers; one is built for it, once."""
    key = repr((config, env_spec))
    if key not in _STATE_SIZES:
        with torch.random.fork_rng(devices=()):  # whether it is the first call leaves no trace
            _STATE_SIZES[key] = build_policy(config, env_spec).recurrent_state_size
    return _STATE_SIZES[key]


class WithIdleRank(SingleProcess):
    """One of two ranks; the other one's gradients are 0.

    Attributes:
        means: How often gradients were averaged.
    """

    size = 2

    def __init__(self) -> None:
        self.means = 0

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return half of the gradients."""
        return flat_mean(gradients, self.size, self.add_up)

    def add_up(self, flat: Tensor) -> None:
        """Add nothing."""
        self.means += 1


def sampled_batch(
    agent: Agent, config: AgentConfig, env_spec: EnvSpec, size: int, rng: torch.Generator
) -> dict[str, Tensor]:
    """Return a batch as a learner makes it, of one made-up stream that ends an episode now and then."""
    length = agent.window.length
    rows = size + length
    stream = random_batch(dataclasses.replace(env_spec, frame_stack=1), rows, rng)
    ends = (torch.arange(rows) % 7 == 3).numpy()
    columns = {
        "observation": stream["observation"].numpy(),
        "action": stream["action"].numpy(),
        "reward": stream["n_step_return"].numpy(),
        "terminated": ends,
        "truncated": np.zeros(rows, dtype=np.bool_),
        "is_first": np.roll(ends, 1),
    }
    columns |= {
        column.name: torch.randn((rows, *column.shape), generator=rng).numpy()
        for column in extra_columns_of(config, env_spec)
    }
    index = np.arange(size)[:, None] + np.arange(length)
    batch = {name: torch.from_numpy(array) for name, array in agent.decode(columns, index).items()}
    if recurrent_state_size(config, env_spec):
        batch["recurrent_state"] = torch.randn((size, recurrent_state_size(config, env_spec)), generator=rng)
    return batch


def random_batch(env_spec: EnvSpec, size: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Return a batch of made-up transitions as `Agent.update` takes it."""
    return {
        "observation": _observations(env_spec, size, rng),
        "action": _actions(env_spec, size, rng),
        "n_step_return": torch.randn(size, generator=rng),
        "bootstrap_discount": torch.rand(size, generator=rng),
        "bootstrap_observation": _observations(env_spec, size, rng),
    }


def policy_input(
    observation: NDArray[Any],
    is_first: NDArray[np.bool_] | None = None,
    recurrent_state_size: int = 0,
    last_action: NDArray[Any] | None = None,
) -> PolicyInput:
    """Return the input of a policy that has done nothing yet; unless said otherwise no episode begins."""
    count = len(observation)
    return PolicyInput(
        observation,
        np.zeros(count, dtype=np.bool_) if is_first is None else is_first,
        np.zeros(count, dtype=np.int64) if last_action is None else last_action,
        np.zeros(count, dtype=np.float32),
        np.zeros((count, recurrent_state_size), dtype=np.float32),
    )


def _observations(env_spec: EnvSpec, size: int, rng: torch.Generator) -> Tensor:
    stack = (env_spec.frame_stack,) if env_spec.frame_stack > 1 else ()
    shape = (size, *stack, *env_spec.observation_shape)
    if env_spec.observation_dtype == "uint8":
        return torch.randint(256, shape, dtype=torch.uint8, generator=rng)
    return torch.randn(shape, generator=rng)


def _actions(env_spec: EnvSpec, size: int, rng: torch.Generator) -> Tensor:
    if env_spec.is_discrete:
        return torch.randint(env_spec.num_actions, (size,), generator=rng)
    return torch.rand((size, *env_spec.action_shape), generator=rng) * 2 - 1
