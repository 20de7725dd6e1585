"""The Helm chart, linted and rendered by Helm: by the command `helm`, or by the library of requirements/helm.txt."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose.manifests import Object
from tests.compose.shipped import ROOT

CHART = ROOT / "deploy/helm/tidemill"
_LIBRARY = ROOT / ".venv-helm"


class Refused(Exception):
    """Helm does not render the chart with these values; its words."""


def render(folder: Path, values: Mapping[str, Any]) -> list[Object]:
    """Return the manifests that the chart renders with some values, after Helm's own check of it.

    Raises:
        Refused: Helm refuses the values.
    """
    file = folder / "values.json"
    file.write_text(json.dumps(values))
    return [item for item in yaml.safe_load_all(_rendered(str(file))) if item]


def _rendered(file: str) -> str:
    if shutil.which("helm"):
        _run("helm", "lint", "--strict", str(CHART), "--values", file)
        return _run("helm", "template", "run", str(CHART), "--namespace", "mine", "--values", file)
    if not (_LIBRARY / ".installed").exists() or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("there is no helm, and no library instead of it: on linux/amd64 make .venv-helm/.installed")
    return _run(sys.executable, "-m", "tests.compose.helm_library", str(CHART), file)


def _run(*command: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(_LIBRARY)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise Refused(done.stdout + done.stderr)
    return done.stdout
