"""A command line says the same as a file, or what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.naming import naming
from tidemill.config.command_line import document_of
from tidemill.config.load import from_document, load
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
from tidemill.rl.settings.registry import algorithms
from tidemill.settings.overlay import overlay

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
def test_options_say_the_same_as_a_file(config: type[Any], algorithm: str | None) -> None:
    """Every setting that is a number, a name, a choice, a switch or none of them."""
    settings = from_document(config, {}, algorithm)
    expected, words = _changed(settings)
    assert len(words) > 10
    assert overlay(settings, document_of(words, settings)) == expected


def _read(*words: str) -> RunConfig:
    return load(RunConfig, words, prog="test", description="")


@pytest.mark.parametrize(
    "words, line",
    [
        (["word"], "'word'"),
        (["--nothing.like-this", "1"], "--nothing.like-this"),
        (["--run.nothing-like-this", "1"], "--run.nothing-like-this"),
        (["--run.seed"], "--run.seed"),
        (["--run.name", "--run.seed", "1"], "--run.name"),
        (["--run.seed", "one"], "run.seed 'one'"),
        (["--run.name="], "run.name ''"),
        (["--config="], "--config ''"),
        (["--config", "", "--run.seed", "1"], "--config ''"),
        (["--agent.algorithm="], "agent.algorithm '' dqn"),
        (["--evaluator.video=maybe"], "--evaluator.video 'maybe'"),
        (["--evaluator.no-episodes"], "--evaluator.no-episodes"),
        (["--table.sampler", "alphabetical"], "table.sampler 'alphabetical' 'uniform'"),
        (["--env.kwargs", "size"], "--env.kwargs"),
        (["--env.kwargs", "size", "[1"], "--env.kwargs YAML"),
        (["--env.kwargs", "start", "2024-02-30"], "--env.kwargs YAML '2024-02-30'"),
        (["--run", "3"], "--run"),
    ],
)
def test_wrong_option_is_answered_in_one_line(words: list[str], line: str) -> None:
    """With what it was and what is allowed."""
    with pytest.raises(ConfigError, match=naming(line)) as refused:
        _read(*words)
    assert len(str(refused.value).splitlines()) == 1


def test_everything_that_is_wrong_is_told_at_once() -> None:
    """Options, values, ranges and what does not go together: nobody wants to hear of them one by one."""
    with pytest.raises(ConfigError) as refused:
        _read("word", "--run.sed", "1", "--agent.lr", "2")
    assert len(str(refused.value).splitlines()) == 3
    with pytest.raises(ConfigError) as refused:
        _read("--run.seed", "-1", "--run.round-steps", "0", "--agent.tau", "7", "--env.num-envs", "x")
    names = [line.split()[0] for line in str(refused.value).splitlines()]
    assert names == ["run.seed", "run.round_steps", "agent.tau", "env.num_envs"]


def test_lists_and_mappings_take_several_words() -> None:
    """Lists also with commas, and values of mappings as YAML has them."""
    for words in (["64", "32"], ["64,32"], ["[64, 32]"]):
        assert _read("--agent.hidden-sizes", *words).agent.hidden_sizes == (64, 32)  # type: ignore[attr-defined]
    for words in (["a:1", "b:1"], ["a:1,b:1"], ["[a:1, b:1]"], ["[a:1,", "b:1]"], ["(a:1,b:1)"]):
        assert _read("--cluster.replay", *words, "--run.seed", "3").cluster.replay == ("a:1", "b:1")
    assert _read("--cluster.inference", "[]").cluster.inference == ()
    kwargs = ["--env.kwargs", "range", "[0.5, 2.0]", "size", "3", "flag", "true", "small", "1e-3"]
    assert _read(*kwargs).env.kwargs == {"range": [0.5, 2.0], "size": 3, "flag": True, "small": 0.001}
    assert _read("--env.kwargs", "{a: {b: 1}}").env.kwargs == {"a": {"b": 1}}
    assert _read("--run.max-env-steps", "1e5", "--run.seed", "1", "--run.seed", "2").run.seed == 2


@pytest.mark.parametrize("text", ["[::1]:7401 [::2]:7402", "[::1]:7401,[::2]:7402", "[[::1]:7401, [::2]:7402]"])
def test_list_keeps_the_brackets_of_addresses(text: str) -> None:
    """Only those around the whole list are its own."""
    assert _read("--cluster.replay", *text.split()).cluster.replay == ("[::1]:7401", "[::2]:7402")


@pytest.mark.parametrize("word", ["a:1 b:1", " a:1,  b:1 ", "[a:1 b:1]", "a:1\nb:1"])
def test_one_word_may_hold_a_list_of_texts(word: str) -> None:
    """As a shell variable in quotes does."""
    assert _read("--cluster.replay", word).cluster.replay == ("a:1", "b:1")
    assert _read(f"--cluster.replay={word}").cluster.replay == ("a:1", "b:1")


def test_path_of_a_socket_in_a_list_may_have_blanks() -> None:
    """It ends before the next socket."""
    sockets = ("unix:///my dir/a.sock", "unix:///my dir/b.sock")
    for words in (sockets, [" ".join(sockets)], [f"[{', '.join(sockets)}]"]):
        assert _read("--cluster.replay", *words).cluster.replay == sockets


def test_mapping_that_is_given_twice_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    """The later value of a name counts, and nothing is lost silently: a list that is replaced gets a note."""
    kwargs = ("--env.kwargs", "size", "3", "hard", "false", "--env.kwargs", "hard", "true", "--env.kwargs={wind: 2}")
    assert _read(*kwargs).env.kwargs == {"size": 3, "hard": True, "wind": 2}
    assert not capsys.readouterr().err
    lists = ("--cluster.replay", "a:1", "b:2", "--run.seed", "1", "--run.seed", "2", "--cluster.replay", "c:3")
    config = _read(*lists)
    assert (config.cluster.replay, config.run.seed) == (("c:3",), 2)
    said = "note: --cluster.replay c:3 replaces a:1 b:2: a list takes all values at once\n"
    assert capsys.readouterr().err == said


def test_value_that_no_setting_may_have_is_refused_by_name() -> None:
    """As by a file."""
    with pytest.raises(ConfigError, match=naming("actor.count 0 1")):
        load(ActorConfig, ["--actor.count", "0"], prog="test", description="")
