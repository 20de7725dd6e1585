"""A mistyped option or file is answered with what was probably meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.config.load import load
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError


def _load(*arguments: str) -> RunConfig:
    return load(RunConfig, arguments, prog="tidemill train", description="")


def test_option_of_another_algorithm_names_whose_it_is() -> None:
    """The default algorithm is SAC, which has no distribution."""
    with pytest.raises(ConfigError, match=r"--agent\.distribution belongs to dqn, and agent\.algorithm is 'sac'"):
        _load("--agent.distribution", "c51")


def test_unknown_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else is on the command line."""
    with pytest.raises(SystemExit, match="2"):
        _load("--run.name", "x", "--run.sed", "3")
    assert "--run.seed" in capsys.readouterr().err


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


def test_help_of_a_section_is_its_options_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """With those of the sections in it; of the agent those of the algorithm that is named."""
    for words in (["--help", "learner"], ["-h", "learner"]):
        with pytest.raises(SystemExit, match="0"):
            _load(*words)
        shown = capsys.readouterr().out
        assert set(re.findall(r"--(\w+)\.", shown)) == {"learner"}
        assert "--learner.server.grace-s" in shown
    with pytest.raises(SystemExit, match="0"):
        _load("--agent.algorithm", "dqn", "--help", "agent")
    assert "--agent.dueling" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        _load("--help")
    assert "--help SECTION" in (whole := capsys.readouterr().out)
    assert "--agent.learning-rate" in whole


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
        with pytest.raises(ConfigError, match=r"did you mean 'configs/quickstart\.yaml'"):
            _load("--config", wrong)
