"""A table as a folder of files, written whole or not at all; `exported_table` reads it.

`steps-NNNNNN.safetensors` have the columns, stream after stream; `items-NNNNNN.safetensors` have the items in the order
of their insertion, as rows of these; `manifest.json` has the table's configuration, and size and SHA-256 of each file
(ADR 0041).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from tidemill import formats, linux
from tidemill.arrays import Array
from tidemill.atomic_files import TEMPORARY, sync_file, sync_folder
from tidemill.errors import InvalidArgument, ResourceExhausted, TidemillError
from tidemill.replay.table_config import TableConfig
from tidemill.replay.transfer.stream import Items, Steps
from tidemill.replay.wire import config_to_json

FORMAT, MANIFEST = "tidemill-replay-table", "manifest.json"
VERSION = formats.NEWEST[formats.TABLE]
FILE_BYTES = 64 * 2**20
"""About how many bytes of arrays a file has; more only if one part of an export is larger."""

_FILE_ITEMS = 65_536
CHUNK_TENSORS = {"chunk/steps": "int64", "chunk/continues": "bool", "chunk/params_version": "uint64"}
"""Tensors of a file of steps besides its columns, by dtype."""

ITEM_TENSORS = {
    "first_row": ("first_rows", "int64"),
    "length": ("lengths", "int64"),
    "priority": ("priorities", "float64"),
    "payload": ("payloads", "uint8"),
    "age": ("ages", "int64"),
    "times_sampled": ("times_sampled", "int64"),
}
"""Tensors of a file of items, by field of `Items` and dtype."""


@dataclass(slots=True)
class _Pending:
    """Arrays that wait to be written, by name."""

    arrays: dict[str, list[Array]] = field(default_factory=dict)
    size_bytes: int = 0
    count: int = 0

    def add(self, arrays: Mapping[str, Array], count: int) -> None:
        for name, array in arrays.items():
            self.arrays.setdefault(name, []).append(array)
            self.size_bytes += array.nbytes
        self.count += count


class FolderWriter:
    """Writes a table's folder; it has its name once `finish` has returned, and is not there before."""

    def __init__(self, folder: Path, config: TableConfig, *, rate_limiter_off: bool = False) -> None:
        """Begin a folder under another name beside its own.

        Args:
            folder: Its own name.
            config: The table's configuration.
            rate_limiter_off: Whether the table's rate limiter was switched off.

        Raises:
            InvalidArgument: There is something of that name, or it cannot be made.
        """
        if folder.exists() or folder.is_symlink():
            raise InvalidArgument(f"the folder to write is {folder}, which exists: name one that does not")
        self._folder = folder
        self._table = {"table": config_to_json(config), "rate_limiter_off": rate_limiter_off}
        self._temporary = folder.parent / f".{folder.name}.{secrets.token_hex(4)}{TEMPORARY}"
        self._steps, self._items = _Pending(), _Pending()
        self._files: list[dict[str, Any]] = []
        self.items = self.steps = self.lost_items = 0
        try:
            self._temporary.mkdir(parents=True)
        except OSError as error:
            raise InvalidArgument(f"the folder to write is {folder}, which cannot be made: {error}") from error

    @property
    def size_bytes(self) -> int:
        """Bytes of the files so far."""
        return sum(file["size_bytes"] for file in self._files)

    def add_steps(self, part: Steps) -> None:
        """Add steps behind those there are."""
        chunks = (part.step_counts, part.continues, part.params_versions)
        arrays = part.columns | dict(zip(CHUNK_TENSORS, chunks, strict=True))
        rows = int(part.step_counts.sum())
        self._steps.add(arrays, rows)
        self.steps += rows
        if self._steps.size_bytes >= FILE_BYTES:
            self._steps = self._write("steps", self._steps)

    def add_items(self, part: Items) -> None:
        """Add items behind those there are."""
        self._items.add({name: getattr(part, of) for name, (of, _) in ITEM_TENSORS.items()}, len(part.lengths))
        self.items += len(part.lengths)
        if self._items.size_bytes >= FILE_BYTES or self._items.count >= _FILE_ITEMS:
            self._items = self._write("items", self._items)

    def finish(self) -> None:
        """Write what is left and the manifest, wait until the disk has everything, and give the folder its name.

        Raises:
            ResourceExhausted: The disk refused; nothing is left behind.
        """
        self._steps, self._items = self._write("steps", self._steps), self._write("items", self._items)
        try:
            with (self._temporary / MANIFEST).open("wb") as file:
                file.write(_manifest(self._table, self._files, self.steps, self.items, self.lost_items))
                sync_file(file)
            sync_folder(self._temporary)
            self._temporary.rename(self._folder)
            sync_folder(self._folder.parent)
        except OSError as error:
            raise _refused(self._folder, error) from error

    def _write(self, kind: str, pending: _Pending) -> _Pending:
        """Write what is pending into a file, if there is anything; return what is pending then."""
        if not pending.count:
            return pending
        name = f"{kind}-{sum(file['kind'] == kind for file in self._files):06}.safetensors"
        arrays = {key: np.concatenate(parts) for key, parts in pending.arrays.items()}
        pending.arrays.clear()
        path = self._temporary / name
        try:
            save_file(arrays, path, metadata={"format": FORMAT, "version": str(VERSION)})
            with contextlib.suppress(OSError):  # some disks keep no modes; safetensors lets only the owner read
                path.chmod(self._temporary.stat().st_mode & 0o666)
            with path.open("rb+") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                linux.sync(file.fileno())
            size = path.stat().st_size
        except (OSError, SafetensorError) as error:
            raise _refused(self._folder, error) from error
        self._files.append(
            {"name": name, "kind": kind, "count": pending.count, "size_bytes": size, "sha256": digest},
        )
        return _Pending()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Remove what is not finished."""
        shutil.rmtree(self._temporary, ignore_errors=True)


def _manifest(table: Mapping[str, Any], files: Sequence[Mapping[str, Any]], steps: int, items: int, lost: int) -> bytes:
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        **table,
        "steps": steps,
        "items": items,
        "lost_items": lost,
        "files": list(files),
    }
    return json.dumps(document | {"sha256": digest_of(document)}, indent=1).encode()


def digest_of(document: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest without it."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _refused(folder: Path, error: Exception) -> TidemillError:
    return ResourceExhausted(f"cannot write {folder}: {error}")
