"""Checkpoints on disk: all that a learner needs to resume exactly, in formats that run no code when read.

A checkpoint is one file, `checkpoint-TTTTTT-NNNNNNNN.safetensors`, and beside it its checksum, the same name with
`.sha256`, in the format of `sha256sum --check`. T is the fencing token of the learner that wrote it, N counts up over
all of them; the newest is the last one of the greatest token. The checksum is written first and the data is renamed
into place last, so a file without a matching checksum is a corrupt one.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import structlog

from tidemill.atomic_files import TEMPORARY, is_disk_full, make_folder, replacing, sync_file, write_atomically
from tidemill.config.digest import network_settings
from tidemill.config.run import RESTORED
from tidemill.errors import ConfigError, DataLoss, FatalError, Reason, ResourceExhausted, TidemillError
from tidemill.params.publisher import StalePublisher
from tidemill.rl.state_tree import flatten
from tidemill.services.learner.checkpoint.format import Checkpoint, decode, encode
from tidemill.services.learner.status.divergence import Diverged, check_finite

_NAME = re.compile(r"checkpoint-(\d{6,})-(\d{8})\.safetensors")

_log = structlog.get_logger()


class CheckpointStore:
    """Keeps the newest checkpoints in one folder. One thread at a time."""

    def __init__(self, folder: Path, *, keep: int, sync: bool = True) -> None:
        """Use a folder, created with the first checkpoint, and remove what a crash left half written.

        Args:
            folder: Where the files lie.
            keep: Newest checkpoints kept, at least 1.
            sync: Whether a checkpoint is written only once the disk has it; without, a loss of power may cost it.
        """
        self._folder, self._keep, self._sync = folder, keep, sync
        for leftover in folder.glob(f"*{TEMPORARY}"):
            leftover.unlink(missing_ok=True)

    def write(self, checkpoint: Checkpoint, *, sync: bool = False) -> Path:
        """Write a checkpoint, then remove the oldest beyond `keep`; return its path.

        Args:
            checkpoint: What is written.
            sync: Whether this one waits for the disk even if the store does not.

        Raises:
            StalePublisher: There is one with a newer fencing token; nothing of this one is left.
            ResourceExhausted: The disk is full; nothing of the new checkpoint is left.
            TidemillError: The disk failed otherwise, or the folder cannot be read.
        """
        sync = sync or self._sync
        self._check_newest(checkpoint.fencing_token)
        data = encode(checkpoint)
        path = self._path(checkpoint.fencing_token, max((serial for _, serial, _ in self._found()), default=0) + 1)
        try:
            make_folder(self._folder)
            checksum = f"{hashlib.sha256(data).hexdigest()}  {path.name}\n"
            write_atomically(path.with_suffix(".sha256"), checksum, sync=sync)
            with replacing(path, sync=sync) as temporary:
                with temporary.open("wb") as file:
                    file.write(data)
                    if sync:
                        sync_file(file)  # the write may take long: check whether a newer learner took over meanwhile
                self._check_newest(checkpoint.fencing_token)
        except TidemillError:
            _remove(path)
            raise
        except OSError as error:
            _remove(path)
            what = f"cannot write {path}: {error.strerror}"
            if is_disk_full(error):
                raise ResourceExhausted(what, reason=Reason.DISK_FULL) from error
            raise TidemillError(what) from error
        for _, _, old in self._found()[: -self._keep]:
            _remove(old)
        return path

    @property
    def fencing_token(self) -> int:
        """Greatest fencing token of a checkpoint, corrupt ones included; 0 if there is none."""
        return max((fencing_token for fencing_token, _, _ in self._found()), default=0)

    def newest(self) -> tuple[Path, Checkpoint] | None:
        """Return the newest checkpoint that is whole and finite; others are skipped and logged.

        Raises:
            FatalError: The newest whole one is of a format this version does not know.
            TidemillError: The system cannot read the folder or a file just now, which proves nothing about the bytes.
        """
        listed = self._found()
        for _, _, path in reversed(listed):
            try:
                found = decode(_checked(path), path)
                check_finite(flatten(found.agent)[1].values(), "its parameters")
                return path, found
            except (DataLoss, Diverged) as error:
                _log.warning("checkpoint unusable, trying the previous one", path=str(path), reason=str(error))
        return None if self._found() == listed else self.newest()  # a learner that is about to end has written another

    def check_unused(self) -> None:
        """Check that the folder has no checkpoint, so that a learner may start from scratch.

        Raises:
            ConfigError: It has some; the message names them, and what to do if none of them is usable.
        """
        if found := [path.name for _, _, path in self._found()]:
            raise ConfigError(
                f"no checkpoint in {self._folder} is usable: {', '.join(found)} (logs/learner.log has the reasons). "
                "Restore one and its .sha256 from a copy, or move the folder away to start the learner from scratch"
            )

    def note_restored(self, what: str) -> None:
        """Write what this start restored, in words, for a launcher whose learner ends before it is asked."""
        try:
            write_atomically(self._folder / RESTORED, what + "\n", sync=False)
        except OSError as error:
            _log.warning("cannot record what was restored", path=str(self._folder), reason=error.strerror)

    def _check_newest(self, fencing_token: int) -> None:
        if self.fencing_token > fencing_token:
            raise StalePublisher(
                f"{self._folder} holds a checkpoint with fencing token {self.fencing_token}, this learner has "
                f"{fencing_token}: another learner trains this run now"
            )

    def _found(self) -> list[tuple[int, int, Path]]:
        """Return fencing token, serial number and path of every checkpoint, the oldest first."""
        try:
            names = os.listdir(self._folder)  # `Path.glob` takes a folder that it cannot read for an empty one
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TidemillError(f"cannot read {self._folder}: {error.strerror}") from error
        matches = (_NAME.fullmatch(name) for name in names)
        return sorted((int(match[1]), int(match[2]), self._folder / match[0]) for match in matches if match)

    def _path(self, fencing_token: int, serial: int) -> Path:
        return self._folder / f"checkpoint-{fencing_token:06d}-{serial:08d}.safetensors"


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
        if theirs != ours and (theirs or ours):  # a single number is not part of a network
            holds, wants = _described(name, theirs), _described(name, ours)
            raise FatalError(f"{path} holds {holds}, this run's network has {wants}: {advice}")
    then, now = network_settings(found.settings), network_settings(wanted.settings)
    for name in sorted(then.keys() & now.keys()):  # a version of Tidemill may add some
        if then[name] != now[name]:
            raise FatalError(f"{path} is of {name} {then[name]!r}, this run's is {now[name]!r}: {advice}")


def _described(name: str, shape: list[int] | None) -> str:
    return f"no {name}" if shape is None else f"{name} of shape {shape}"


def _checked(path: Path) -> bytes:
    """Return the bytes of a file that match their checksum."""
    try:
        expected = path.with_suffix(".sha256").read_text(encoding="ascii").split()[:1]
        data = path.read_bytes()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise DataLoss(f"cannot be read: {error}") from error
    except OSError as error:  # no older checkpoint takes its place: training would continue from there, and remove it
        advice = "if it stays unreadable, remove it to continue from the checkpoint before it"
        raise TidemillError(f"cannot read {path}: {error.strerror}; {advice}") from error
    if expected != [hashlib.sha256(data).hexdigest()]:
        raise DataLoss("its bytes do not match their SHA-256")
    return data


def _remove(path: Path) -> None:
    """Remove the files of a checkpoint."""
    for each in (path, path.with_suffix(".sha256")):
        each.unlink(missing_ok=True)
