"""Report on a bundle's ONNX file. Imports no torch; `tidemill.bundle.onnx_file` writes the file."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NAME = "policy.onnx"
_LONGEST_S = 600
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class OnnxReport:
    """Result of writing a policy as ONNX, and its agreement with torch.

    Attributes:
        reason: Why there is no file; empty if there is.
        observations: Random observations on which both acted.
        difference: Largest difference of an action between the two; 0 for discrete actions, which must be equal.
        input: dtype and shape of `observation`, e.g. `float32 [N, 3]`.
        output: dtype and shape of `action`.
    """

    reason: str = ""
    observations: int = 0
    difference: float = 0.0
    input: str = ""
    output: str = ""


def try_onnx(run: Path, version: int, file: Path) -> OnnxReport:
    """Write a version of a run's policy as ONNX, if the packages for that are installed; never fails.

    Args:
        run: The run's folder.
        version: Number of the version.
        file: What is written.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return OnnxReport(f"{', '.join(missing)} not installed: pip install 'tidemill[onnx]'")
    command = [sys.executable, "-P", "-m", "tidemill.bundle.onnx_file", str(run), str(version), str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return OnnxReport(f"it was not written within {_LONGEST_S} s")
    if done.returncode:
        return OnnxReport((done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1])
    return OnnxReport(**json.loads(done.stdout.splitlines()[-1]))
