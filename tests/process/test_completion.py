"""`tidemill completion`: what a real shell offers after a Tab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.launched import BOUND_S

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_BIN = Path(sys.executable).parent

_BASH = """
source completion
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_tidemill
printf '%s\\n' "${COMPREPLY[@]}"
"""
_OFFERED = [
    ("swe", ["sweep"]),
    ("lea", ["learner"]),
    ("eval", ["evaluate", "evaluator"]),
    ("plot --o", ["--out"]),
    ("train --config cartpole_d", ["cartpole_dqn"]),
    ("train --agent.algorithm dqn --agent.dou", ["--agent.double"]),
    ("train --agent.algorithm sac --agent.dou", []),
    ("ctl pa", ["pause"]),
    ("evaluate runs/se", ["runs/seen"]),
]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """Return a working directory with one run and a folder that is none."""
    (tmp_path / "runs" / "seen").mkdir(parents=True)
    (tmp_path / "runs" / "seen" / "config.yaml").touch()
    return tmp_path


def _run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    answer = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@cache
def _script(shell: str) -> str:
    """Return the script for a shell."""
    return _run(Path.cwd(), "tidemill", "completion", shell)


@pytest.mark.parametrize("line, expected", _OFFERED)
def test_bash_offers(folder: Path, line: str, expected: list[str]) -> None:
    """Commands, options of the command and of the algorithm that is named, presets and runs."""
    (folder / "completion").write_text(_script("bash"))
    offered = _run(folder, "bash", "-c", _BASH, "bash", "tidemill", *line.split()).split()
    assert sorted(set(offered)) == expected


def test_bash_offers_names_of_folders_as_they_are(folder: Path) -> None:
    """Whole if they hold blanks, and no command in them is executed."""
    names = ["runs/seen", "runs/two words", "runs/$(touch owned)"]
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.yaml").touch()
    (folder / "completion").write_text(_script("bash"))
    offered = _run(folder, "bash", "-c", _BASH, "bash", "tidemill", "evaluate", "runs/").splitlines()
    assert sorted(set(offered)) == sorted(names)
    assert not (folder / "owned").exists()


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize("line, expected", _OFFERED)
def test_fish_offers(folder: Path, line: str, expected: list[str]) -> None:
    """The same as bash."""
    (folder / "completion").write_text(_script("fish"))
    ask = f"source completion; complete -C 'tidemill {line}'"
    offered = [words.split("\t")[0].rstrip("/") for words in _run(folder, "fish", "-c", ask).splitlines()]
    assert sorted(set(offered)) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_takes_the_script(folder: Path) -> None:
    """It defines the completion without an error; zsh runs bash's completions by itself."""
    (folder / "completion").write_text(_script("zsh"))
    script = "autoload -Uz compinit && compinit -u; source completion; print -r -- $_comps[tidemill]"
    assert "_tidemill" in _run(folder, "zsh", "-fc", script)
