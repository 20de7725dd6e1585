"""The presets carry the evaluation protocols of the systems they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.config.load import from_document, load_config, read_document
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "configs"
GAMES = ("asterix", "wizard_of_wor", "zaxxon")
RAY_ATARI = [f"{game}_{kind}" for game in GAMES for kind in ("double_dqn", "prioritized_double_dqn")]


def _config(name: str) -> RunConfig:
    return from_document(RunConfig, read_document(CONFIGS / f"{name}.yaml"))


@pytest.mark.parametrize("name", RAY_ATARI)
def test_ray_atari_preset_is_tested_on_full_games_from_noop_starts(name: str) -> None:
    """30 episodes during training and 200 in the test, epsilon .05, up to 30 no-ops."""
    config = _config(name)
    protocol = config.evaluator
    assert (protocol.episodes, protocol.test_episodes) == (30, 200)
    assert (protocol.policy, protocol.epsilon) == ("epsilon", 0.05)
    assert (config.env.noop_max if protocol.noop_max is None else protocol.noop_max) == 30
    assert config.env.max_evaluation_steps == 0


@pytest.mark.parametrize(
    "name",
    [
        "pong_apex_pytorch_distributed",
        "pong_apex_pytorch_distributed_2_actors_1_step",
        "pong_apex_pytorch_distributed_8_actors_1_step",
    ],
)
def test_pytorch_distributed_preset_is_tested_on_full_games(name: str) -> None:
    """Nothing cuts a game of Pong short."""
    config = _config(name)
    assert config.env.max_evaluation_steps == 0
    assert config.evaluator.episodes >= 10


def test_sac1_preset_is_tested_on_25_deterministic_episodes() -> None:
    """During training and in the test; the best version is the one that is kept."""
    config = _config("lunarlander_continuous_sac1")
    protocol = config.evaluator
    assert (protocol.episodes, protocol.test_episodes, protocol.policy) == (25, 0, "greedy")
    assert config.env.max_evaluation_steps == 0


def test_sac1_preset_has_the_published_settings() -> None:
    """Those that equal a default are not in the file, and hold all the same."""
    config = _config("lunarlander_continuous_sac1")
    agent = config.agent
    published = {
        "hidden_sizes": (400, 300),
        "critic_layer_norm": False,
        "temperature": "fixed",
        "initial_temperature": 0.1,
        "learning_rate": 1e-3,
        "learning_rate_decay_updates": 0,
        "tau": 0.005,
        "gamma": 0.99,
        "batch_size": 100,
        "n_step": 1,
        "start_steps": 10_000,
    }
    assert {name: getattr(agent, name) for name in published} == published
    assert config.table.max_items == 1_000_000
    assert config.env.max_episode_steps == 0


def test_no_op_starts_are_refused_where_there_is_no_game() -> None:
    """The evaluator would end the run after it has begun; the default, which files may hold, is allowed."""
    for noop_max in (None, 30):
        document = {"env": {"id": "CartPole-v1"}, "evaluator": {"noop_max": noop_max}}
        assert load_config(document).evaluator.noop_max == noop_max
    with pytest.raises(ConfigError, match=naming("evaluator.noop_max 0 nothing env.id 'CartPole-v1'")):
        load_config(document | {"evaluator": {"noop_max": 0}})
