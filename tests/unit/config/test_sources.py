"""Settings of `learner.sources`, in files and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.config.load import load, load_config, read_document, write_document
from tidemill.config.sections import LearnerConfig, RunConfig
from tidemill.config.sources import SourceSettings, fractions_of
from tidemill.errors import ConfigError


def test_sources_of_a_file_and_of_a_command_line_are_alike(tmp_path: Path) -> None:
    """Each by its name, with defaults for what is not said; the run's own table has the rest."""
    expected = {
        "demos": SourceSettings(fraction=0.25),
        "old": SourceSettings(fraction=0.5, table="replay", replay=("10.0.0.2:7401",), weight=0.5),
    }
    old = {"fraction": 0.5, "table": "replay", "replay": "10.0.0.2:7401", "weight": 0.5}
    config = load_config({"learner": {"sources": {"demos": {"fraction": 0.25}, "old": old}}})
    assert config.learner.sources == expected
    assert fractions_of(config.learner.sources) == [0.25, 0.25, 0.5]
    words = ["demos", "{fraction: 0.25}", "old", str(old).replace("'", '"')]
    loaded = load(LearnerConfig, ["--learner.sources", *words], prog="learner", description="")
    assert loaded.learner.sources == expected
    write_document(config, tmp_path / "config.yaml")
    assert load_config(read_document(tmp_path / "config.yaml")) == config
    assert RunConfig().learner.sources == {}


@pytest.mark.parametrize(
    "sources, message",
    [
        ({"demos": {"fraction": 1.0}}, "learner.sources.demos.fraction 1.0 0 1"),
        ({"demos": {"fraction": 0}}, "learner.sources.demos.fraction 0.0 0"),
        ({"demos": {"fraction": "half"}}, "learner.sources.demos.fraction 'half' number"),
        ({"demos": {"weight": 0}}, "learner.sources.demos.weight 0.0 0"),
        ({"demos": {"replay": "nohost"}}, "learner.sources.demos.replay 'nohost'"),
        ({"demos": {"fractoin": 0.5}}, "'learner.sources.demos.fractoin' fraction"),
        ({"demos": 0.5}, "learner.sources.demos mapping 0.5"),
        ({"a b": {}}, "learner.sources 'a b' letters"),
        ({"a": {}, "b": {}}, "fractions learner.sources 1.0 1"),
        ({"demos": {"fraction": 0.001}}, "demos 0.001 256"),
    ],
)
def test_wrong_sources_are_refused(sources: dict[str, Any], message: str) -> None:
    """One line names the source, the value and what is allowed."""
    with pytest.raises(ConfigError, match=naming(message)):
        load_config({"learner": {"sources": sources}})


@pytest.mark.parametrize(
    "sections, message",
    [
        ({"agent": {"algorithm": "ppo"}}, "agent.algorithm 'ppo'"),
        ({"table": {"sampler": "fifo"}}, "table.sampler 'fifo' uniform prioritized"),
        ({"run": {"deterministic": True}}, "run.deterministic"),
    ],
)
def test_runs_that_take_no_sources(sections: dict[str, Any], message: str) -> None:
    """Those that learn from each item once, and those in lock-step."""
    with pytest.raises(ConfigError, match=naming("learner.sources demos", message)):
        load_config({**sections, "learner": {"sources": {"demos": {}}}})
