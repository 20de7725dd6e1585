"""What marks a run as diverged, and which settings a checkpoint is compared by."""

from __future__ import annotations

from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Any

import pytest

from tidemill.config.digest import diverged_tag, training_settings
from tidemill.config.load import load_config
from tidemill.config.sections import RunConfig
from tidemill.rl.settings.q_learning import DQNConfig


@dataclass(frozen=True)
class _LaterConfig(DQNConfig):
    """The settings of a version that has one more."""

    further: int = 3


@dataclass(frozen=True)
class _OtherDefault(DQNConfig):
    """The settings of a version with another default."""

    n_step: int = DQNConfig().n_step + 1


_FIELDS = [each.name for each in fields(DQNConfig) if each.init]


def _config(**changed: dict[str, Any]) -> RunConfig:
    own = {"algorithm": "dqn", "learning_rate": 0.5}
    document: dict[str, dict[str, Any]] = {"env": {"id": "CartPole-v1"}, "agent": own}
    return load_config({section: settings | changed.get(section, {}) for section, settings in document.items()})


def _later(config: RunConfig, further: int) -> RunConfig:
    settings = {name: getattr(config.agent, name) for name in _FIELDS}
    return replace(config, agent=_LaterConfig(**settings, further=further))


def _with_other_default(config: RunConfig, **n_step: int) -> RunConfig:
    settings = {name: getattr(config.agent, name) for name in _FIELDS if name != "n_step"} | n_step
    return replace(config, agent=_OtherDefault(**settings))


def test_mark_of_a_divergence_is_found_by_a_version_with_more_settings() -> None:
    """An upgrade does not train again what has diverged, unless the run gives the new setting a value."""
    config = _config()
    assert diverged_tag(_later(config, 3)) == diverged_tag(config)
    assert diverged_tag(_later(config, 4)) != diverged_tag(config)
    assert training_settings(_later(config, 3))["agent.further"] == 3


@pytest.mark.parametrize("n_step", [DQNConfig().n_step, _OtherDefault().n_step])
def test_mark_of_a_divergence_is_lost_by_another_default_where_a_run_names_its_value(n_step: int) -> None:
    """The old default or the new one; a run that leaves it out keeps its mark (docs/releasing.md)."""
    named = _config(agent={"n_step": n_step})
    assert diverged_tag(_with_other_default(named, n_step=n_step)) != diverged_tag(named)
    assert diverged_tag(_with_other_default(_config())) == diverged_tag(_config())


def test_mark_of_a_divergence_does_not_hold_for_new_defaults_of_a_user_s_algorithm() -> None:
    """Its author has mended it there; with the same ones the mark is found."""
    config = _config()
    first, same, mended = (
        replace(config, agent=make_dataclass("Own", [("algorithm", str, "own:Own"), ("rate", float, rate)])())
        for rate in (1e-2, 1e-2, 1e-4)
    )
    assert diverged_tag(first) == diverged_tag(same)
    assert diverged_tag(first) != diverged_tag(mended)


@pytest.mark.parametrize(
    "changed",
    [
        {"agent": {"learning_rate": 0.25}},
        {"agent": {"algorithm": "r2d2"}},
        {"env": {"id": "Acrobot-v1"}},
        {"env": {"kwargs": {"size": 3}}},
    ],
)
def test_mark_of_a_divergence_does_not_hold_for_other_settings(changed: dict[str, dict[str, Any]]) -> None:
    """With them the run continues."""
    assert diverged_tag(_config(**changed)) != diverged_tag(_config())


def test_mark_of_a_divergence_ignores_what_training_does_not_depend_on() -> None:
    """More patience with its environments does not train the run again."""
    assert diverged_tag(_config(env={"max_restarts": 7, "step_timeout_s": 9.0})) == diverged_tag(_config())
