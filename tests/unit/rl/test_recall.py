"""Memories of agents that learn from sequences: they recall a cue, and nothing from before a reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.batches import CONTINUOUS, SMALL_LSTM, SMALL_R2D2, VECTOR, random_batch
from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.interface import Policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.rl.settings.deterministic import TD3Config
from tidemill.rl.settings.q_learning import R2D2Config
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

TWO_ACTIONS = EnvSpec((3,), "float32", num_actions=2)
ONE_NUMBER = EnvSpec((3,), "float32", action_shape=(1,))
LENGTH, GAMES = 5, 32

Config = R2D2Config | SACConfig | TD3Config


class Recall:
    """Games side by side: a cue in the first of five rows, and in the last a reward for an action of its sign.

    Of two actions, the first counts as -1 and the second as 1.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._row = 0
        self._cue = np.zeros(GAMES, np.int64)

    def observe(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the observations of this row and whether they are first: cue as -1 or 1, is last, bias."""
        if self._row == 0:
            self._cue = 2 * self._rng.integers(2, size=GAMES) - 1
        shown = np.zeros((GAMES, 3), np.float32)
        shown[:, 0] = self._cue * (self._row == 0)
        shown[:, 1], shown[:, 2] = self._row == LENGTH - 1, 1.0
        return shown, np.full(GAMES, self._row == 0)

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return rewards and whether the games ended; the next row is then the first of the next game."""
        ended = self._row == LENGTH - 1
        reward = self._cue * (action[:, 0] if action.ndim == 2 else 2 * action - 1) * ended
        self._row = 0 if ended else self._row + 1
        return reward.astype(np.float32), np.full(GAMES, ended)


def train(config: Config, updates: int, *, forgets: bool = False) -> float:
    """Train in process on streams as actors write them; return the mean reward of games in evaluation.

    `forgets` has each step begin an episode for the networks.
    """
    rows, spec = 200, TWO_ACTIONS if isinstance(config, R2D2Config) else ONE_NUMBER
    agent = build_agent(config, spec, seed=0)
    policy = build_policy(config, spec, seed=0, slot=ActorSlot(num_envs=GAMES))
    rng = np.random.default_rng(0)
    for _ in range(updates // 20):
        policy.load(agent.policy_state())
        steps = play(policy, spec, Recall(int(rng.integers(1 << 30))), rows, forgets=forgets)
        flat = {name: column.swapaxes(0, 1).reshape(-1, *column.shape[2:]) for name, column in steps.items()}
        for _ in range(20):
            start = rng.integers(1, rows - agent.window.length + 1, size=16)
            first = rng.integers(GAMES, size=16) * rows + start
            index = (first - 1)[:, None] + np.arange(agent.window.length)
            batch = {name: torch.from_numpy(array) for name, array in agent.decode(flat, index).items()}
            batch["recurrent_state"] = torch.from_numpy(flat["recurrent_state"][first])
            if forgets:
                batch["is_first"] = torch.ones_like(batch["is_first"])
            agent.update(batch, torch.ones(16))
    policy.load(agent.policy_state())
    played = play(policy, spec, Recall(99), 4 * LENGTH, evaluation=True, forgets=forgets)
    return float(played["reward"].sum() / (4 * GAMES))


def play(
    policy: Policy, spec: EnvSpec, env: Recall, rows: int, *, forgets: bool, evaluation: bool = False
) -> dict[str, NDArray[Any]]:
    """Return the rows of games, each column [rows, GAMES, ...]."""
    builder, reward, steps = PolicyInputBuilder(GAMES, spec, policy.recurrent_state_size), None, []
    for _ in range(rows):
        observation, is_first = env.observe()
        seen = builder.build(observation, is_first | forgets, reward)
        output = policy.act(seen, evaluation=evaluation)
        builder.record(output)
        reward, terminated = env.step(output.action)
        row = {"observation": observation, "action": output.action, "reward": reward, "terminated": terminated}
        row |= {"truncated": np.zeros(GAMES, np.bool_), "is_first": is_first}
        steps.append(row | {"recurrent_state": seen.recurrent_state})
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


SIZES: dict[str, Any] = {"lstm_size": 16, "unroll": 8, "period": 4, "gamma": 0.95}
R2D2: dict[str, Any] = {
    **SIZES,
    "network": "mlp",
    "hidden_sizes": (16,),
    "head_sizes": (16,),
    "n_step": 2,
    "learning_rate": 5e-3,
    "optimizer_epsilon": 1e-5,
    "target_update_period": 20,
    "ladder_base": 0.3,
    "ladder_alpha": 1.0,
}
SAC = SACConfig(
    hidden_sizes=(32,),
    **SIZES,
    burn_in=3,
    tau=0.02,
    learning_rate=5e-3,
    start_steps=0,
    temperature="fixed",
    initial_temperature=0.05,
)
TD3 = TD3Config(
    hidden_sizes=(32,),
    **SIZES,
    burn_in=3,
    tau=0.02,
    actor_learning_rate=5e-3,
    critic_learning_rate=5e-3,
    start_steps=0,
    noise=NoiseConfig(std=0.5),
)


@pytest.mark.parametrize(
    "config, updates",
    [(R2D2Config(**R2D2, burn_in=0), 300), (R2D2Config(**R2D2, burn_in=3), 300), (SAC, 300), (TD3, 200)],
    ids=["r2d2 without burn-in", "r2d2", "sac", "td3"],
)
def test_recurrent_agent_recalls_a_cue(config: Config, updates: int) -> None:
    """The action of its sign four steps later brings almost 1 per game."""
    assert train(config, updates) > (0.95 if isinstance(config, R2D2Config) else 0.9)


@pytest.mark.parametrize("config, updates", [(R2D2Config(**R2D2, burn_in=3), 300), (TD3, 200)], ids=["r2d2", "td3"])
def test_agent_that_forgets_cannot_recall_the_cue(config: Config, updates: int) -> None:
    """The same networks, reset at every step, see the same last row whatever the cue was."""
    assert train(config, updates, forgets=True) < 0.5


@pytest.mark.parametrize(
    "config, env_spec",
    [
        (R2D2Config(network="mlp", **SMALL_R2D2), VECTOR),
        (SACConfig(hidden_sizes=(8,), **SMALL_LSTM), CONTINUOUS),
        (TD3Config(hidden_sizes=(8,), **SMALL_LSTM), CONTINUOUS),
    ],
    ids=["r2d2", "sac", "td3"],
)
def test_nothing_before_a_reset_reaches_what_follows_it(config: Config, env_spec: EnvSpec) -> None:
    """Another past, memory and burn-in before an episode's start leave the priorities of its sequence as they were."""
    length = build_agent(config, env_spec, seed=0).window.length
    rng = torch.Generator().manual_seed(0)

    def priority(past: int) -> torch.Tensor:
        agent = build_agent(config, env_spec, seed=0)
        stream = random_batch(env_spec, length, torch.Generator().manual_seed(1))
        other = random_batch(env_spec, length, torch.Generator().manual_seed(past))
        start = 1 + config.burn_in  # the history is one row
        for name in ("observation", "action", "n_step_return"):
            stream[name][:start] = other[name][:start]
        no = np.zeros(length, np.bool_)
        columns = {name: stream[name].numpy() for name in ("observation", "action")}
        columns |= {"reward": stream["n_step_return"].numpy(), "terminated": no.copy(), "truncated": no}
        columns["terminated"][start - 1] = True
        columns["is_first"] = np.arange(length) == start
        batch = {name: torch.from_numpy(a) for name, a in agent.decode(columns, np.arange(length)[None]).items()}
        batch["recurrent_state"] = torch.randn((1, 2 * config.lstm_size), generator=rng)
        return agent.update(batch, torch.ones(1)).priority

    torch.testing.assert_close(priority(2), priority(3))
