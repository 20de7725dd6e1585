"""The Helm chart, linted and rendered by Helm: by the command `helm`, or by the library of requirements/helm.txt."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compose.manifests import Object, parsed
from tests.compose.shipped import ROOT

CHART = ROOT / "deploy/helm/tidemill"
_LIBRARY = ROOT / ".venv-helm"


class Refused(Exception):
    """Helm does not render the chart with these values; its words."""


class Helm:
    """Renders the chart."""

    def __init__(self, folder: Path, library: subprocess.Popen[str] | None) -> None:
        """Take a folder for values, and the process with the library; None for the command."""
        self._values, self._library = folder / "values.json", library

    def render(self, values: Mapping[str, Any]) -> list[Object]:
        """Return the manifests that the chart renders with some values, after Helm's own check of it.

        Raises:
            Refused: Helm refuses the values.
        """
        self._values.write_text(json.dumps(values))
        return list(parsed(self._ask(self._library) if self._library else self._run()))

    def _ask(self, library: subprocess.Popen[str]) -> str:
        assert library.stdin is not None
        assert library.stdout is not None
        library.stdin.write(f"{self._values}\n")
        library.stdin.flush()
        manifests, refusal = json.loads(library.stdout.readline())
        if refusal:
            raise Refused(refusal)
        return str(manifests)

    def _run(self) -> str:
        _command("lint", "--strict", str(CHART), "--values", str(self._values))
        return _command("template", "run", str(CHART), "--namespace", "mine", "--values", str(self._values))


def _command(*words: str) -> str:
    done = subprocess.run(["helm", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


@contextmanager
def running_helm(folder: Path) -> Iterator[Helm]:
    """Yield Helm, which keeps values in a folder. The tests are skipped where there is none."""
    if shutil.which("helm"):
        yield Helm(folder, None)
        return
    if not (_LIBRARY / ".installed").exists() or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("there is no helm, and no library instead of it: on linux/amd64 make .venv-helm/.installed")
    command = [sys.executable, "-m", "tests.compose.helm_library", str(CHART)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(_LIBRARY)])}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as library:  # it ends with its standard input
        yield Helm(folder, library)
