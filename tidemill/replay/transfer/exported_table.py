"""Reader of an exported table, which checks the SHA-256 of every file first."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from tidemill import formats
from tidemill.arrays import Array, Ints
from tidemill.errors import DataLoss, InvalidArgument, described
from tidemill.replay.chunk import check_priorities
from tidemill.replay.transfer.folder import CHUNK_TENSORS, FORMAT, ITEM_TENSORS, MANIFEST, digest_of
from tidemill.replay.wire import config_from_json

_MAX_OPEN = 8  # files that are mapped at a time
_NAME = re.compile(r"(steps|items)-[0-9]{6,}\.safetensors")


class ExportedTable:
    """A table in a folder, every byte of which was checked.

    Attributes:
        config: The table's configuration when it was exported.
        rate_limiter_off: Whether its rate limiter was switched off then.
        items: Number of its items.
        steps: Number of the rows that are stored, padding included.
        step_counts: Steps of each chunk, int64 [C].
        continues: Which chunks follow the one before in the same stream, [C].
        params_versions: Version of the parameters that chose each chunk's last action, uint64 [C].
        first_rows: Row of each item's first step, counted over all steps, int64 [N].
        lengths: Steps of each item, int64 [N].
    """

    def __init__(self, folder: Path) -> None:
        """Read and check a folder. Its steps, priorities and payloads stay on disk.

        Raises:
            InvalidArgument: It is not such a folder.
            DataLoss: A file is damaged, missing, or does not fit the others.
            FatalError: It has a format that this version does not know.
        """
        self._folder = folder
        document = _read_manifest(folder)
        try:
            self.config = config_from_json(document["table"])
            self.rate_limiter_off = bool(document.get("rate_limiter_off"))  # not in exports of earlier releases
            self._step_files, self._item_files = (
                [file for file in document["files"] if file["kind"] == kind] for kind in ("steps", "items")
            )
            self.items, self.steps, self.lost_items = (int(document[n]) for n in ("items", "steps", "lost_items"))
            self._open: OrderedDict[str, Any] = OrderedDict()
            for file in document["files"]:
                _check_file(folder, file)
            self._read_index()
        except (KeyError, TypeError, ValueError, OSError, SafetensorError) as error:
            raise DataLoss(f"{folder} is damaged: {described(error)}") from error
        self.check_items()

    def rows(self, start: int, stop: int, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Return the steps `start` .. `stop` - 1 of some columns, or of each, [stop - start, ...]."""
        specs = [column for column in self.config.signature if names is None or column.name in names]
        empty = {spec.name: np.zeros((0, *spec.shape), spec.dtype) for spec in specs}
        return self._tensors(self._step_files, self._step_ends, start, stop, empty)

    def rows_of(self, chunk: int) -> tuple[int, int]:
        """Return the first row of a chunk and how many it has."""
        count = int(self.step_counts[chunk])
        return int(self._chunk_ends[chunk]) - count, count

    @property
    def size_bytes(self) -> int:
        """Bytes of the files."""
        return sum(file["size_bytes"] for file in (*self._step_files, *self._item_files))

    def item_values(self, start: int, stop: int) -> tuple[NDArray[np.float64], NDArray[np.uint8], Ints]:
        """Return of the items `start` .. `stop` - 1 what is not in memory.

        Returns:
            Priorities [N], payloads, uint8 [N, payload_bytes], and how often each was sampled, int64 [N].
        """
        empty: dict[str, Array] = {
            "priority": np.zeros(0),
            "payload": np.zeros((0, self.config.payload_bytes), np.uint8),
            "times_sampled": np.zeros(0, np.int64),
        }
        found = self._tensors(self._item_files, self._item_ends, start, stop, empty)
        return found["priority"], found["payload"], found["times_sampled"]

    def _tensors(
        self, files: Sequence[Mapping[str, Any]], ends: Ints, start: int, stop: int, empty: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return entries `start` .. `stop` - 1 of tensors, given as empty ones, from files that end at `ends`."""
        parts: list[dict[str, Array]] = []
        while start < stop:
            i = int(np.searchsorted(ends, start, side="right"))
            begin = int(ends[i - 1]) if i else 0
            end = min(stop, int(ends[i]))
            file = self._file(files[i]["name"])
            parts.append({name: file.get_slice(name)[start - begin : end - begin] for name in empty})
            start = end
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([none, *(part[name] for part in parts)]) for name, none in empty.items()}

    def _file(self, name: str) -> Any:  # noqa: ANN401 - safetensors' handle
        if name in self._open:
            self._open.move_to_end(name)
        else:
            if len(self._open) == _MAX_OPEN:
                self._open.popitem(last=False)
            self._open[name] = safe_open(self._folder / name, framework="numpy")
        return self._open[name]

    def _read_index(self) -> None:
        chunks: list[list[Array]] = [[np.zeros(0, dtype)] for dtype in CHUNK_TENSORS.values()]
        columns = {column.name: (column.dtype, column.shape) for column in self.config.signature}
        for file in self._step_files:
            self._check_tensors(file, columns | {name: (dtype, None) for name, dtype in CHUNK_TENSORS.items()})
            for parts, name in zip(chunks, CHUNK_TENSORS, strict=True):
                parts.append(self._file(file["name"]).get_tensor(name))
            if int(chunks[0][-1].sum()) != file["count"]:
                raise ValueError(f"the chunks of {file['name']} do not have its {file['count']} steps")
        self.step_counts, self.continues, self.params_versions = (np.concatenate(parts) for parts in chunks)
        self._chunk_ends = np.cumsum(self.step_counts)
        items: list[list[Array]] = [[np.zeros(0, np.int64)], [np.zeros(0, np.int64)]]
        of_items = {name: (dtype, ()) for name, (_, dtype) in ITEM_TENSORS.items()}
        for file in self._item_files:
            self._check_tensors(file, of_items | {"payload": ("uint8", (self.config.payload_bytes,))})
            for parts, name in zip(items, ("first_row", "length"), strict=True):
                parts.append(self._file(file["name"]).get_tensor(name))
            check_priorities(self._file(file["name"]).get_tensor("priority"), least=self.config.least_priority)
            times = self._file(file["name"]).get_tensor("times_sampled")
            if len(times) and not 0 <= times.min() <= times.max() < 2**32:
                wrong = f"{times.min()} .. {times.max()}"
                raise ValueError(f"times_sampled of {file['name']} is {wrong}, must be 0 .. {2**32 - 1}")
        self.first_rows, self.lengths = (np.concatenate(parts) for parts in items)
        self._step_ends, self._item_ends = (
            np.cumsum([file["count"] for file in files], dtype=np.int64)
            for files in (self._step_files, self._item_files)
        )
        found = (int(self.step_counts.sum()), len(self.lengths))
        if found != (self.steps, self.items):
            raise ValueError(f"the files have {found} steps and items, the manifest says {(self.steps, self.items)}")

    def _check_tensors(self, file: Mapping[str, Any], wanted: Mapping[str, tuple[str, tuple[int, ...] | None]]) -> None:
        """Raise ValueError unless a file has just the tensors wanted, by dtype and shape; None is any count."""
        opened = self._file(file["name"])
        names = sorted(opened.keys())
        if names != sorted(wanted):
            raise ValueError(f"{file['name']} has tensors {names}, must have {sorted(wanted)}")
        for name, (dtype, shape) in wanted.items():
            tensor = opened.get_slice(name)
            found, empty = tuple(tensor.get_shape()), tensor[:0]
            right = len(found) == 1 if shape is None else found == (file["count"], *shape)
            if empty.dtype != dtype or not right:
                raise ValueError(f"tensor {name!r} of {file['name']} is {empty.dtype} {found}, must be {dtype}")

    def check_items(self) -> None:
        """Compare chunks and items, as is done once at the beginning. DataLoss: they cannot be those of a table."""
        step_counts, continues = self.step_counts, self.continues
        if len(step_counts) and (int(step_counts.min()) < 1 or continues[0]):
            raise DataLoss(f"{self._folder} is damaged: its chunks do not begin a stream, or have no steps")
        most = self.config.max_item_steps
        ends = self.first_rows + self.lengths
        wrong = (self.first_rows < 0) | (self.lengths < 1) | (self.lengths > most) | (ends > self.steps)
        first = np.searchsorted(self._chunk_ends, self.first_rows, side="right")
        last = np.searchsorted(self._chunk_ends, ends - 1, side="right")
        runs = np.concatenate((np.cumsum(~continues), [0]))
        wrong |= runs[np.minimum(first, len(step_counts))] != runs[np.minimum(last, len(step_counts))]
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise DataLoss(
                f"{self._folder} is damaged: item {i} has {self.lengths[i]} steps from row {self.first_rows[i]}, "
                f"must have 1 .. {most} of one stream, of {self.steps} rows"
            )


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; its files are named as files of such a folder are."""
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidArgument(
            f"{folder} has no {MANIFEST}: give a folder that `tidemill replay export` wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataLoss(f"{path} is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArgument(f"{path} is not the manifest of an exported table: its format is not {FORMAT!r}")
    formats.check_format(formats.TABLE, document.get("version"), path)
    if document.pop("sha256", None) != digest_of(document):
        raise DataLoss(f"{path} is damaged: its text does not match its checksum")
    return document


def _check_file(folder: Path, file: Mapping[str, Any]) -> None:
    """DataLoss: a file is missing or not as it was written."""
    name = file["name"]
    if not _NAME.fullmatch(name):
        raise DataLoss(f"{folder / MANIFEST} names a file {name!r}, must match {_NAME.pattern}")
    try:
        with (folder / name).open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file["size_bytes"]:
                raise DataLoss(f"{folder / name} is damaged: it has {size} bytes, must have {file['size_bytes']}")
            if hashlib.file_digest(opened, "sha256").hexdigest() != file["sha256"]:
                raise DataLoss(f"{folder / name} is damaged: its bytes do not match their SHA-256")
    except FileNotFoundError:
        raise DataLoss(f"{folder / name} is missing") from None
