"""A command line read without tyro says the same as with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import tyro

from tidemill.config.command_line import document_of_words, read_by_tyro, with_options
from tidemill.config.load import from_document, load
from tidemill.config.overlay import overlay
from tidemill.config.sections import (
    ActorConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    ParamServerConfig,
    ReplayConfig,
    RunConfig,
)
from tidemill.errors import ConfigError
from tidemill.rl.agents.registry import algorithms

_CASES: list[tuple[type[Any], str | None]] = [
    *((RunConfig, algorithm) for algorithm in algorithms()),
    (LearnerConfig, "dqn"),
    *((config, None) for config in (ActorConfig, EvaluatorConfig, InferenceConfig, ParamServerConfig, ReplayConfig)),
]


def _leaves(settings: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any dataclass
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, bool | int | float | str | None):
            yield name, value


def _candidates(value: Any) -> list[Any]:  # noqa: ANN401
    """Return values that a setting may have instead; not all are allowed."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value / 2 if isinstance(value, float) else value - 1]
    return ["changed", "uniform", 3, 0.5] if value is None else [f"{value}x", None]


def _changed(settings: Any) -> tuple[Any, list[str]]:  # noqa: ANN401
    """Return settings of which as many as possible are others, and the words that say so."""
    words: list[str] = []
    for number, (name, value) in enumerate(_leaves(settings)):
        if name == "agent.algorithm":
            continue
        for candidate in _candidates(value):
            document: Any = candidate
            for part in reversed(name.split(".")):
                document = {part: document}
            try:
                settings = overlay(settings, document)
            except ConfigError:
                continue
            option = f"--{name.replace('_', '-')}"
            if isinstance(candidate, bool):
                section, _, last = option.rpartition(".")
                words += [option if candidate else f"{section}.no-{last}"]
            elif number % 2:
                words += [f"{option}={candidate}"]
            else:
                words += [option, str(candidate)]
            break
    return settings, words


@pytest.mark.parametrize("config,algorithm", _CASES, ids=lambda value: getattr(value, "__name__", value))
def test_options_say_the_same_as_to_tyro(config: type[Any], algorithm: str | None) -> None:
    """Every setting that is a number, a name, a choice, a switch or none of them."""
    settings = from_document(config, {}, algorithm)
    expected, words = _changed(settings)
    assert len(words) > 10
    document = document_of_words(words, settings)
    assert document is not None
    assert overlay(settings, document) == expected
    assert read_by_tyro(settings, words, "test", "") == expected


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["word"],
        ["--nothing.like-this", "1"],
        ["--run.nothing-like-this", "1"],
        ["--run.seed"],
        ["--run.seed", "one"],
        ["--run.seed", "1", "--run.seed", "2"],
        ["--run.name", ""],
        ["--run.name", "--run.seed"],
        ["--evaluator.video=true"],
        ["--evaluator.no-episodes"],
        ["--table.sampler", "alphabetical"],
        ["--cluster.replay", "a:1", "b:1"],
    ],
)
def test_what_is_wrong_or_takes_several_words_is_left_to_tyro(words: list[str]) -> None:
    """Which knows how to say what is wrong, and what helps."""
    assert document_of_words(words, RunConfig()) is None


def test_process_is_started_without_tyro(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a launcher gives an actor."""
    monkeypatch.setattr(tyro, "cli", None)
    words = ["--config", "cartpole_dqn", "--actor.id", "actor-1", "--actor.index", "1", "--actor.count", "2"]
    actor = load(ActorConfig, words, prog="test", description="").actor
    assert (actor.id, actor.index, actor.count) == ("actor-1", 1, 2)


def test_value_that_no_setting_may_have_is_refused_by_name() -> None:
    """As by a file."""
    with pytest.raises(ConfigError, match=r"actor\.count is 0, allowed: at least 1"):
        with_options(ActorConfig(), ["--actor.count", "0"], prog="test", description="")
