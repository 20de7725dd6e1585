"""Settings of a run in lock-step that must stay what they were at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import naming
from tests.unit.config.test_lock_step import settings
from tidemill.config.fixed import check_fixed, fixed_settings, keep_fixed
from tidemill.config.load import load_config
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError, FatalError


def _config(**changed: dict[str, Any]) -> RunConfig:
    return load_config(settings(**changed))


@pytest.mark.parametrize(
    "changed,message",
    [
        ({"run": {"seed": 2}}, "run.seed 2 1"),
        ({"run": {"round_steps": 64}}, "run.round_steps 64 32"),
        ({"run": {"deterministic": False}}, "run.deterministic"),
        ({"env": {"num_envs": 8}}, "env.num_envs 8 4"),
        ({"env": {"kwargs": {"size": 3}}}, 'env.kwargs "size" 3 {}'),
        ({"actor": {"count": 2}}, "actor.count 2 1"),
        ({"launcher": {"actors": 4}}, "launcher.actors 4 1"),
        ({"learner": {"updates_per_env_step": 0.5}}, "learner.updates_per_env_step 0.5 0.25"),
        ({"learner": {"device": "cuda:1"}}, 'learner.device "cuda:1" "auto"'),
        ({"table": {"max_items": 5000}}, "table.max_items 5000 1000000"),
        ({"agent": {"learning_rate": 0.5}}, "agent.learning_rate 0.5"),
        ({"run": {"seed": 3, "round_steps": 64}, "env": {"id": "a:b", "num_envs": 8}}, "run.seed 1"),
    ],
)
def test_setting_that_the_parameters_depend_on_is_refused(changed: dict[str, dict[str, Any]], message: str) -> None:
    """The message names it, the stored and the new value, and what to do."""
    with pytest.raises(ConfigError, match=naming(message)):
        check_fixed(fixed_settings(_config()), _config(**changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"run": {"max_learner_steps": 500, "name": "moved"}},
        {"launcher": {"view_every_s": 3.0}, "learner": {"log_every_s": 3.0, "decode_threads": 2}},
        {"actor": {"max_env_steps_per_s": 9.0}, "evaluator": {"episodes": 3}},
    ],
)
def test_other_settings_may_change(changed: dict[str, dict[str, Any]]) -> None:
    """Limits, names, logs and speeds have no influence."""
    check_fixed(fixed_settings(_config()), _config(**changed))


def test_free_running_cluster_may_change_everything() -> None:
    """Nothing is compared where neither run is in lock-step."""
    free = {"deterministic": False}
    check_fixed(fixed_settings(_config(run=free)), _config(run=free | {"seed": 2}))


def test_process_compares_with_its_first_start(tmp_path: Path) -> None:
    """What is written comes back equal; unknown names, of another version, do not matter."""
    file = tmp_path / "lock_step" / "learner.settings.json"
    for _ in range(2):
        keep_fixed(_config(), file)
    file.write_text(file.read_text().replace('"env.frame_skip"', '"env.gone"'))
    keep_fixed(_config(), file)
    with pytest.raises(ConfigError, match=naming("run.seed 2 1")):
        keep_fixed(_config(run={"seed": 2}), file)
    file.write_text("{")
    with pytest.raises(FatalError, match=naming("settings.json")):
        keep_fixed(_config(), file)
