"""Values that the environment settings allow."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"id": ""}, "env.id ''"),
        ({"num_envs": 0}, "env.num_envs 0 1"),
        ({"max_episode_steps": -1}, "env.max_episode_steps -1 0"),
        ({"max_evaluation_steps": -1}, "env.max_evaluation_steps -1 0"),
        ({"on_failure": "skip"}, "env.on_failure 'skip' 'restart' 'drop' 'stop'"),
        ({"max_restarts": -1}, "env.max_restarts -1 0"),
        ({"restart_backoff_s": -0.1}, "env.restart_backoff_s -0.1 0"),
        ({"reset_timeout_s": -1.0}, "env.reset_timeout_s -1.0 0"),
        ({"max_memory_mib": 64}, "env.max_memory_mib 64 0 env.isolate"),
        ({"observation_indices": (1, -1)}, "env.observation_indices (1, -1) 0"),
        (
            {"id": "ALE/Pong-v5", "observation_indices": (0,)},
            "env.observation_indices (0,) ALE/",
        ),
        ({"frame_stack": 17}, "env.frame_stack 17 1 16"),
        ({"frame_skip": 0}, "env.frame_skip 0 1"),
        ({"noop_max": -1}, "env.noop_max -1 0"),
        ({"sticky_actions": 1.5}, "env.sticky_actions 1.5 0 1"),
        ({"sticky_actions": float("nan")}, "env.sticky_actions nan 0 1"),
        ({"max_frames": 3}, "env.max_frames 3 frame_skip"),
        (
            {"id": "ALE/Pong-v5", "kwargs": {"mode": 1}},
            "env.kwargs {'mode': 1} ALE/",
        ),
    ],
)
def test_value_out_of_range_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    """The message names the field, the value and what is allowed."""
    with pytest.raises(ConfigError, match=naming(message)):
        EnvSettings(**arguments)


def test_settings_import_without_gymnasium() -> None:
    """Whoever only reads settings does not pay for the environments' packages."""
    heavy = {"gymnasium", "ale_py", "torch"}
    code = f"import sys, tidemill.envs.settings; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0


@pytest.mark.parametrize(
    "other", [{"vector": "my:make"}, {"spaces": {"observation": ["uint8", 84, 84], "num_actions": 6}}]
)
def test_name_of_a_game_that_is_made_elsewhere_is_only_a_name(other: dict[str, Any]) -> None:
    """It is not preprocessed: observations may be stacked, rewards are as they come, Atari's settings mean nothing."""
    settings = EnvSettings("ALE/Pong-v5", observation_stack=4, **other)
    assert not settings.is_atari
    assert not settings.clips_rewards
    with pytest.raises(ConfigError, match=naming(f"env.frame_stack 2 4 env.{next(iter(other))}")):
        EnvSettings("ALE/Pong-v5", frame_stack=2, **other)
