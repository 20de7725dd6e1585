"""The command line: help, mistakes and exit codes."""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.closed_folder import deny
from tests.support.naming import naming
from tidemill.config.sections import RunConfig
from tidemill.config.services import EvaluatorSettings
from tidemill.errors import ConfigError, Unavailable
from tidemill.rl.settings.registry import algorithms, config_class
from tidemill.services.launcher import cli
from tidemill.services.launcher.commands import control, train

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_names_every_command_and_what_it_does(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help goes to standard output and is a success."""
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert name in shown
        assert entry.summary in shown


def test_no_command_at_all_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The usage goes to standard error, with exit code 2."""
    assert cli.main([]) == 2
    assert "usage: tidemill" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed, meant", [("trian", "train"), ("evalute", "evaluate"), ("Actor", "actor"), ("reply", "replay")]
)
def test_unknown_command_is_answered_with_the_nearest_one(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped command says what was probably meant, with exit code 2."""
    assert cli.main([typed]) == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_unknown_command_far_from_all_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing near it: all are named."""
    assert cli.main(["xyzzy"]) == 2
    assert "known: train, resume" in capsys.readouterr().err


def test_configs_lists_the_presets_and_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a line; what is printed is the file."""
    assert cli.main(["configs"]) == 0
    assert "\nquickstart " in capsys.readouterr().out
    assert cli.main(["configs", "quickstart"]) == 0
    assert capsys.readouterr().out == (_ROOT / "configs" / "quickstart.yaml").read_text()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["paramserver", "--help"]])
def test_output_whose_reader_has_left_ends_without_a_traceback(arguments: list[str]) -> None:
    """`tidemill X --help | head -1`: nothing on standard error, and the exit code of a program that SIGPIPE ended."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tidemill.services.launcher", *arguments]
    try:
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=500, check=False)
    finally:
        os.close(writer)
    assert (ended.stderr, ended.returncode) == ("", 128 + signal.SIGPIPE)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["resume", "--help"], ["train"]])
