"""Settings of `learner.sources`, in files and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.config.command_line import document_of
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


def test_source_of_which_one_of_several_learners_draws_nothing_is_refused() -> None:
    """Each draws its part of a batch from every table; a share that is enough for one learner is taken."""
    sections = {"agent": {"batch_size": 32}, "learner": {"sources": {"demos": {"fraction": 0.04}}}}
    load_config(sections)
    with pytest.raises(ConfigError, match=naming("learner.sources demos 0.04 8 4 32 agent.batch_size")):
        load_config({**sections, "launcher": {"learners": 4}})
    one_of_each = {"agent": {"batch_size": 40}, "learner": {"sources": {"demos": {"fraction": 0.9}}}}
    load_config({**one_of_each, "launcher": {"learners": 4}})
    rounded = {"agent": {"batch_size": 64}, "learner": {"sources": {"demos": {"fraction": 0.04}}}}
    load_config({**rounded, "launcher": {"learners": 4}})  # one of 16


def test_one_setting_of_a_source_is_set_on_the_command_line(tmp_path: Path) -> None:
    """It replaces that of the file, the others stay, and a source of either alone is used."""
    file = tmp_path / "run.yaml"
    demos = {"fraction": 0.5, "replay": ["10.0.0.2:7401"]}
    write_document(load_config({"learner": {"sources": {"my-demos": demos, "old": {"fraction": 0.1}}}}), file)
    words = ["--config", str(file), "--learner.sources.my-demos.fraction", "0.3", "--learner.sources.my-demos.weight=2"]
    words += ["--learner.sources", "more", "{fraction: 0.2}"]
    assert load(RunConfig, words, prog="tidemill", description="").learner.sources == {
        "my-demos": SourceSettings(fraction=0.3, replay=("10.0.0.2:7401",), weight=2.0),
        "old": SourceSettings(fraction=0.1),
        "more": SourceSettings(fraction=0.2),
    }


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--env.kwargs.continuous", "true", "--env.kwargs", "gravity", "-9"], {"continuous": True, "gravity": -9}),
        (["--env.kwargs", "{a: {b: 1}}", "--env.kwargs.a.c", "[2, 3]"], {"a": {"b": 1, "c": [2, 3]}}),
        (["--env.kwargs.names", "x", "y"], {"names": ["x", "y"]}),
    ],
)
def test_one_entry_of_any_mapping_is_set_on_the_command_line(words: list[str], expected: dict[str, Any]) -> None:
    """Values are as in YAML, several words are a list, and what was given before stays."""
    assert document_of(words, RunConfig()) == {"env": {"kwargs": expected}}


@pytest.mark.parametrize(
    "words, message",
    [
        (["--learner.sources.demos.fractoin", "0.3"], "'learner.sources.demos.fractoin' fraction"),
        (["--learner.sources.demos.fraction"], "--learner.sources.demos.fraction value"),
        (["--learner.sources.demos.replay", "[a"], "--learner.sources.demos.replay YAML"),
    ],
)
def test_wrong_entry_of_a_mapping_is_named(words: list[str], message: str) -> None:
    """As any other setting."""
    with pytest.raises(ConfigError, match=naming(message)):
        load(RunConfig, words, prog="tidemill", description="")
