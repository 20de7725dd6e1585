"""The state of a writer as bytes, for the writer of a restarted process: arrays and JSON with a checksum, no pickle."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tidemill import formats
from tidemill.arrays import Array
from tidemill.errors import DataLoss, InvalidArgument
from tidemill.replay.table_config import TableConfig
from tidemill.replay.writing.append_call import AppenderState
from tidemill.replay.writing.stream_items import StreamItems
from tidemill.replay.writing.stream_rows import StreamRows

_WORDS = b"tidemill writer "
_MAGIC = _WORDS + b"%d\n" % formats.NEWEST[formats.WRITER]
_DOCUMENT = "document"


def new_name() -> str:
    """Return a name for a writer of this process that no other has."""
    host = "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in socket.gethostname())
    return f"w-{host[:64]}-{os.getpid()}-{secrets.token_hex(4)}"


def arguments_of(
    batch: tuple[int, ...], chunk_length: int, tables: Sequence[TableConfig], windows: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments that a continuing writer must share with the earlier one, as a JSON document.

    Integers may be NumPy's, which JSON lacks.
    """
    return {
        "num_envs": int(batch[0]) if batch else None,
        "chunk_length": int(chunk_length),
        "tables": [[table.name, int(table.max_item_steps), int(table.payload_bytes)] for table in tables],
        "signature": [[c.name, c.dtype, list(map(int, c.shape)), c.codec.value] for c in tables[0].signature],
        "windows": dict(windows),
    }


def pack_writer(
    arguments: Mapping[str, Any], name: str, appender: AppenderState, rows: StreamRows, items: StreamItems
) -> bytes:
    """Return the state of a writer: its arguments, its name, where its appender is, its rows and its items."""
    waiting, next_start = items.state()
    document = {
        "arguments": dict(arguments),
        "name": name,
        "params_version": int(rows.params_versions.max()),  # of an older Tidemill, which has one for all
        "epoch": appender.epoch,
        "sizes": [len(message) for message in appender.unacknowledged],
        "items": waiting,
    }
    messages = np.frombuffer(b"".join(appender.unacknowledged), dtype=np.uint8)
    return _pack(document, rows.state() | {"messages": messages, "next_start": next_start})


def unpack_writer(
    state: bytes, arguments: Mapping[str, Any], name: str, rows: StreamRows, items: StreamItems
) -> tuple[str, AppenderState]:
    """Put a state into the rows and items of a writer that has done nothing yet.

    Args:
        state: What `pack_writer` returned.
        arguments: Of the writer, see `arguments_of`.
        name: Its name; empty for that of the state.
        rows: Its rows.
        items: Its items.

    Returns:
        The name of the writer, and where its appender was.

    Raises:
        InvalidArgument: The bytes are not a state, of another version, or of a writer with other arguments.
        DataLoss: They are damaged.
    """
    document, arrays = _unpack(state)
    own, before = {**arguments, "name": name or document["name"]}, {**document["arguments"], "name": document["name"]}
    for field, value in own.items():
        if before[field] != value:
            raise InvalidArgument(f"{field} is {value!r}, must be {before[field]!r} as in the writer of `state`")
    rows.restore({"params_versions": np.array(document["params_version"], np.uint64)} | arrays)
    items.restore(document["items"], arrays["next_start"])
    ends, messages = np.cumsum([0, *document["sizes"]]).tolist(), arrays["messages"].tobytes()
    unacknowledged = tuple(messages[a:b] for a, b in pairwise(ends))
    return document["name"], AppenderState(document["epoch"], unacknowledged, tuple(rows.first_step.tolist()))


def _pack(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return the bytes of a state; `_unpack` reads them."""
    from safetensors.numpy import save

    text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
    body = save({_DOCUMENT: text} | {name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the document and the arrays of a state.

    Raises:
        InvalidArgument: The bytes are not the state of a writer.
        DataLoss: They are damaged.
        FatalError: They have a format that this version does not know.
    """
    from safetensors.numpy import load

    number = data[len(_WORDS) : len(_WORDS) + 8].partition(b"\n")[0]
    if data.startswith(_WORDS) and number.isdigit():
        formats.check_format(formats.WRITER, int(number), "state of a writer")
    if not data.startswith(_MAGIC):
        raise InvalidArgument(f"state begins with {data[:18]!r}, must be what ReplayWriter.state returned")
    start = len(_MAGIC) + hashlib.sha256().digest_size
    if hashlib.sha256(data[start:]).digest() != data[len(_MAGIC) : start]:
        raise DataLoss(f"state of {len(data)} bytes is damaged: it does not match its checksum")
    arrays = load(data[start:])
    document = json.loads(arrays.pop(_DOCUMENT).tobytes())
    return document, arrays