def test_first_screens_fit_a_terminal(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 lines of 80 characters, one of them for the prompt."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("tidemill.services.launcher.commands.train.command_name", lambda: "tidemill")
    cli.main(arguments)
    lines = "".join(capsys.readouterr()).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", [name for name, entry in cli.COMMANDS.items() if ":" in entry.place])
def test_help_fits_a_terminal_of_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the command, no line is broken by the terminal, and the whole help is about a screen."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"tidemill {name}" in shown
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 36


def test_train_without_arguments_says_what_one_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    """A preset, an environment, a file of settings; nothing is started, and it is bad usage."""
    assert cli.main(["train"]) == 2
    said = capsys.readouterr().err
    assert all(option in said for option in ("--config quickstart", "--env.id CartPole-v1", "--config mine.yaml"))


def test_help_of_train_lists_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    """The overview by their names, `--help algorithms` in a line each; the overview says how to see their settings."""
    assert cli.main(["train", "--help"]) == 0
    overview = capsys.readouterr().out
    assert cli.main(["train", "--help", "algorithms"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert len(algorithms()) == 10
    for name in algorithms():
        assert name in overview
        assert f" {name} {str(config_class(name).__doc__).splitlines()[0][:40]}" in listed
    assert "--agent.algorithm NAME --help agent" in " ".join(overview.split())


def test_command_of_a_service_takes_over_the_process() -> None:
    """`tidemill replay --help` is what `python -m tidemill.services.replay --help` says."""
    command = [sys.executable, "-m", "tidemill.services.launcher", "replay", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, timeout=500, check=False)
    assert answer.returncode == 0
    assert "tidemill replay" in answer.stdout


@pytest.mark.parametrize("options", [["-X", "utf8=0"], ["-E", "-X", "utf8=0"]])
def test_command_in_another_locale_starts_again_in_utf8_once(options: list[str]) -> None:
    """Whatever else Python was told."""
    command = [sys.executable, *options, "-m", "tidemill.services.launcher", "ünknown"]
    environment = os.environ | {"LC_ALL": "C"}
    answer = subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", cwd=_ROOT, timeout=60, check=False
    )
    assert answer.returncode == 2
    assert "unknown command 'ünknown'" in answer.stderr


@pytest.mark.parametrize("name", ["replay", "paramserver", "learner", "inference", "actor", "evaluator", "evaluate"])
def test_command_of_a_service_becomes_its_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are passed on as they are, and the module exists."""
    executed: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _path, words: executed.append(words))
    monkeypatch.setattr("tidemill.interrupts.hold", lambda: None)
    cli.COMMANDS[name].load()(["--a", "b"])
    assert executed[0][1:4] == ["-P", "-m", "tidemill.interrupts"]
    assert executed[0][5:] == ["--a", "b"]
    assert importlib.util.find_spec(executed[0][4]) is not None


def test_train_refuses_a_name_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier run is never overwritten; the message offers the three ways on."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text("run: {name: old}\n")
    (tmp_path / "old" / "result.json").write_text("{}")
    assert cli.main(["train", "--run.root", str(tmp_path), "--run.name", "old"]) == 1
    said = capsys.readouterr().err
    assert "tidemill resume" in said
    assert "--fresh" in said
    assert "--run.name" in said


def test_resume_without_a_run_says_how_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2: bad usage."""
    assert cli.main(["resume"]) == 2
    assert "tidemill resume RUN" in capsys.readouterr().err


def test_resume_of_what_is_no_run_names_the_runs_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong path is answered with the right ones."""
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "config.yaml").write_text("{}\n")
    assert cli.main(["resume", str(tmp_path / "bad")]) == 2
    assert str(tmp_path / "good") in capsys.readouterr().err


def test_resume_in_lock_step_with_another_seed_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2; the message names the setting, both values and what to do, and the run's settings stay."""
    stored = "run: {deterministic: true, seed: 4, round_steps: 64, max_learner_steps: 8}\nenv: {num_envs: 1}\n"
    (tmp_path / "config.yaml").write_text(stored)
    (tmp_path / ".lock").touch()
    assert cli.main(["resume", str(tmp_path), "--run.seed", "5", "--run.max_learner_steps", "9"]) == 2
    said = capsys.readouterr().err
    assert "run.seed is 5, but was 4 when this run was started" in said
    assert "max_learner_steps" not in said
    assert (tmp_path / "config.yaml").read_text() == stored


def test_resume_under_another_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2: it had no effect."""
    (tmp_path / "config.yaml").write_text("run: {name: a}\nenv: {id: nowhere}\n")
    (tmp_path / ".lock").touch()
    assert cli.main(["resume", str(tmp_path), "--run.name", "b"]) == 2
    assert "run.name is 'b'" in capsys.readouterr().err


def test_train_refuses_the_log_of_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, before anything is written."""
    (tmp_path / "00000001.log").touch()
    words = ["--run.root", str(tmp_path / "runs"), "--env.id", "nowhere", "--launcher.no-fork-services"]
    assert cli.main(["train", *words, "--fresh", "--replay.storage.folder", str(tmp_path)]) == 1
    assert "experience of an earlier run" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_status_of_a_run_that_is_not_running_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and how to continue it."""
    (tmp_path / "config.yaml").write_text("{}\n")
    assert cli.main(["status", str(tmp_path)]) == 1
    assert "is not running" in capsys.readouterr().err


@pytest.mark.parametrize("error, code", [(ConfigError("a wrong setting"), 2), (Unavailable("nobody there"), 1)])
def test_errors_become_one_line_and_an_exit_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 for bad usage, 1 for a failure."""

    def fail(_arguments: object) -> int:
        raise error

    monkeypatch.setattr("tidemill.services.tools.doctor.command.doctor", fail)
    assert cli.main(["doctor"]) == code
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize("words", [["plot", "{}"], ["check", "--run.root", "{}"], ["export", "{}"]])
def test_folder_that_another_user_closed_is_named(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, by whichever command comes upon it."""
    deny(monkeypatch, closed := tmp_path / "closed")
    assert cli.main([word.format(closed / "run") for word in words]) in (1, 2)
    said = capsys.readouterr().err
    assert (said.count("\n"), str(closed / "run") in said) == (1, True)


def test_launcher_imports_no_other_service_and_no_torch() -> None:
    """The launcher starts the others by name, and stays small."""
    for file in (_ROOT / "services" / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("torch")
                assert not name.startswith("tidemill.services.") or name.startswith("tidemill.services.launcher")


def test_learner_of_status_and_ctl_may_be_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option or a run's folder comes first."""
    monkeypatch.setenv(control.LEARNER, "learner:7403")

    def target(run: Path | None, learner: str | None) -> tuple[str, Path | None]:
        return control.target_of(Namespace(run=run, learner=learner))

    assert target(None, None) == ("learner:7403", None)
    assert target(None, "127.0.0.1:1") == ("127.0.0.1:1", None)
    with pytest.raises(ConfigError, match=naming("no-run")):
        target(tmp_path / "no-run", None)


def test_new_run_takes_no_evaluation_seed_among_those_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluations leave room for the test's seeds, 10,000,000 above; a run that has such a seed can still be loaded."""
    words = ["--run.root", str(tmp_path), "--config", "cartpole_dqn", "--launcher.no-fork-services"]
    assert cli.main(["train", *words, "--evaluator.seed", "80000001"]) == 2
    assert "evaluator.seed is 80000001" in capsys.readouterr().err
    assert EvaluatorSettings(seed=80_000_001).seed == 80_000_001


@pytest.mark.parametrize("actors, every, is_told", [(0, 500, True), (1, 500, False), (0, 0, False)])
def test_new_run_without_actors_is_told_of_evaluations_that_wait_for_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], actors: int, every: int, *, is_told: bool
) -> None:
    """Before it starts, which another setting prevents here: imported steps count as no decisions."""
    words = ["--run.root", str(tmp_path), "--config", "cartpole_dqn", "--launcher.no-fork-services"]
    words += ["--launcher.actors", str(actors), "--evaluator.every_env_steps", str(every)]
    assert cli.main(["train", *words, "--evaluator.start_env_steps", "0", "--evaluator.seed", "80000001"]) == 2
    assert (f"note: evaluator.every_env_steps is {every}, and" in capsys.readouterr().err) == is_told


@pytest.mark.parametrize("before, is_refused", [(10_000, True), (80_000_000, True), (80_000_001, False)])
def test_resumed_run_gets_no_new_evaluation_seed_among_those_of_training(
    monkeypatch: pytest.MonkeyPatch, before: int, is_refused: bool
) -> None:
    """It may keep the one that it was started with, before there was a bound."""
    monkeypatch.setattr(train, "check_environment", lambda *_, **__: "")
    then, now = (RunConfig(evaluator=EvaluatorSettings(seed=seed)) for seed in (before, 80_000_001))
    refused = pytest.raises(ConfigError, match=naming("evaluator.seed 80000001 80,000,000"))
    with refused if is_refused else nullcontext():
        train.check_settings(now, None, then)
