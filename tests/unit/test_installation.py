"""Commands and advice that are printed for a person fit how this installation was made, and where they are typed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tidemill import installation as this
from tidemill.installation import activation, command_name, how_to_install, how_to_repair, is_made


def test_checkout_that_runs_from_its_own_environment_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """This one, by where its package is: the services are reached through a link."""
    root = Path(__file__).absolute().parents[2]
    monkeypatch.setattr(sys, "prefix", str(root / ".venv"))
    assert is_made()


def test_advice_of_a_checkout_is_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where make made the environment; pip would install other versions than it has pinned."""
    monkeypatch.setattr(this, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").touch()
    assert how_to_install("learn") == how_to_install("box2d") == how_to_repair("numpy>=2.1") == "make -B install"
    assert how_to_install("atari") == "make atari"
    assert how_to_install("wandb") == "pip install 'tidemill[wandb]'"  # which make does not install
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert how_to_install("atari") == "make -C .. atari"


def test_advice_of_any_other_installation_is_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel, and a checkout that was installed into an environment of another kind."""
    monkeypatch.setattr(this, "_ROOT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert how_to_install("atari") == "pip install 'tidemill[atari]'"  # no Makefile
    (tmp_path / "Makefile").touch()
    monkeypatch.setattr(sys, "prefix", "/opt/conda")
    assert how_to_install("learn") == "pip install 'tidemill[learn]'"
    assert how_to_repair("numpy>=2.1") == "pip install 'numpy>=2.1'"


def test_advice_in_a_container_is_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root is read-only, and gone with the container."""
    monkeypatch.setenv("TIDEMILL_IMAGE", "1")
    assert re.fullmatch(r"set TIDEMILL_ATARI=1 .*`docker compose build`\)", how_to_install("atari"))
    assert re.fullmatch(r"list .*mujoco.* TIDEMILL_REQUIREMENTS .*`docker compose build`\)", how_to_install("mujoco"))


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
