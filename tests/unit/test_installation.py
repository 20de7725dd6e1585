"""The advice on what is missing fits how this installation was made."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tidemill import installation as this
from tidemill.installation import how_to_install, how_to_repair, is_made


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
