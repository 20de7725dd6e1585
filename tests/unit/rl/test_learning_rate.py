"""Step sizes that fall."""

from __future__ import annotations

import itertools

import pytest
import structlog.testing
import torch

from tests.support.batches import CONTINUOUS, SMALL_R2D2, VECTOR, sampled_batch
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.optimizers import Adam, LearningRateDecay, fallen
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.on_policy import PPOConfig
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec


def test_rates_fall_linearly_and_stay() -> None:
    """Each from its own start: at a quarter of the way three quarters of it are left, and at the end the final rate."""
    fast, slow = Adam([torch.zeros(1)], 0.4), Adam([torch.zeros(1)], 0.2)
    decay = LearningRateDecay([fast, slow], 4)
    found = []
    for update in (0, 1, 4, 9):
        decay.at(update)
        found.append((fast.learning_rate, slow.learning_rate))
    assert found == [(0.4, 0.2), (pytest.approx(0.3), pytest.approx(0.15)), (0.0, 0.0), (0.0, 0.0)]
    LearningRateDecay([slow_to_end := Adam([torch.zeros(1)], 0.4)], 2, final=0.2).at(1)
    assert slow_to_end.learning_rate == pytest.approx(0.3)


def test_rate_that_has_fallen_to_0_is_said() -> None:
    """Once by what lets it fall, and to whoever resumes such a run, as is a clip; not where it ends above 0."""
    decay = LearningRateDecay([Adam([torch.zeros(1)], 0.4)], 2)
    with structlog.testing.capture_logs() as logs:
        for update in range(5):
            decay.at(update)
    assert [(entry["log_level"], entry["update"]) for entry in logs] == [("warning", 2)]
    assert fallen(TD3Config(learning_rate_decay_updates=1_000), 1_000) == (
        "the learning rate is 0 since update 1,000: "
        "nothing is learned unless agent.learning_rate_decay_updates is raised"
    )
    assert not fallen(TD3Config(learning_rate_decay_updates=1_000), 999)
    clip = "the clip is 0 since update 500: next to nothing is learned unless agent.clip_decay_updates is raised"
    assert fallen(PPOConfig(clip_decay_updates=500), 500) == clip
    assert fallen(PPOConfig(clip_decay_updates=500, learning_rate_decay_updates=9), 500).endswith(f" is raised; {clip}")
    assert not fallen(PPOConfig(clip_decay_updates=500), 499)
    assert not fallen(TD3Config(), 10_000)
    assert not fallen(SACConfig(learning_rate_decay_updates=1_000, learning_rate_final=1e-5), 10_000)


def test_rates_stay_without_a_decay() -> None:
    """With 0 updates nothing is changed, not even what somebody else has set."""
    optimizer = Adam([torch.zeros(1)], 0.4)
    decay = LearningRateDecay([optimizer], 0)
    optimizer.learning_rate = 0.1
    decay.at(1_000)
    assert optimizer.learning_rate == 0.1


def batch(agent: Agent, config: AgentConfig, env_spec: EnvSpec, seed: int) -> dict[str, torch.Tensor]:
    """Return four made-up items."""
    return sampled_batch(agent, config, env_spec, 4, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "config, env_spec",
    [
        (DQNConfig(network="mlp", hidden_sizes=(8,), learning_rate_decay_updates=2), VECTOR),
        (R2D2Config(network="mlp", **SMALL_R2D2, learning_rate_decay_updates=2), VECTOR),
        (DDPGConfig(actor_sizes=(8,), critic_sizes=(8, 8), learning_rate_decay_updates=2), CONTINUOUS),
        (TD3Config(hidden_sizes=(8,), policy_delay=1, learning_rate_decay_updates=2), CONTINUOUS),
        (D4PGConfig(actor_sizes=(8,), critic_sizes=(8, 8), learning_rate_decay_updates=2), CONTINUOUS),
        (SACConfig(hidden_sizes=(8,), learning_rate_decay_updates=2), CONTINUOUS),
    ],
    ids=lambda value: getattr(value, "algorithm", ""),
)
def test_no_parameter_moves_after_the_decay(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Two updates change what is published, and none after them does, in a new process either."""
    agent = build_agent(config, env_spec, seed=0)
    states = [agent.policy_state()]
    for number in range(3):
        agent.update(batch(agent, config, env_spec, number), torch.ones(4))
        states.append(agent.policy_state())
    resumed = build_agent(config, env_spec, seed=1)
    resumed.load_state_dict(agent.state_dict())
    resumed.update(batch(resumed, config, env_spec, 3), torch.ones(4))
    states.append(resumed.policy_state())
    parameters = states[0].keys() - {"initial_priority"}
    changed = [any(not torch.equal(a[name], b[name]) for name in parameters) for a, b in itertools.pairwise(states)]
    assert changed == [True, True, False, False]
