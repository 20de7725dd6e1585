"""Environment ids, and the errors for unknown ones."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from tidemill.envs.atari_env import game_ids
from tidemill.envs.make import make_env, spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.installation import how_to_install

HERE = "tests.support.envs"


@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1",
        f"{HERE}:counting",
        f"{HERE}:CountingEnv",
        f"{HERE}:tidemill-tests/Counting-v0",
        "ALE/Pong",
    ],
)
def test_every_kind_of_id_makes_an_environment(env_id: str) -> None:
    """A registered id, a function, a class, an id that a module registers, and a game are all playable."""
    env = make_env(EnvSettings(env_id), 2, training=True)
    assert len(env.reset(0)) == 2
    assert env.step(np.zeros(2, np.int64)).reward.shape == (2,)
    assert env.spec == spec_of(EnvSettings(env_id))


@pytest.mark.requires_box2d
def test_kwargs_reach_the_environment() -> None:
    """`kwargs` are arguments of the constructor."""
    env = make_env(EnvSettings("LunarLander-v3", {"continuous": True}), 1, training=True)
    assert env.spec.action_shape == (2,)


@pytest.mark.parametrize(
    "env_id, message",
    [
        ("LunarLanderContinous-v3", "not a known environment; did you mean 'LunarLanderContinuous-v3'?"),
        ("CartPole-v7", "not a known environment; did you mean 'CartPole-v1'?"),
        ("Breakout-v5", "not a known environment; did you mean 'ALE/Breakout-v5'?"),
        ("SpaceInvadersNoFrameskip-v5", "not a known environment; did you mean 'ALE/SpaceInvaders-v5'?"),
        ("not an id", "env.id is 'not an id', which is not a known environment"),
        ("ALE/Pung-v5", "not a known Atari game; did you mean 'ALE/Pong-v5'?"),
        ("ALE/pong_v5", "not a known Atari game; did you mean 'ALE/Pong-v5'?"),
        ("no_such_module:Env-v0", "No module named 'no_such_module': install it, or put it into /"),
        (f"{HERE}:countin", "neither defines nor registers 'countin'; did you mean 'counting'?"),
        (f"{HERE}:no_environment", "which made int, allowed: a gymnasium.Env"),
        (
            f"{HERE}:place",
            r"^env.id is '.*:place', but observations of Discrete\(4\) are not an array.*; env.flatten makes",
        ),
        (
            f"{HERE}:sequence",
            r"observations of Sequence\(.* are not an array .*; it takes an environment that returns one",
        ),
        (f"{HERE}:unbounded", r"^env.id is '.*:unbounded', but .* have no bounds to scale \[-1, 1\] to"),
    ],
)
def test_id_that_cannot_be_played_is_refused_with_what_to_do(env_id: str, message: str) -> None:
    """The message names the id and the nearest known one, or what the environment lacks."""
    with pytest.raises(ConfigError, match=message):
        make_env(EnvSettings(env_id), 1, training=True)


@pytest.mark.parametrize("env_id", ["CartPole-v1", f"{HERE}:counting"])
def test_unknown_argument_is_refused_with_its_name(env_id: str) -> None:
    """An argument that the constructor does not know is named."""
    with pytest.raises(ConfigError, match=rf"env.kwargs are {{'lenght': 3}}, which {env_id} refuses: .*lenght"):
        make_env(EnvSettings(env_id, {"lenght": 3}), 1, training=True)


def test_batch_of_no_environments_is_refused() -> None:
    """A batch has at least one environment."""
    with pytest.raises(ConfigError, match="num_envs is 0, allowed: at least 1"):
        make_env(EnvSettings("CartPole-v1"), 0, training=True)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment whose own import fails is distinguished from an unknown one."""
    (tmp_path / "needs_something.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(
        gymnasium.registry,
        "Needy-v0",
        gymnasium.envs.registration.EnvSpec("Needy-v0", entry_point="needs_something:Needy"),
    )
    with pytest.raises(ConfigError, match=r"'Needy-v0', which needs a missing package: .*a_package_nobody_has"):
        make_env(EnvSettings("Needy-v0"), 1, training=True)
    (tmp_path / "needs_mujoco.py").write_text("raise ImportError('MuJoCo is not installed, run `pip install x`')\n")
    needy = gymnasium.envs.registration.EnvSpec("Needy-v0", entry_point="needs_mujoco:Needy")
    monkeypatch.setitem(gymnasium.registry, "Needy-v0", needy)
    with pytest.raises(ConfigError) as refused:
        make_env(EnvSettings("Needy-v0"), 1, training=True)
    assert str(refused.value).endswith(f"): {how_to_install('mujoco')}")


def test_every_single_player_game_that_gymnasium_knows_is_a_game_id() -> None:
    """Our spelling of the games is gymnasium's."""
    registered = {key for key in gymnasium.registry if key.startswith("ALE/") and key.endswith("-v5")}
    assert len(registered) > 100
    assert {key.lower() for key in registered} <= {key.lower() for key in game_ids()}


@pytest.mark.parametrize(
    "settings, message",
    [
        (EnvSettings(f"{HERE}:sequence", flatten=True), "Sequence.* have no fixed size, and env.flatten needs one"),
        (
            EnvSettings("CartPole-v1", observation_indices=(0, 4)),
            r"env.observation_indices is \(0, 4\), but observations are Box.*\(4,\)",
        ),
        (
            EnvSettings(f"{HERE}:image", observation_indices=(0,)),
            r"env.observation_indices is \(0,\), but .* positions in a vector",
        ),
    ],
)
def test_observation_that_cannot_be_made_as_asked_is_refused(settings: EnvSettings, message: str) -> None:
    """The message names the setting and the space."""
    with pytest.raises(ConfigError, match=message):
        make_env(settings, 1, training=True)
