"""Checkpoints on disk: all that a learner needs to go on exactly, in formats that run no code when read.

A checkpoint is one safetensors file, `checkpoint-NNNNNNNN.safetensors`, whose header carries the rest as
JSON, and beside it `checkpoint-NNNNNNNN.sha256` in the format of `sha256sum --check`. The checksum is
written first and the data is renamed into place last, so a file without a fitting checksum is a damaged one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import structlog
from safetensors import SafetensorError, safe_open

from services.learner.state_tree import Tree, flatten, unflatten
from tidemill.errors import DataLoss, FatalError, ResourceExhausted, TidemillError

FORMAT_VERSION = 1
"""Raised when an older reader could not make sense of a newer file."""

_HEADER = "tidemill_checkpoint"
_NAME = re.compile(r"checkpoint-(\d{8})\.safetensors")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = structlog.get_logger()


@dataclass(frozen=True)
class Checkpoint:
    """What a learner is, between two gradient steps."""

    algorithm: str
    """Name of the agent's algorithm, e.g. `sac`."""
    network: dict[str, list[int]]
    """Shapes of the policy's tensors by name."""
    config_digest: str
    """Digest of the settings of agent and environment."""
    counters: dict[str, int]
    """`Counters.state()`."""
    agent: Tree
    """`Agent.state_dict()`: weights, target, optimizer, schedules."""
    rng: Tree
    """`rng_state()`."""


class CheckpointStore:
    """Keeps the newest checkpoints in one folder. One thread at a time."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        """Take the folder, made with the first checkpoint, and remove what a crash left half written.

        Args:
            folder: Where the files lie.
            keep: Newest checkpoints kept, at least 1.
        """
        self._folder, self._keep = folder, keep
        for leftover in folder.glob("*.partial"):
            leftover.unlink(missing_ok=True)

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint durably, then remove those that are too many; return its path.

        Raises:
            ResourceExhausted: The disk is full; nothing of the new checkpoint is left.
            TidemillError: The disk failed otherwise.
        """
        data = _encode(checkpoint)
        serial = max(self._serials(), default=0) + 1
        path = self._path(serial)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            checksum = f"{hashlib.sha256(data).hexdigest()}  {path.name}\n"
            _replace(path.with_suffix(".sha256"), checksum.encode())
            _replace(path, data)
        except OSError as error:
            self._remove(serial)
            kind = ResourceExhausted if error.errno in _FULL else TidemillError
            raise kind(f"cannot write {path}: {error.strerror}") from error
        for old in self._serials()[: -self._keep]:
            self._remove(old)
        return path

    def newest(self) -> tuple[Path, Checkpoint] | None:
        """Return the newest checkpoint that is whole; damaged ones are skipped and logged.

        Raises:
            FatalError: The newest whole one is of a format this version does not know.
        """
        for serial in reversed(self._serials()):
            path = self._path(serial)
            try:
                return path, _decode(_checked(path))
            except DataLoss as error:
                _log.warning("checkpoint damaged, trying the one before", path=str(path), reason=str(error))
        return None

    def _serials(self) -> list[int]:
        matches = (_NAME.fullmatch(path.name) for path in self._folder.glob("checkpoint-*.safetensors"))
        return sorted(int(match[1]) for match in matches if match)

    def _path(self, serial: int) -> Path:
        return self._folder / f"checkpoint-{serial:08d}.safetensors"

    def _remove(self, serial: int) -> None:
        path = self._path(serial)
        for each in (path, path.with_suffix(".sha256")):
            each.unlink(missing_ok=True)
            _partial(each).unlink(missing_ok=True)


def check_fits(path: Path, found: Checkpoint, wanted: Checkpoint) -> None:
    """Refuse a checkpoint of another algorithm or network than this run's.

    Raises:
        FatalError: It does not fit; the message names both and what to do.
    """
    advice = f"choose another run.name, restore the old settings, or remove {path.parent}"
    if found.algorithm != wanted.algorithm:
        raise FatalError(f"{path} holds {found.algorithm}, this run trains {wanted.algorithm}: {advice}")
    for name in sorted(found.network.keys() | wanted.network.keys()):
        theirs, ours = found.network.get(name), wanted.network.get(name)
        if theirs != ours:
            holds, wants = _described(name, theirs), _described(name, ours)
            raise FatalError(f"{path} holds {holds}, this run's network has {wants}: {advice}")


def _described(name: str, shape: list[int] | None) -> str:
    return f"no {name}" if shape is None else f"{name} of shape {shape}"


def _encode(checkpoint: Checkpoint) -> bytes:
    document, tensors = flatten({"agent": checkpoint.agent, "rng": checkpoint.rng})
    header = {
        "format": FORMAT_VERSION,
        "algorithm": checkpoint.algorithm,
        "network": checkpoint.network,
        "config_digest": checkpoint.config_digest,
        "counters": checkpoint.counters,
        "state": document,
    }
    return safetensors.torch.save(tensors, metadata={_HEADER: json.dumps(header)})


def _decode(path: Path) -> Checkpoint:
    try:
        with safe_open(str(path), framework="pt") as file:
            header: dict[str, Any] = json.loads(file.metadata()[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"not a checkpoint: {error}") from error
    if header["format"] > FORMAT_VERSION:
        raise FatalError(
            f"{path} has format {header['format']}, this version reads up to {FORMAT_VERSION}: "
            "resume it with the version of Tidemill that wrote it, or a newer one"
        )
    state = unflatten(header["state"], tensors)
    return Checkpoint(
        algorithm=header["algorithm"],
        network=header["network"],
        config_digest=header["config_digest"],
        counters=header["counters"],
        agent=state["agent"],
        rng=state["rng"],
    )


def _checked(path: Path) -> Path:
    """Return the path of a file whose bytes match their checksum."""
    try:
        expected = path.with_suffix(".sha256").read_text(encoding="ascii").split()[:1]
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise DataLoss(f"cannot be read: {error}") from error
    if expected != [actual]:
        raise DataLoss("its bytes do not match their SHA-256")
    return path


def _replace(path: Path, data: bytes) -> None:
    """Put a file in place so that a crash leaves the old one or the new one."""
    partial = _partial(path)
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
