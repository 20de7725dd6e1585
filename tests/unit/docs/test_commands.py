"""Every command and setting in the documentation exists: parsed as written. tests/process runs those in blocks."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.shell_commands import PAGES, ROOT, shell_commands
from tidemill.config import load as load_module
from tidemill.config.sections import (
    ActorConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    ParamServerConfig,
    RunConfig,
)
from tidemill.errors import ConfigError
from tidemill.rl.settings.registry import algorithms, config_class
from tidemill.services.evaluator import offline
from tidemill.services.launcher import cli
from tidemill.services.replay import __main__ as replay

_BLOCK = re.compile(r"^ *```(?:bash|sh|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:tidemill|make|python -m|docker compose|pytest) [^`]+)`")
_OPTION = re.compile(r"(?<![\w-])--([a-z]+\.[a-z0-9_.-]+)")
_MAPPINGS = ("env.kwargs.", "learner.sources.")
_NO_SETTINGS = {"env.step", "cluster.shard_count"}  # a call, and a property
_SETTING = re.compile(r"`([a-z]+\.[a-z0-9_]+(?:\.[a-z0-9_]+)*)`")
_FILE_ENDINGS = {
    "py",
    "yaml",
    "yml",
    "json",
    "jsonl",
    "csv",
    "toml",
    "proto",
    "txt",
    "md",
    "log",
    "key",
    "pem",
    "token",
    "png",
    "conf",
}
_PLACEHOLDERS = re.compile(r"\b(?:RUN|NAME|COMMAND|SERVICE|FOLDER|FILE|X|LOGGER|BUNDLE|ROLE)\b|\.\.\.|…|\$\(|[<>]")
_RUNNING = re.compile(r"runs/NAME/cluster\.yaml")
"""Settings that a run has while it is running."""
_PROGRAMS = {"tidemill", "docker", "tar", "base64", "head", "cat", "sudo"}
_ASSIGNMENT = re.compile(r"\w+=")
_SERVICES = {
    "paramserver": ParamServerConfig,
    "learner": LearnerConfig,
    "inference": InferenceConfig,
    "actor": ActorConfig,
    "evaluator": EvaluatorConfig,
}
_VERBS = {"up", "down", "ps", "logs", "run", "build", "stop", "start", "restart", "exec", "config", "pull"}


class _Parsed(BaseException):
    """Raised in place of what a command would do; no Exception, so that nothing reports it."""


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a Markdown text: of shell blocks, and of code that begins with a program."""
    exported = dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))
    lines = [line for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += [span for span in _INLINE.findall(text) if not _PLACEHOLDERS.search(span)]
    for line in lines:
        with_values = re.sub(r"\$(\w+)", lambda found: exported.get(found[1], found[0]), line)
        yield from _simple_commands(with_values.strip().removeprefix("$ "))


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line, without prompts and redirections; `ctl pause | resume` is two of them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found: list[list[str]] = [[]]
    after = ""
    for token in lexer:
        if set(token) <= set("|&;<>"):
            after = token
            found += [[]] if set(token) <= set("|&;") else []
        elif set(after) & set("<>"):
            after = ""
        else:
            found[-1].append(token)
    for part in found:
        is_alternative = len(part) == 1 and len(found[0]) > 1 and Path(part[0]).name not in _PROGRAMS
        words = list(dropwhile(_ASSIGNMENT.match, [*found[0][:-1], *part] if is_alternative else part))
        if words:
            yield [Path(words[0]).name, *words[1:]]


def _parse_tidemill(words: Sequence[str]) -> None:
    """Parse a `tidemill` command line by the command itself, up to where it would begin."""
    name, rest = words[0], [_RUNNING.sub("quickstart", word) for word in words[1:]]
    if name.startswith("-") or "--help" in rest:
        assert name in (*cli.COMMANDS, "--version", "--help"), words
        return
    assert name in cli.COMMANDS, f"there is no command {name!r}: {words}"
    if name == "resume":
        load_module.load(RunConfig, [word for word in rest[1:]], prog="resume", description="")
    elif name in _SERVICES:
        load_module.load(_SERVICES[name], rest, prog=name, description="")
    elif name == "replay":
        replay.main(rest)
    elif name == "evaluate":
        offline.main(rest)
    else:
        cli.COMMANDS[name].load()(rest)


def _check_make(words: Sequence[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z%-]*):", makefile, re.MULTILINE)
    for word in words:
        variable, is_setting, _ = word.partition("=")
        if is_setting:
            assert f"$({variable})" in makefile, f"the Makefile has no variable {variable}"
        else:
            assert any(re.fullmatch(target.replace("%", ".+"), word) for target in targets), f"no make target {word}"


def _check_module(words: Sequence[str]) -> None:
    """Check `python -m MODULE OPTIONS`: options are in the module's text, or a service's settings."""
    module, rest = words[0], list(words[1:])
    if module in ("venv", "pip", "http.server"):
        return
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no module {module}"
    assert spec.origin is not None
    if module == "tidemill.services.learner.torchrun":
        own = rest.index("-m") + 2 if "-m" in rest else 2
        _parse_tidemill(["learner", *rest[own:]])
    source = "".join(path.read_text() for path in Path(spec.origin).parent.glob("*.py"))
    for word in rest:
        if word.startswith("--"):
            assert f'"{word.partition("=")[0]}"' in source, f"{module} has no option {word}"


def _check_paths(words: Sequence[str]) -> None:
    for word in words:
        if "/" in word and not word.startswith("-"):
            assert (ROOT / word.partition("::")[0]).exists(), f"{word} is not there"


def _check_compose(words: Sequence[str]) -> None:
    """Check the verb, and the name that follows options, of `docker compose`."""
    if not words or words[0] != "compose":
        return
    words = words[1:]
    while words[0] in ("-f", "--profile", "--env-file"):
        words = words[2:]
    verb, *rest = words
    assert verb in _VERBS, f"docker compose has no {verb}"
    services = set(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])
    takes_value = {"--entrypoint", "--scale", "-f", "--tail"}
    names = [word for before, word in zip(["", *rest], rest, strict=False) if before not in takes_value]
    names = [word for word in names if not word.startswith("-")]
    for name in names[:1] if verb in ("run", "exec") else names:
        assert name in services or name.startswith("$"), f"docker-compose.yml has no service {name}: {words}"


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that has what readers have: the repository's folders, and the examples' files."""
    for path in [*ROOT.glob("*"), *(ROOT / "examples").glob("*")]:
        if not (tmp_path / path.name).exists():
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", _parsing(argparse.ArgumentParser.parse_args))
    monkeypatch.setattr(load_module, "check_together", _parsing(load_module.check_together))
    return tmp_path


def _parsing(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what `real` does and ends the command there."""

    def parse(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
        real(*arguments, **options)
        raise _Parsed

    return parse


def _write_files(text: str, folder: Path) -> None:
    """Write the settings and modules that a page shows; an example's module is there, of which it shows a part."""
    for file, block in re.findall(r"`(\w+\.yaml)`:\n\n```yaml\n(.*?)```", text, re.DOTALL):
        (folder / file).write_text(block)
    for file, block in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        if not (folder / file).exists():
            (folder / file).write_text(block)


@pytest.mark.parametrize("name", PAGES)
def test_command_in_a_document_is_understood(name: str, at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, options, values, presets, targets, modules, services of containers: each is there as written."""
    text = (ROOT / name).read_text()
    _write_files(text, at_home)
    for words in commands(text):
        if any(word.startswith("my_project.") for word in words):  # tests/unit/rl/test_documented_example.py has it
            continue
        try:
            _check(words)
        except SystemExit:
            said = capsys.readouterr().err
            if ": missing " not in said:  # `tidemill certs` in a sentence names the command
                pytest.fail(f"{' '.join(words)}: {said}")
        except ConfigError as error:
            if "env is empty" not in str(error):  # as does `tidemill plan`
                raise
        except _Parsed:
            pass


def _check(words: Sequence[str]) -> None:
    program, rest = words[0], words[1:]
    if program == "tidemill":
        _parse_tidemill(rest)
    elif program == "make":
        _check_make(rest)
    elif program.startswith("python") and rest[:1] == ["-m"]:
        _check_module(rest[1:])
    elif program == "pytest":
        _check_paths(rest)
    elif program == "docker":
        _check_compose(rest)


@cache
def _settings() -> frozenset[str]:
    """Return the dotted names of all settings and sections, of every algorithm."""
    found: set[str] = set()
    for algorithm in algorithms():
        _collect(dataclasses.replace(RunConfig(), agent=config_class(algorithm)()), "", found)
    return frozenset(found)


def _collect(settings: Any, prefix: str, found: set[str]) -> None:  # noqa: ANN401
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        found.add(f"{prefix}{field.name}")
        if dataclasses.is_dataclass(value):
            _collect(value, f"{prefix}{field.name}.", found)


@pytest.mark.parametrize("name", PAGES)
def test_setting_in_a_document_exists(name: str) -> None:
    """`learner.publish_every` and --learner.publish-every alike, wherever the text speaks of one."""
    text = (ROOT / name).read_text()
    sections = {name for name in _settings() if "." not in name}
    options = {option.rstrip(".").replace("-", "_") for option in _OPTION.findall(text)}
    named = {span for span in _SETTING.findall(text) if span.rpartition(".")[2] not in _FILE_ENDINGS}
    named = {span for span in named | options if span.partition(".")[0] in sections}
    named = {re.sub(r"\.no_", ".", span) for span in named}
    named = {span for span in named if not span.startswith(_MAPPINGS)}  # the user's own names follow
    assert named - _settings() - _NO_SETTINGS == set()


@pytest.mark.parametrize("name", PAGES)
def test_page_that_makes_an_environment_uses_it(name: str) -> None:
    """`env/bin/python`, or the name alone after its activation: another Python would not find Tidemill."""
    made = ""
    for command in shell_commands(name):
        program = command.split()[0]
        if " -m venv " in command:
            made = command.split()[-1]
        elif command == f". {made}/bin/activate":
            made = ""
        elif made and Path(program).name in {"pip", "python", "tidemill"}:
            assert program.startswith(f"{made}/bin/"), command


_FIRST = [str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "tutorials").glob("*.md")]
_GETS = re.compile(r"\.venv/bin/activate|pip install \.|make quickstart|\(quickstart\.md\)|\(\.\./installation\.md\)")


@pytest.mark.parametrize("name", ["examples/README.md", "examples/replay/README.md", *_FIRST])
def test_tutorial_says_how_to_get_what_it_runs(name: str) -> None:
    """A page that runs `tidemill` or `python` activates an environment, installs Tidemill, or links to where it is."""
    run = [command for command in shell_commands(name) if command.startswith(("tidemill ", "python "))]
    assert not run or _GETS.search((ROOT / name).read_text()), f"where does `{run[0]}` come from?"


def test_command_that_is_gone_is_found(at_home: Path) -> None:
    """The checks above see a wrong command, option, value, preset, target, variable, module, path and service."""
    wrong = [
        "tidemill trian --config quickstart",
        "tidemill train --config quickstart --learner.publish-evry 3",
        "tidemill train --config quickstart --run.seed one",
        "tidemill train --config quickstrat",
        "tidemill evaluate runs/a --episode-count 3",
        "tidemill ctl pause | hault",
        "make quickstrat",
        "make bench-replay BENCHH=1",
        "python -m benchmarks.lern",
        "python -m benchmarks.actor --roundz 2",
        "pytest tests/units",
        "docker compose upp",
        "docker compose logs lerner",
    ]
    for line in wrong:
        seen = False
        for words in commands(f"```bash\n{line}\n```"):
            try:
                _check(words)
            except _Parsed:
                continue
            except (SystemExit, AssertionError, ConfigError, ModuleNotFoundError):
                seen = True
        assert seen, line
