"""Commands that are printed for a person to type work where they are typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemill.services.launcher.installation import activation, command_name


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment in the working directory that is not activated; returns its folder of programs."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "tidemill", "activate"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    return programs


@pytest.mark.usefixtures("installation")
def test_command_that_is_not_on_the_path_is_called_by_its_own() -> None:
    """As after `make quickstart` in a fresh clone."""
    assert command_name() == ".venv/bin/tidemill"
    assert activation() == ". .venv/bin/activate"


def test_command_on_the_path_is_called_by_its_name(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an activated environment; that of another installation is not this one."""
    monkeypatch.setenv("PATH", str(installation))
    assert command_name() == "tidemill"
    other = installation.parent.parent / "other"
    other.mkdir()
    (other / "tidemill").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other))
    assert command_name() == ".venv/bin/tidemill"


def test_command_without_a_script_is_called_as_a_module(installation: Path) -> None:
    """Where the package was only put on the path of Python."""
    (installation / "tidemill").unlink()
    (installation / "activate").unlink()
    assert command_name() == ".venv/bin/python -m tidemill.services.launcher"
    assert activation() == ""
