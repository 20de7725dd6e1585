"""A mistyped option or file is answered with what was probably meant."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.config.documented import settings
from tidemill.config.load import from_document, load
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.settings.registry import algorithms, config_class


def _load(*arguments: str) -> RunConfig:
    return load(RunConfig, arguments, prog="tidemill train", description="")


def test_option_of_another_algorithm_names_whose_it_is() -> None:
    """The default algorithm is SAC, which has no distribution."""
    with pytest.raises(ConfigError, match=naming("--agent.distribution dqn agent.algorithm 'sac'")):
        _load("--agent.distribution", "c51")


def test_unknown_option_names_the_nearest() -> None:
    """Whatever else is on the command line."""
    with pytest.raises(ConfigError, match=naming("--run.sed '--run.seed'")):
        _load("--run.name", "x", "--run.sed", "3")


def test_options_that_exist_pass() -> None:
    """Dashes or underscores, flags off, values after an equals sign, and arguments of the environment."""
    config = _load("--env.num-envs=3", "--env.max_episode_steps", "9", "--env.no-flatten", "--env.kwargs", "a", "1")
    assert (config.env.num_envs, config.env.max_episode_steps, config.env.flatten) == (3, 9, False)
    assert dict(config.env.kwargs) == {"a": 1}


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--agent.double", "false"], False),
        (["--agent.double=False"], False),
        (["--agent.no-double"], False),
        (["--agent.double", "true"], True),
        (["--agent.double"], True),
        (["--agent.double", "--run.name", "true"], True),
    ],
)
def test_switch_may_have_its_value_as_a_file_says_it(words: list[str], expected: bool) -> None:
    """As well as being there or, with `no-`, not being there."""
    config = _load("--agent.algorithm", "dqn", *words)
    assert config.agent.double == expected  # type: ignore[attr-defined]


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit, match=naming("0")):
        _load(*arguments)
    return capsys.readouterr().out


def test_help_of_a_section_is_its_options_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """With those of the sections in it; of the agent those of the algorithm that is named."""
    for words in (["--help", "learner"], ["-h", "learner"]):
        shown = _shown(capsys, *words)
        assert set(re.findall(r"--(\w+)\.", shown)) == {"learner"}
        assert "--learner.server.NAME" in shown
    assert "--learner.server.grace-s" in _shown(capsys, "--help", "learner.server")
    of_dqn = _shown(capsys, "--agent.algorithm", "dqn", "--help", "agent")
    assert "--agent.dueling" in of_dqn
    assert "--agent.temperature" not in of_dqn
    whole = _shown(capsys, "--help")
    assert "--help SECTION" in whole
    assert len(whole.splitlines()) <= 40
    for name in (*(field.name for field in dataclasses.fields(RunConfig)), *algorithms()):
        assert name in whole


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize("algorithm", algorithms())
def test_help_of_a_section_fits_a_screen(
    columns: int, algorithm: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 lines, or one for each setting where those are more; every setting says what it means.

    The settings of a server share a line.
    """
    monkeypatch.setenv("COLUMNS", str(columns))
    config = dataclasses.replace(RunConfig(), agent=config_class(algorithm)())
    for section in dataclasses.fields(config):
        lines = _shown(capsys, "--agent.algorithm", algorithm, "--help", section.name).splitlines()
        listed = list(settings(section.name, getattr(config, section.name)))
        assert len(lines) <= max(40, len(listed) + 5), section.name
        assert max(map(len, lines)) <= columns, section.name
        for setting in listed:
            option = f"--{setting.name.replace('_', '-')}" + ".NAME" * setting.name.endswith(".server")
            assert [line.split()[0] for line in lines].count(option) == 1, setting.name
            assert setting.text, setting.name


