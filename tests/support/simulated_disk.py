"""A disk whose power can fail between any two calls: what was not synced may be there, in part, or not at all."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

_SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""


class PowerCutError(OSError):
    """The power has failed, or the process was killed: nothing reaches the disk any more."""


class SimulatedDisk:
    """Watches the calls that change one folder and those below it, and knows what its disk must have after each.

    A file's bytes are kept from its last sync on, its name from the last sync of its folder on; the name of a folder
    likewise. Of what came later the disk has any sectors, in any order, and any of the names: that is what POSIX
    promises, and no less than file systems do. What the folder holds at the beginning is synced. Only calls that go
    through `os` are counted; what Python's file objects write is read when it is synced.
    """

    def __init__(self, folder: Path, cut_after: int) -> None:
        """Watch a folder; the call after the first `cut_after` fails, and so does every later one."""
        self._folder, self._left = folder, cut_after
        self._lock = threading.RLock()
        self._synced: dict[int, bytes] = {}
        self._gone: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._has_room: Callable[[], bool] = lambda: True
        for each in (folder, *folder.rglob("*")):
            if each.is_dir():
                self._names[each] = _entries(each)
            elif each.exists():
                self._synced[each.stat().st_ino] = each.read_bytes()
        after = {"pwrite": None, "posix_fallocate": None, "fsync": self._keep, "fdatasync": self._keep}
        self._patches = [patch.object(os, name, self._watched(getattr(os, name), then)) for name, then in after.items()]
        self._patches.append(patch.object(os, "mkdir", self._making(os.mkdir)))
        self._patches.append(patch.object(os, "unlink", self._unlinking(os.unlink)))
        self._patches.append(patch.object(os, "replace", self._unlinking(os.replace)))

    @property
    def is_cut(self) -> bool:
        """Whether the power has failed."""
        return self._left < 0

    def __enter__(self) -> Self:
        """Begin to watch."""
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End."""
        for each in self._patches:
            each.stop()

    def cut(self) -> None:
        """Let the power fail now."""
        with self._lock:
            self._left = -1

    def restart(self, cut_after: int) -> None:
        """Let another process begin on what the operating system has: only the process was killed."""
        with self._lock:
            self._left = cut_after

    def fill(self, has_room: Callable[[], bool]) -> None:
        """Refuse every call for which `has_room` is false, as a full disk does; what removes names always has room."""
        self._has_room = has_room

    def after_power_cut(self, folder: Path, rng: random.Random) -> None:
        """Write into a folder what the disk might have now: one of many possibilities."""
        written = {path.stat().st_ino: path.read_bytes() for path in self._folder.rglob("*") if path.is_file()}
        self._copy(self._folder, folder, written, rng)

    def _copy(self, source: Path, target: Path, written: dict[int, bytes], rng: random.Random) -> None:
        target.mkdir()
        synced, current = self._names.get(source, {}), _entries(source)
        for name in sorted(synced.keys() | current.keys()):
            inode = rng.choice((synced.get(name), current.get(name)))
            if inode is None:
                continue
            if (source / name).is_dir():
                self._copy(source / name, target / name, written, rng)
            else:
                newest = written.get(inode, self._gone.get(inode, b""))
                (target / name).write_bytes(_mixed(self._synced.get(inode, b""), newest, rng))

    def _watched(self, call: Callable[..., Any], after: Callable[[int], None] | None) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - of any call
            with self._lock:
                self._count()
                self._take_room()
                if after is not None:  # no real disk need be waited for
                    return after(arguments[0])
                return call(*arguments, **named)

        return watched

    def _making(self, call: Callable[..., None]) -> Callable[..., None]:
        """Return a call that makes a folder, here or elsewhere."""

        def making(path: str | Path, *arguments: int) -> None:
            with self._lock:
                if Path(path).is_relative_to(self._folder):
                    self._count()
                    if not os.path.exists(path):
                        self._take_room()
                call(path, *arguments)

        return making

    def _unlinking(self, call: Callable[..., None]) -> Callable[..., None]:
        """Return a call whose last path loses the file that it names."""

        def unlinking(*paths: str | Path) -> None:
            with self._lock:
                self._count()
                if len(paths) > 1:
                    self._take_room()
                if str(paths[-1]).startswith(f"{self._folder}/") and os.path.exists(paths[-1]):
                    self._remember(Path(paths[-1]))
                call(*paths)

        return unlinking

    def _remember(self, path: Path) -> None:
        """Keep what is known of a file under another number, because its own may be given to the next file."""
        inode, number = path.stat().st_ino, -1 - len(self._gone)
        self._gone[number] = path.read_bytes()
        if inode in self._synced:
            self._synced[number] = self._synced.pop(inode)
        for folder, names in self._names.items():
            self._names[folder] = {name: number if found == inode else found for name, found in names.items()}

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PowerCutError("the power has failed")

    def _take_room(self) -> None:
        if not self._has_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _keep(self, descriptor: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not target.is_relative_to(self._folder):
            return
        if target.is_dir():
            self._names[target] = _entries(target)
        else:
            self._synced[os.fstat(descriptor).st_ino] = target.read_bytes()


def _entries(folder: Path) -> dict[str, int]:
    """Return the content of a folder, by name; nothing if it does not exist."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _mixed(synced: bytes, newest: bytes, rng: random.Random) -> bytes:
    """Return bytes that a file may have: each sector as it was synced, or as it was written since, or never written."""
    if synced == newest or len(newest) < len(synced):
        return rng.choice((synced, newest))
    size = rng.choice((len(synced), len(newest), rng.randint(len(synced), len(newest))))
    before = synced.ljust(size, b"\0")
    sectors = range(0, size, _SECTOR_BYTES)
    return b"".join(rng.choice((before, newest))[at : at + _SECTOR_BYTES][: size - at] for at in sectors)
