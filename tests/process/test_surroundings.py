"""A run where the system around it is unusual: names of folders, the locale, proxies."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import WAIT_S

_COMMAND = str(Path(sys.executable).with_name("tidemill"))


def _run(folder: Path, *words: str) -> str:
    odd = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "http_proxy": "http://nowhere.invalid:1",
        "grpc_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [_COMMAND, *words], cwd=folder, env=os.environ | odd, capture_output=True, timeout=WAIT_S, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_run_is_trained_exported_and_evaluated_anywhere(tmp_path: Path) -> None:
    """In a folder whose name has a space and a letter beyond ASCII, by a locale without any, behind a proxy."""
    folder = tmp_path / "my rüns"
    folder.mkdir()
    said = _run(folder, "train", "--config", "cartpole_dqn", "--run.max-env-steps", "2500", "--run.name", "a")
    assert "Traceback" not in said
    exported = _run(folder, "export", "runs/a", "--out", "my pölicy")
    (again,) = (line for line in exported.splitlines() if line.startswith("Test it anywhere:"))
    words = shlex.split(again.partition(":")[2])
    assert words[-1] == "my pölicy"
    assert "2 episodes" in _run(folder, *words[1:], "--episodes", "2")
