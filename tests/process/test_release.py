"""What a release hands out."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.release_rehearsal import build, build_for_every_linux, install
from tests.support.launched import ROOT
from tidemill import kernel

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def test_same_commit_is_the_same_bytes(tmp_path: Path) -> None:
    """Sdist and wheel, built twice in different folders at different times, with the compiled kernel."""
    assert build(tmp_path).name.startswith("tidemill-")


def test_manylinux_wheel_trains_from_an_empty_folder(tmp_path: Path) -> None:
    """Without a clone: the preset is found, and the kernel is in use. A pure wheel and the sdist lie beside it."""
    if not (ROOT / ".venv-extras" / "auditwheel").exists():
        pytest.skip("needs make .venv-extras/.installed")
    if not kernel.available and not os.environ.get("TIDEMILL_REQUIRE_KERNEL"):
        pytest.skip("needs a C compiler")
    wheel = build_for_every_linux(tmp_path / "dist")
    assert f"manylinux_2_17_{platform.machine()}" in wheel.name
    assert len([*wheel.parent.glob("*-py3-none-any.whl"), *wheel.parent.glob("*.tar.gz")]) == 2
    binaries = install(wheel, tmp_path / "venv", Path(sys.executable).parent.parent)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def tidemill(*words: str, code: int = 0) -> str:
        command = [str(binaries / "tidemill"), *words]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    assert "the compiled kernel is in use" in tidemill("doctor")
    tidemill("train", "--config", "cartpole_dqn", "--run.max-learner-steps", "300", "--evaluator.episodes", "2")
    result = json.loads((empty / "runs" / "cartpole_dqn" / "result.json").read_text())
    assert result["learner_steps"] >= 300
