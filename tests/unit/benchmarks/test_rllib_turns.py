"""RLlib as the actor's peer: what is asked of its process, with another program in its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.rllib_turns import rllib_turns
from tidemill.config.sections import RunConfig
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.rl.settings.deterministic import TD3Config
from tidemill.rl.settings.q_learning import DQNConfig

_STAND_IN = """#!/bin/sh
echo "$@" >> "$0.asked"
case "$*" in *--fastest-of*) echo 32;; *) echo 640.5;; esac
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """Return a program that notes its arguments and answers as the peer does."""
    program = tmp_path / "python"
    program.write_text(_STAND_IN)
    program.chmod(0o755)
    return program


def test_game_is_measured_with_both_emulators_and_the_fastest_number(stand_in: Path) -> None:
    """Each way searches once among 8, 16 and 32 environments, then measures with what was found, and says so."""
    agent = DQNConfig(hidden_sizes=(64, 32), dueling=False)
    config = dataclasses.replace(RunConfig(), env=EnvSettings(id="ALE/Pong-v5"), agent=agent)
    turns = rllib_turns(str(stand_in), config, seconds=3.0)
    for turn in turns:
        turn.measure(3.0)
    asked = Path(f"{stand_in}.asked").read_text().splitlines()
    way = "-m benchmarks.rllib_peer --env ALE/Pong-v5 --emulator {} --hidden 64 32 {}"
    assert asked == [
        *(way.format(emulator, "--fastest-of 8 16 32 --seconds 1.0") for emulator in ("wrapper", "vector")),
        *(way.format(emulator, "--num-envs 32 --seconds 3.0") for emulator in ("wrapper", "vector")),
    ]
    assert [turn.rates for turn in turns] == [[640.5], [640.5]]
    assert [turn.name for turn in turns] == [
        "RLlib's env runner on its Atari wrapper (32 environments, the fastest of 8, 16, 32)",
        "RLlib's env runner on ale-py's vector environment (32 environments, the fastest of 8, 16, 32)",
    ]


def test_agent_that_the_peer_does_not_have_is_refused(stand_in: Path) -> None:
    """RLlib is asked for DQN and SAC only; another agent is an error that names it."""
    with pytest.raises(ConfigError, match="td3"):
        rllib_turns(str(stand_in), dataclasses.replace(RunConfig(), agent=TD3Config()), seconds=3.0)
