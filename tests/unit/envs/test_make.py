"""Environment ids, and the errors for unknown ones."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from tests.support.naming import naming
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
        ("LunarLanderContinous-v3", "'LunarLanderContinuous-v3'"),
        ("CartPole-v7", "'CartPole-v1'"),
        ("Breakout-v5", "'ALE/Breakout-v5'"),
        ("SpaceInvadersNoFrameskip-v5", "'ALE/SpaceInvaders-v5'"),
        ("__main__:Own", "__main__ 'Own' file"),
        ("not an id", "env.id 'not an id'"),
        ("ALE/Pung-v5", "'ALE/Pong-v5'"),
        ("ALE/pong_v5", "'ALE/Pong-v5'"),
        ("no_such_module:Env-v0", "'no_such_module'"),
        (f"{HERE}:countin", "'countin' 'counting'"),
        (f"{HERE}:no_environment", "gymnasium.Env"),
        (
            f"{HERE}:place",
            "env.id place Discrete(4) array env.flatten",
        ),
        (
            f"{HERE}:sequence",
            "Sequence array",
        ),
        (f"{HERE}:unbounded", "env.id unbounded [-1, 1]"),
    ],
)
def test_id_that_cannot_be_played_is_refused_with_what_to_do(env_id: str, message: str) -> None:
    """The message names the id and the nearest known one, or what the environment lacks."""
    with pytest.raises(ConfigError, match=naming(message)):
        make_env(EnvSettings(env_id), 1, training=True)


def test_version_alone_makes_no_ids_alike() -> None:
    """`Nope-v0` has nothing but its version in common with an environment that exists."""
    with pytest.raises(ConfigError, match=naming("'Nope-v0'")) as refused:
        make_env(EnvSettings("Nope-v0"), 1, training=True)
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize("env_id", ["CartPole-v1", f"{HERE}:counting"])
def test_unknown_argument_is_refused_with_its_name(env_id: str) -> None:
    """An argument that the constructor does not know is named."""
    with pytest.raises(ConfigError, match=naming("env.kwargs {'lenght': 3}", env_id, "'lenght'")):
        make_env(EnvSettings(env_id, {"lenght": 3}), 1, training=True)


def test_id_in_place_of_settings_is_refused() -> None:
    """As gymnasium takes it; the message has the settings with an id."""
    with pytest.raises(TypeError, match=naming("settings 'CartPole-v1' EnvSettings(id=\"CartPole-v1\")")):
        make_env("CartPole-v1", 4, training=False)  # type: ignore[arg-type]


def test_batch_of_no_environments_is_refused() -> None:
    """A batch has at least one environment."""
    with pytest.raises(ConfigError, match=naming("num_envs 0 1")):
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
    with pytest.raises(ConfigError, match=naming("'Needy-v0' a_package_nobody_has")):
        make_env(EnvSettings("Needy-v0"), 1, training=True)
    (tmp_path / "needs_mujoco.py").write_text("raise ImportError('MuJoCo is not installed, run `pip install x`')\n")
    needy = gymnasium.envs.registration.EnvSpec("Needy-v0", entry_point="needs_mujoco:Needy")
    monkeypatch.setitem(gymnasium.registry, "Needy-v0", needy)
    with pytest.raises(ConfigError) as refused:
        make_env(EnvSettings("Needy-v0"), 1, training=True)
    assert str(refused.value).endswith(f"): {how_to_install('mujoco')}")


def test_every_single_player_game_that_gymnasium_knows_is_a_game_id() -> None:
    """Our spelling of the games is gymnasium's."""
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    registered = {key for key in gymnasium.registry if key.startswith("ALE/") and key.endswith("-v5")}
    assert len(registered) > 100
    assert {key.lower() for key in registered} <= {key.lower() for key in game_ids()}


@pytest.mark.parametrize(
    "settings, message",
    [
        (EnvSettings(f"{HERE}:sequence", flatten=True), "env.flatten"),
        (
            EnvSettings("CartPole-v1", observation_indices=(0, 4)),
            "env.observation_indices (0, 4) Box (4,)",
        ),
        (
            EnvSettings(f"{HERE}:image", observation_indices=(0,)),
            "env.observation_indices (0,)",
        ),
    ],
)
def test_observation_that_cannot_be_made_as_asked_is_refused(settings: EnvSettings, message: str) -> None:
    """The message names the setting and the space."""
    with pytest.raises(ConfigError, match=naming(message)):
        make_env(settings, 1, training=True)
