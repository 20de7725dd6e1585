"""Exploration noise has the statistics its settings promise."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.batches import policy_input
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.action_noise import ActionNoise, NoiseConfig, OrnsteinUhlenbeck
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import SplitPolicy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.deterministic import TD3Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

N = 4_000
ZEROS = np.zeros((N, 2), np.float32)


def test_gaussian_noise_is_white_with_its_standard_deviation() -> None:
    """Mean 0, standard deviation .1, and no correlation between steps or components."""
    noise = ActionNoise(NoiseConfig("gaussian", std=0.1), seed=0)
    first, second = noise.add_noise(ZEROS), noise.add_noise(ZEROS)
    assert first.dtype == np.float32
    np.testing.assert_allclose(first.mean(axis=0), 0.0, atol=0.006)
    np.testing.assert_allclose(first.std(axis=0), 0.1, rtol=0.05)
    assert np.corrcoef(first[:, 0], second[:, 0])[0, 1] == pytest.approx(0.0, abs=0.06)
    assert np.corrcoef(first[:, 0], first[:, 1])[0, 1] == pytest.approx(0.0, abs=0.06)


def test_ou_variance_grows_to_the_stationary_one() -> None:
    """After k steps it is std^2 (1 - r^2k) / (1 - r^2) with r = 1 - theta: .04, and .1441 after many."""
    process = OrnsteinUhlenbeck(theta=0.15, std=0.2, rng=np.random.default_rng(0))
    steps = [process.next((N, 2)).copy() for _ in range(60)]
    for count in (1, 2, 5, 60):
        expected = 0.04 * (1 - 0.85 ** (2 * count)) / (1 - 0.85**2)
        assert steps[count - 1].var() == pytest.approx(expected, rel=0.06)
    assert steps[-1].mean() == pytest.approx(0.0, abs=0.02)


def test_ou_neighbours_correlate_by_what_a_step_keeps() -> None:
    """In the stationary state neighbouring steps correlate with 1 - theta, steps k apart with its k-th power."""
    process = OrnsteinUhlenbeck(theta=0.15, std=0.2, rng=np.random.default_rng(1))
    steps = [process.next((N, 1)).copy()[:, 0] for _ in range(60)]
    assert np.corrcoef(steps[-2], steps[-1])[0, 1] == pytest.approx(0.85, abs=0.03)
    assert np.corrcoef(steps[-6], steps[-1])[0, 1] == pytest.approx(0.85**5, abs=0.06)


def test_ou_starts_from_zero_where_an_episode_begins() -> None:
    """There one step's variance is left, uncorrelated with the step before; elsewhere the process continues."""
    noise = ActionNoise(NoiseConfig("ou", std=0.2), seed=0)
    for _ in range(40):
        before = noise.add_noise(ZEROS)
    is_first = np.arange(N) < N // 2
    after = noise.add_noise(ZEROS, is_first)
    assert after[is_first].std() == pytest.approx(0.2, rel=0.05)
    assert np.corrcoef(before[is_first, 0], after[is_first, 0])[0, 1] == pytest.approx(0.0, abs=0.06)
    assert after[~is_first].std() == pytest.approx(np.sqrt(0.04 / (1 - 0.85**2)), rel=0.06)
    assert np.corrcoef(before[~is_first, 0], after[~is_first, 0])[0, 1] == pytest.approx(0.85, abs=0.04)


