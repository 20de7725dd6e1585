"""bsuite's experiments as environments, from examples/suites."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.launched import ROOT
from tidemill.config.load import load_config
from tidemill.envs.make import make_env, spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.rl.agents.build import build_agent

_PACKAGES = ROOT / ".venv-bsuite"

pytestmark = pytest.mark.skipif(not (_PACKAGES / ".installed").exists(), reason="needs make bsuite")


@pytest.fixture(autouse=True)
def bsuite_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of bsuite and the examples can be imported, behind the project's own packages."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "examples"), str(_PACKAGES)])


@pytest.mark.parametrize(
    "bsuite_id, seed", [("bandit/3", {}), ("catch/0", {"seed": 5}), ("umbrella_length/4", {"seed": 5})]
)
def test_episodes_are_those_of_bsuite(bsuite_id: str, seed: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations, rewards and ends of twenty episodes equal bsuite's own; a discount of 0 terminates."""
    import bsuite

    from suites.bsuite_experiments import BsuiteEnv

    monkeypatch.setattr(bsuite.sweep, "SETTINGS", {bsuite_id: {**bsuite.sweep.SETTINGS[bsuite_id], **seed}})
    env, original = BsuiteEnv(bsuite_id), bsuite.load_from_id(bsuite_id)
    rng = np.random.default_rng(0)
    for _ in range(20):
        observation, _ = env.reset(seed=1)
        step, ended = original.reset(), False
        np.testing.assert_array_equal(observation, step.observation)
        while not ended:
            action = rng.integers(original.action_spec().num_values)
            observation, reward, terminated, truncated, _ = env.step(action)
            step, ended = original.step(action), terminated or truncated
            np.testing.assert_array_equal(observation, step.observation)
            assert (reward, 1.0 - terminated, ended) == (step.reward, step.discount, step.last())


def test_training_alone_is_logged(tmp_path: Path) -> None:
    """The CSV file counts the episodes of the environment that an actor makes, none of an evaluator's."""
    kwargs: dict[str, Any] = {"bsuite_id": "bandit/0", "log_to": str(tmp_path)}
    settings = EnvSettings("suites.bsuite_experiments:BsuiteEnv", kwargs=kwargs)
    file = tmp_path / "bsuite_id_-_bandit-0.csv"
    for training in (False, True):
        envs = make_env(settings, 1, training=training)
        envs.reset(seed=1)
        for _ in range(14):  # an episode is one step, and its end is followed by one that resets
            envs.step(np.array([2]))
        envs.close()
        assert file.exists() == training
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [row["episode"] for row in csv.DictReader(lines)] == [str(number) for number in range(1, 8)]


@pytest.mark.parametrize("algorithm", ["dqn", "ppo_lstm"])
def test_config_builds_its_agent(algorithm: str) -> None:
    """The configs of the sweep are valid for the experiment they name."""
    config = load_config(ROOT / "examples" / "suites" / f"bsuite_{algorithm}.yaml")
    build_agent(config.agent, spec_of(config.env), seed=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of pandas, about bsuite's analysis
def test_committed_page_has_the_scores_of_the_committed_files() -> None:
    """The table is what bsuite's analysis says of the CSV files beside it."""
    from benchmarks.bsuite_sweep import RESULTS, report, score

    assert (RESULTS / "README.md").read_text(encoding="utf-8") == report(score())
