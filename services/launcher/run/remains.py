"""Files that a run writes in its folder, told apart from those that a user keeps there."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterator
from pathlib import Path

from tidemill.atomic_files import is_there
from tidemill.config.load import read_document
from tidemill.errors import ConfigError

_SERVICES = ("actor-*", "evaluator", "inference-*", "learner", "log-*", "paramserver", "replay", "replay-*")
_FILES = (
    "cluster.yaml",
    "env_spec.json",
    "evaluating.json",
    "result.json",
    "wall_clock.json",
    "metrics.jsonl",
    "confirmations.csv",
    "episodes.csv",
    "scores.csv",
    "diverged.txt",
    "filming",
    "paused",
    "rank_failure.txt",
    "checkpoints/checkpoint-*",
    "checkpoints/restored.txt",
    "curves/*.jsonl",
    "evaluations/version-*.json",
    "lock_step/*.history",
    "lock_step/*.round",
    "lock_step/*.settings.json",
    "loggers/*.json",
    "loggers/*.lock",
    *(f"logs/{name}.log" for name in _SERVICES),
    *(f"logs/{name}.log.1" for name in _SERVICES),
    "params/[0-9]*",
    "params/damaged/*",
    "params/incoming/*",
    "params/lock",
    "params/state.*",
    "params/tags.*",
    "plots/learning_curve.png",
    "simulators/*.json",
    "tensorboard/*/events.out.tfevents.*",
    "traces/*.jsonl",
    "videos/best.*",
    "config.yaml",  # the last, for it says where the log is
)
_LOG_FILES = (".lock", "newest", *(f"{'[0-9]' * 8}*.{kind}" for kind in ("copies", "log", "snapshot")))
_SHARD = "[0-9]*"


def remains(folder: Path) -> Iterator[Path]:
    """Yield the files in a run's folder that the run wrote, its log of experience included."""
    for pattern in (*_log_patterns(folder), *_FILES):
        for unfinished in ("", ".*tmp"):
            yield from (path for path in folder.glob(pattern + unfinished) if not path.is_dir())


def clear(folder: Path) -> None:
    """Delete what a run that never trained has left in its folder; other files stay.

    Raises:
        OSError: a file cannot be deleted.
    """
    files = list(remains(folder))
    for file in files:
        file.unlink(missing_ok=True)
    emptied = {parent for file in files for parent in file.parents if folder in parent.parents}
    for parent in sorted(emptied, reverse=True):  # those below before those above
        with contextlib.suppress(OSError):
            parent.rmdir()


def _log_patterns(folder: Path) -> list[str]:
    """Return patterns of the log that the run's launcher kept in the folder; none without settings or such a log."""
    if not is_there(folder / "config.yaml"):
        return []
    try:
        document = read_document(folder / "config.yaml")
    except ConfigError:
        document = {}
    if (document.get("launcher") or {}).get("replay") is False:
        return []
    storage = (document.get("replay") or {}).get("storage") or {}
    run = folder.resolve()
    log = Path((storage.get("folder") or "{run}/replay").replace("{run}", str(run))).resolve()
    if not log.is_relative_to(run):
        return []
    inside = glob.escape(str(log.relative_to(run))).replace("{shard}", _SHARD)
    each = [inside] if log != run else []  # that of the run has its lock
    return [f"{place}/{name}" for place in (*each, f"{inside}/{_SHARD}") for name in _LOG_FILES]
