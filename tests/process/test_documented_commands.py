"""Every command in the fenced shell blocks of the documents, run in a shell: `documented.py` has the rules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
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
from tests.support.shell_commands import PAGES, ROOT, Shell, shell_commands

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]

_KEEPS = re.compile(r"(cd|cp|export|\.|.*tidemill certs|.*/python) .*")
"""What changes the shell or makes files that others need is done again on every page."""
_COPIED = ("configs", "deploy", "examples")
_LEFT_OUT = (".git", ".venv", "runs", "data", "certs", ".env", "build")


def _is_elsewhere(page: str, command: str) -> bool:
    return any(each.matches(page, command) for each in ELSEWHERE)


_RUN = {page: [command for command in shell_commands(page) if not _is_elsewhere(page, command)] for page in PAGES}


@cache
def _own_network() -> tuple[str, ...]:
    """Return what gives a shell a network of its own, where addresses are free; nothing where that is not allowed."""
    words = ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--net")
    try:
        done = subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return (*words, "sh", "-c", 'ip link set lo up; exec "$@"', "sh") if done.returncode == 0 else ()


def _checkout(place: Path) -> None:
    """Lay out what a reader has after `make install`, with small budgets in the files."""
    place.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in (*_COPIED, *_LEFT_OUT) and not path.name.startswith(".venv"):
            (place / path.name).symlink_to(path)
    for name in _COPIED:
        shutil.copytree(ROOT / name, place / name)
    (place / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name not in (".runtime", ".dev"):
            (place / ".venv" / path.name).symlink_to(path)
    (place / ".venv" / ".runtime").touch()  # younger than what it would be made from: make installs nothing
    for name, settings in (("quickstart", QUICKSTART), ("endless", ENDLESS)):
        preset = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
        merged = {section: preset.get(section, {}) | settings.get(section, {}) for section in {**preset, **settings}}
        (place / "configs" / f"{name}.yaml").write_text(yaml.safe_dump(merged))
    sweep = place / "examples" / "sweeps" / "cartpole.yaml"
    sweep.write_text(yaml.safe_dump(yaml.safe_load(sweep.read_text()) | SWEEP))


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

    def __init__(self, page: str, place: Path, done: set[str]) -> None:
        self._page, self._done = page, done
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL")}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        self._shell = Shell(place, place.parent / f"{place.name}.said", environment, before=_own_network())

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
            self._shell.serve(text, _readiness(text) or " is ready")

    def _with_budget(self, command: str) -> str:
        for pattern, replacement in BUDGETS:
            command = re.sub(pattern, replacement, command, flags=re.DOTALL)
        if "PORT" in command:
            ports = re.findall(r"metrics=127\.0\.0\.1:(\d+)", self._shell.serving[-1].said())
            command = command.replace("PORT", ports[-1])
        return command


def _readiness(command: str) -> str | None:
    """Return what a command that serves says once it is ready; None if it ends by itself."""
    return next((ready for pattern, ready in SERVES if re.fullmatch(pattern, command, re.DOTALL)), None)


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """Where checkouts are, and the commands that were run already: those that other pages build on."""
    folder = tmp_path_factory.mktemp("checkouts")
    _checkout(folder / "first")
    done: set[str] = set()
    assert set(FIRST) <= {command for commands in _RUN.values() for command in commands}
    _Reader("README.md", folder / "first", done).give_all(FIRST)
    return folder, done


@pytest.mark.parametrize("page", [page for page, commands in _RUN.items() if commands])
def test_commands_of_a_page_work_as_printed(page: str, checkouts: tuple[Path, set[str]]) -> None:
    """One after the other in a shell, each to its end, which is a good one; what serves is stopped at the end."""
    folder, done = checkouts
    place = folder / re.sub(r"\W+", "-", page)
    _checkout(place)
    _write_files(page, place)
    (place / "runs").mkdir()
    for run in (folder / "first" / "runs").iterdir():
        (place / "runs" / run.name).symlink_to(run)
    _Reader(page, place, done).give_all(_RUN[page])


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