@pytest.mark.parametrize(
    "config",
    [
        TD3Config(hidden_sizes=(8,), start_steps=0, noise=NoiseConfig("ou", theta=0.01)),
        TD3Config(hidden_sizes=(8,), start_steps=0, noise=NoiseConfig(hold_probability=1.0, hold_steps=1_000)),
        SACConfig(hidden_sizes=(8,), start_steps=0, hold_probability=1.0, hold_steps=1_000),
        SACConfig(hidden_sizes=(8,), start_steps=0, noise_correlation=0.99),
    ],
    ids=["ou", "hold", "sac-hold", "sac-noise"],
)
def test_exploration_ends_with_its_episode_also_if_the_first_action_of_the_next_was_taken(config: AgentConfig) -> None:
    """Where an episode begins with an action of somebody else's, what is chosen next has nothing of what was before."""
    policy = build_policy(config, EnvSpec((3,), "float32", action_shape=(2,)), seed=0)
    assert isinstance(policy, SplitPolicy)
    observation, begins = np.zeros((N, 3), np.float32), np.arange(N) < N // 2

    def explored(is_first: np.ndarray | None = None, taken: np.ndarray | None = None) -> np.ndarray:
        seen = policy_input(observation, is_first)
        return policy.choose(seen, policy.forward(seen), 1, taken).action

    for _ in range(40):
        before = explored()
    np.testing.assert_array_equal(explored(begins, ZEROS), ZEROS)
    after = explored()
    assert np.corrcoef(before[begins, 0], after[begins, 0])[0, 1] == pytest.approx(0.0, abs=0.1)
    assert np.corrcoef(before[~begins, 0], after[~begins, 0])[0, 1] > 0.6


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_disturbed_action_stays_within_the_bounds(kind: str) -> None:
    """Noise of standard deviation 5 is cut off at -1 and 1."""
    noise = ActionNoise(NoiseConfig(kind, std=5.0), seed=0)  # type: ignore[arg-type]
    action = noise.add_noise(ZEROS)
    assert (action.min(), action.max()) == (-1.0, 1.0)


def test_noise_of_zero_changes_nothing() -> None:
    """The policy's own actions come back."""
    action = np.random.default_rng(0).uniform(-1, 1, (8, 2)).astype(np.float32)
    np.testing.assert_array_equal(ActionNoise(NoiseConfig(std=0.0), seed=0).add_noise(action), action)


def test_share_of_the_environments_acts_without_noise() -> None:
    """With a share of .25 the first of four environments keeps the policy's action, also while others hold."""
    noise = ActionNoise(NoiseConfig(std=0.3, greedy_fraction=0.25, hold_probability=1.0, hold_steps=30), seed=0)
    action = np.zeros((4, 2), np.float32)
    first, second = noise.add_noise(action), noise.add_noise(action)
    assert (first[0] == 0).all()
    assert (first[1:] != 0).all()
    np.testing.assert_array_equal(first[1:], second[1:])  # a hold is one constant action


def test_hold_ends_where_an_episode_begins() -> None:
    """Elsewhere it continues."""
    noise = ActionNoise(NoiseConfig(std=0.0, hold_probability=1.0, hold_steps=30), seed=0)
    is_first = np.arange(N) < N // 2
    before, after = noise.add_noise(ZEROS), noise.add_noise(ZEROS, is_first)
    np.testing.assert_array_equal((before != after).all(axis=1), is_first)


def test_noise_follows_its_seed() -> None:
    """The same seed repeats it; another differs."""
    one, same, other = (
        ActionNoise(NoiseConfig("ou", hold_probability=0.5), seed).add_noise(ZEROS) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "field, value",
    [
        ("kind", "pink"),
        ("std", -0.1),
        ("std", float("inf")),
        ("theta", 0.0),
        ("theta", 1.5),
        ("greedy_fraction", 2.0),
        ("hold_probability", -1.0),
        ("hold_steps", 0),
    ],
)
def test_noise_setting_out_of_range_is_refused(field: str, value: object) -> None:
    """The message names the field and the value."""
    with pytest.raises(ConfigError, match=naming(f"noise.{field}", repr(value))):
        NoiseConfig(**{field: value})  # type: ignore[arg-type]


def test_clients_of_one_environment_share_out_the_quiet_quarter() -> None:
    """Every fourth of them is quiet, from the fourth on: seats fill from the front, and few may ever come."""
    config = NoiseConfig(std=0.3, greedy_fraction=0.25)
    action = np.zeros((1, 2), np.float32)
    quiet = [not ActionNoise(config, 0, ActorSlot(i, 1, 64)).add_noise(action).any() for i in range(8)]
    assert quiet == [False, False, False, True] * 2
    assert ActorSlot(5, 8, 4).first_of(0.25, 8) == 2


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("num_envs", [1, 2, 3, 16])
def test_first_actors_have_at_most_the_quiet_share(num_envs: int, fraction: float) -> None:
    """Of the environments of any number of actors it is rounded down, also of one actor's."""
    quiet = np.cumsum([ActorSlot(i, num_envs, 40).first_of(fraction, num_envs) for i in range(40)])
    share = fraction * num_envs * np.arange(1, 41)
    assert (quiet <= share).all()
    assert (quiet > share - 1).all()
