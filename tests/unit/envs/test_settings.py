"""Values that the environment settings allow."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"id": ""}, "env.id is '', allowed: a gymnasium id"),
        ({"num_envs": 0}, "env.num_envs is 0, allowed: at least 1"),
        ({"max_episode_steps": -1}, "env.max_episode_steps is -1, allowed: 0 or more"),
        ({"max_evaluation_steps": -1}, "env.max_evaluation_steps is -1, allowed: 0 or more"),
        ({"on_failure": "drop"}, "env.on_failure is 'drop', allowed: 'restart' or 'stop'"),
        ({"max_restarts": -1}, "env.max_restarts is -1, allowed: 0 or more"),
        ({"restart_backoff_s": -0.1}, "env.restart_backoff_s is -0.1, allowed: 0 or more"),
        ({"reset_timeout_s": -1.0}, "env.reset_timeout_s is -1.0, allowed: 0 or more"),
        ({"max_memory_mib": 64}, "env.max_memory_mib is 64, allowed: 0 without env.isolate"),
        ({"observation_indices": (1, -1)}, "env.observation_indices is (1, -1), allowed: positions from 0"),
        (
            {"id": "ALE/Pong-v5", "observation_indices": (0,)},
            "env.observation_indices is (0,), allowed: nothing for an ALE/ game",
        ),
        ({"frame_stack": 17}, "env.frame_stack is 17, allowed: 1 to 16"),
        ({"frame_skip": 0}, "env.frame_skip is 0, allowed: at least 1"),
        ({"noop_max": -1}, "env.noop_max is -1, allowed: at least 0"),
        ({"sticky_actions": 1.5}, "env.sticky_actions is 1.5, allowed: 0 to 1"),
        ({"sticky_actions": float("nan")}, "env.sticky_actions is nan, allowed: 0 to 1"),
        ({"max_frames": 3}, "env.max_frames is 3, allowed: at least frame_skip"),
        (
            {"id": "ALE/Pong-v5", "kwargs": {"mode": 1}},
            "env.kwargs is {'mode': 1}, allowed: nothing for an ALE/ game",
        ),
    ],
)
def test_value_out_of_range_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    """The message names the field, the value and what is allowed."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        EnvSettings(**arguments)


def test_settings_import_without_gymnasium() -> None:
    """Whoever only reads settings does not pay for the environments' packages."""
    heavy = {"gymnasium", "ale_py", "torch"}
    code = f"import sys, tidemill.envs.settings; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
