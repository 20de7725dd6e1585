"""Whether a run's folder holds anything to go on with."""

from __future__ import annotations

import shutil
from pathlib import Path

_WORTH_KEEPING_BYTES = 2**20
_FIRST_VERSION = 1  # published before the first gradient step, for actors to begin with


def has_trained(folder: Path) -> bool:
    """Return whether the run of a folder has learned, or collected a MiB of experience.

    What was ended before that, by a wrong setting for example, holds nothing that `tidemill resume` would bring back.
    """
    if (folder / "result.json").exists() or _has_rows(folder / "scores.csv"):
        return True
    checkpoints = (folder / "checkpoints").glob("[!.]*.safetensors")
    versions = (folder / "params").glob("[0-9]*.json")
    if any(checkpoints) or any(int(path.stem) > _FIRST_VERSION for path in versions):
        return True
    log_bytes = sum(path.stat().st_size for path in (folder / "replay").rglob("*") if path.is_file())
    return log_bytes > _WORTH_KEEPING_BYTES


def clear(folder: Path, *, keep: str) -> None:
    """Delete what a run that never trained has left in its folder, but for the file `keep`."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != keep:
            path.unlink()


def _has_rows(file: Path) -> bool:
    try:
        return len(file.read_text(encoding="utf-8").splitlines()) > 1
    except OSError:
        return False
