"""Every command in the fenced shell blocks of the documents, run in a shell: `documented.py` has the rules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.process.documented import (
    BEFORE,
    BUDGETS,
    ELSEWHERE,
    ENDLESS,
    FIRST,
    QUICKSTART,
    SERVES,
    SWEEP,
    Before,
    Elsewhere,
)
from tests.support.forked_commands import forked_commands, write_command
from tests.support.shell_commands import PAGES, ROOT, Shell, shell_commands
from tidemill import linux

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]

_KEEPS = re.compile(r"(cd|cp|export|\.|.*tidemill certs|.*/python) .*")
"""What changes the shell or makes files that others need is done again on every page."""
_COPIED = ("configs", "deploy", "examples")
_AS_USER = ("--user", "--preserve-credentials")
_LEFT_OUT = (".git", ".venv", "runs", "data", "certs", ".env", "build")


def _is_elsewhere(page: str, command: str) -> bool:
    return any(each.matches(page, command) for each in ELSEWHERE)


_RUN = {page: [command for command in shell_commands(page) if not _is_elsewhere(page, command)] for page in PAGES}


@cache
def _own_network() -> tuple[str, ...]:
    """Return a command that gives a shell a separate network with free addresses; nothing where that is not allowed."""
    words = ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--net")
    try:
        done = subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return (*words, "sh", "-c", 'ip link set lo up; exec "$@"', "sh") if done.returncode == 0 else ()


@dataclass(frozen=True)
class _Machine:
    """Where pages are read."""

    folder: Path
    """Of the checkouts."""
    commands: Path
    """Socket of the server that forks `tidemill` commands, which a checkout has in the place of the installed one."""
    enter: tuple[str, ...]
    """What starts a shell there."""
    done: set[str]
    """The commands that were run already."""


def _checkout(place: Path, commands: Path) -> None:
    """Lay out what a reader has after `make install`, with small budgets in the files."""
    place.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in (*_COPIED, *_LEFT_OUT) and not path.name.startswith(".venv"):
            (place / path.name).symlink_to(path)
    for name in _COPIED:
        shutil.copytree(ROOT / name, place / name)
    _lay_out_environment(place / ".venv", commands)
    (place / ".venv" / ".runtime").touch()  # younger than what it would be made from: make installs nothing
    for name, settings in (("quickstart", QUICKSTART), ("endless", ENDLESS)):
        preset = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
        merged = {section: preset.get(section, {}) | settings.get(section, {}) for section in {**preset, **settings}}
        (place / "configs" / f"{name}.yaml").write_text(yaml.safe_dump(merged))
    sweep = place / "examples" / "sweeps" / "cartpole.yaml"
    sweep.write_text(yaml.safe_dump(yaml.safe_load(sweep.read_text()) | SWEEP))


def _lay_out_environment(place: Path, commands: Path) -> None:
    """Link what is installed, with other scripts to activate it and to run `tidemill`."""
    (place / "bin").mkdir(parents=True)
    for path in (*Path(sys.prefix).iterdir(), *Path(sys.prefix, "bin").iterdir()):
        if path.name not in (".runtime", ".dev", "bin"):
            (place / path.relative_to(sys.prefix)).symlink_to(path)
    activate = place / "bin" / "activate"
    text = activate.read_text()
    activate.unlink()
    activate.write_text(text.replace(sys.prefix, str(place)))
    if linux.AVAILABLE:
        (place / "bin" / "tidemill").unlink()
        write_command(place / "bin" / "tidemill", commands)


def _write_files(page: str, place: Path) -> None:
    """Write the files that a page shows, where it says they are."""
    text = (ROOT / page).read_text()
    named = re.findall(r"`(\w+\.(?:yaml|py))`[^`]*?:\n\n```(?:yaml|python)\n(.*?)```", text, re.DOTALL)
    named += re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    package = place / "my_project" / "expected_sarsa"
    package.mkdir(parents=True)
    for name, code in named:
        (place / name).write_text(code)
        (package / name).write_text(code)
    for name, code in re.findall(r"```python\n# added to (\w+\.py)\n(.*?)```", text, re.DOTALL):
        with (place / name).open("a") as file:
            file.write(f"\n\n{code}")
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()


class _Reader:
    """Runs commands in a checkout as their page says."""

    def __init__(self, page: str, place: Path, machine: _Machine) -> None:
        self._page, self._done = page, machine.done
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL")}
        environment["PATH"] = f"{place}/.venv/bin:{environment['PATH']}"
        self._shell = Shell(place, place.parent / f"{place.name}.said", environment, before=machine.enter)

    def give_all(self, commands: Sequence[str]) -> None:
        """Run commands, then stop what serves, which must end well."""
        try:
            for command in commands:
                self._give(command)
            self._shell.stop()
        finally:
            self._shell.close()

    def _give(self, command: str) -> None:
        """Run a command, unless another page has it, too, and it was run there."""
        if command in self._done:
            return
        for before in BEFORE:
            if before.matches(self._page, command):
                self._prepare(before)
        text = self._with_budget(command)
        if (ready := _readiness(command)) is not None:
            self._shell.serve(text, ready)
            return
        self._shell.run(text)
        if not _KEEPS.fullmatch(command):
            self._done.add(command)

    def _prepare(self, before: Before) -> None:
        if before.stop is not None:
            self._shell.stop(before.stop)
        if before.run:
            self._shell.run(before.run)
        for text in before.serve:
            self._shell.serve(text, _readiness(text) or "learner is ready")  # what others ask

    def _with_budget(self, command: str) -> str:
        for pattern, replacement in BUDGETS:
            command = re.sub(pattern, replacement, command, flags=re.DOTALL)
        if "PORT" in command:
            ports = re.findall(r"metrics=127\.0\.0\.1:(\d+)", self._shell.serving[-1].said())
            command = command.replace("PORT", ports[-1])
        return command


def _readiness(command: str) -> str | None:
    """Return the output of a serving command once it is ready; None if it ends by itself."""
    return next((ready for pattern, ready in SERVES if re.fullmatch(pattern, command, re.DOTALL)), None)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Machine]:
    """A machine on which the commands were run that other pages build on."""
    folder = tmp_path_factory.mktemp("checkouts")
    commands, network = folder / "commands", _own_network()
    with forked_commands(commands, network) as server:
        joined = ("nsenter", f"--target={server.pid}", *(() if os.geteuid() == 0 else _AS_USER), "--net")
        machine = _Machine(folder, commands, joined if network else (), set())
        _checkout(folder / "first", commands)
        assert set(FIRST) <= {command for commands in _RUN.values() for command in commands}
        _Reader("README.md", folder / "first", machine).give_all(FIRST)
        yield machine


@pytest.mark.parametrize("page", [page for page, commands in _RUN.items() if commands])
def test_commands_of_a_page_work_as_printed(page: str, machine: _Machine) -> None:
    """One after the other in a shell, each to its end, which is a good one; what serves is stopped at the end."""
    place = machine.folder / re.sub(r"\W+", "-", page)
    _checkout(place, machine.commands)
    _write_files(page, place)
    (place / "runs").mkdir()
    for run in (machine.folder / "first" / "runs").iterdir():
        (place / "runs" / run.name).symlink_to(run)
    _Reader(page, place, machine).give_all(_RUN[page])


def test_every_rule_is_for_a_command_that_a_page_has() -> None:
    """None is left from a command that is gone; what is said to run one elsewhere is there."""
    commands = {(page, command) for page in PAGES for command in shell_commands(page)}
    rules: list[Before | Elsewhere] = [*BEFORE, *ELSEWHERE]
    assert [rule for rule in rules if not any(rule.matches(*command) for command in commands)] == []
    run = [command for commands in _RUN.values() for command in commands]
    patterns = [pattern for pattern, _ in (*BUDGETS, *SERVES)]
    assert [each for each in patterns if not any(re.search(each, command, re.DOTALL) for command in run)] == []
    for rule in ELSEWHERE:
        assert rule.why, rule
        path, _, test = rule.by.partition("::")
        if path:
            assert f"def {test}(" in (ROOT / path).read_text() if test else (ROOT / path).exists(), rule