@pytest.mark.parametrize("columns", ["20", "40", "50"])
def test_help_is_shown_in_a_narrow_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lines that are longer than it is wide, rather than not at all."""
    monkeypatch.setenv("COLUMNS", columns)
    for field in dataclasses.fields(RunConfig):
        assert f"--{field.name}." in _shown(capsys, "--help", field.name)
    for asked in ([], ["all"], ["algorithms"], ["run."]):
        assert _shown(capsys, "--help", *asked)


def test_help_of_a_setting_says_all_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With its type and default, at any width; of a beginning, of all settings that have it, spelled either way."""
    for columns in ("80", "160"):
        monkeypatch.setenv("COLUMNS", columns)
        for section in dataclasses.fields(RunConfig):
            values = getattr(RunConfig(), section.name)
            shown = " ".join(_shown(capsys, "--help", f"{section.name}.").split())
            for setting in settings(section.name, values, with_servers=True):
                assert f"{setting.text} (default: " in shown, setting.name
    shown = _shown(capsys, "--agent.algorithm", "dqn", "--help", "agent.noisy")
    assert re.findall(r"--agent\S*", shown) == ["--agent.noisy", "--agent.noisy-std", "--agent.noisy-target"]
    assert _shown(capsys, "--help", "run.max-wall-s") == _shown(capsys, "--help", "run.max_wall_s")
    assert "--run.max-wall-s NUMBER" in shown + _shown(capsys, "--help", "run.max_wall_s")
    assert "uniform|prioritized|fifo" in _shown(capsys, "--help", "table.sampler")
    with pytest.raises(ConfigError, match=naming("'run.sed_' 'run.seed'")):
        _load("--help", "run.sed_")


def test_list_of_a_user_s_algorithm_is_an_option_like_a_tuple(capsys: pytest.CaptureFixture[str]) -> None:
    """In help, too."""
    algorithm = ("--agent.algorithm", "tests.support.own_algorithm:OwnConfig")
    config = _load(*algorithm, "--agent.layers", "32", "16")
    assert config.agent.layers == [32, 16]  # type: ignore[attr-defined]
    assert "--agent.layers INTEGER ..." in _shown(capsys, *algorithm, "--help", "agent.layers")


@pytest.mark.parametrize("word", ["none", "null", "None"])
@pytest.mark.parametrize("separator", [" ", "="])
def test_setting_that_may_be_none_says_so_as_files_and_reference_do(tmp_path: Path, word: str, separator: str) -> None:
    """Where the file has a number, too; a setting that is text keeps the word."""
    (tmp_path / "x.yaml").write_text("run: {target_return: 200}")
    option = f"--run.target-return{separator}{word}".split()
    config = _load("--config", str(tmp_path / "x.yaml"), *option, "--run.name", word)
    assert config.run.target_return is None
    assert config.run.name == word


def test_mistyped_file_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those beside it, or in configs/."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for wrong in ("configs/quikstart.yaml", "quickstart.yml"):
        with pytest.raises(ConfigError, match=naming("'configs/quickstart.yaml'")):
            _load("--config", wrong)


@pytest.mark.parametrize(
    "arguments, meant",
    [
        ("--learner.publish 5", "learner.publish-every"),
        ("--learner.publish true", "learner.publish-half"),
        ("--learner.publish-haf", "learner.publish-half"),
        ("--launcher.view-s 0.2", ""),
        ("--launcher.vew plain", "launcher.view"),
        ("--agent.algorithm ppo --actor.epsilon 0.1", ""),  # `evaluator.epsilon` is another thing
        ("--learner.servr x", ""),
        ("--run.target-retrn none", "run.target-return"),
        ("--env.kwarg a 1", "env.kwargs"),
        ("--agent.hidden-size-s 64 64", "agent.hidden-sizes"),
    ],
)
def test_setting_of_another_kind_is_never_meant(arguments: str, meant: str) -> None:
    """A switch and a choice take no number, and an option does not name a section."""
    with pytest.raises(ConfigError) as refused:
        _load(*arguments.split())
    assert re.findall(r"did you mean '--([\w.-]+)'", str(refused.value)) == ([meant] if meant else [])


@pytest.mark.parametrize(
    "document, meant",
    [
        ({"learner": {"servr": {"address": "x"}}}, "learner.server"),
        ({"learner": {"servr": "x"}}, ""),
        ({"launcher": {"view_s": 0.2}}, ""),
        ({"evaluator": {"vidio": False}}, "evaluator.video"),
        ({"evaluator": {"vidio": 3}}, ""),
        ({"agent": {"hidden_sizs": [64]}}, "agent.hidden_sizes"),
        ({"env": {"kwarg": {"a": 1}}}, "env.kwargs"),
    ],
)
def test_key_of_a_file_means_a_setting_or_section_of_its_kind(document: dict[str, object], meant: str) -> None:
    """A mapping is for a section or a mapping, a single value for neither."""
    with pytest.raises(ConfigError) as refused:
        from_document(RunConfig, document)
    assert re.findall(r"did you mean '([\w.]+)'", str(refused.value)) == ([meant] if meant else [])


def test_refused_setting_of_a_server_names_its_service() -> None:
    """Every service has a `server`."""
    with pytest.raises(ConfigError, match=naming("replay.server.address '1.2.3.4.5'")):
        _load("--replay.server.address", "1.2.3.4.5")
