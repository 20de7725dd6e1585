"""Import of an exported table into a running server."""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from tidemill.errors import AlreadyExists, FailedPrecondition, TidemillError, Unavailable
from tidemill.replay.argument_types import check_deadline
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import encode
from tidemill.replay.table_config import TableConfig, TableDescription, TableUpdate
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.transfer.exporting import TransferReport
from tidemill.replay.transfer.new_table import removed_on_failure
from tidemill.replay.transfer.plan import ImportPlan, PlannedMessage
from tidemill.replay.writing.append_call import AppendOverdue, StreamRestarted
from tidemill.replay.writing.appender import StreamAppender
from tidemill.replay.writing.held_inserts import why_held_back
from tidemill.rpc.channel import Backoff

_MAX_IN_FLIGHT = 1024
_LOST = "the server restarted with nothing on disk, so the imported items are lost: import again"


def import_table(
    address: str, folder: str | Path, *, table: str = "", timeout_s: float = 60.0, append: bool = False
) -> TransferReport:
    """Put an exported table into a running server: every item as it was, in its order.

    That is its steps, priority, payload, and how often it was sampled, so that what was used up of
    `max_times_sampled` stays so.

    The whole folder is checked first. The table is created as it was; its rate limiter is off meanwhile and then begins
    with neither side ahead, or stays off if it was. If there is such a table already, of the same configuration, the
    items come behind its own, as its rate limiter allows, and a full table drops as many: raise its `max_items` first,
    with `ReplayClient.update_table`, to keep them. Counters begin from 0, ages count what is imported behind an item,
    and its time is that of the import.

    Args:
        address: Of the server.
        folder: What `export_table` wrote.
        table: Name of the table there; empty for the name it had.
        timeout_s: Longest wait for the server, in seconds.
        append: Whether to append to a table that looks like an interrupted import, too. Its rate limiter is off, though
            the export's is on or has more items than the table ever had.

    Raises:
        InvalidArgument: The folder is none of an exported table, or of another version; nothing was sent.
        DataLoss: A file is damaged or missing; nothing was sent.
        AlreadyExists: The server has a table of that name with another configuration, or one that looks like an
            interrupted import, and `append` is not set; nothing was sent.
        Unavailable: The server cannot be reached, or took nothing for `timeout_s`. A table that was created is removed
            then, so that the import can be repeated; if the server was away, the message says how to remove it. If it
            says that the items are stored, only the rate limiter is still to be switched on.
        FailedPrecondition: A server that keeps its tables in memory was restarted meanwhile.
    """
    check_deadline("timeout_s", timeout_s)
    exported = ExportedTable(Path(folder))
    plan = ImportPlan(exported)
    config = replace(exported.config, name=table) if table else exported.config
    with ReplayClient(address, deadline_s=timeout_s) as client:
        client.wait_for_ready(timeout_s)
        # not by what `create_table` returns: gRPC repeats a call whose answer was lost, which finds its own table then
        there = next((found for found in client.list_tables() if found.config.name == config.name), None)
        if there and not append:
            _check_whole(address, there, exported)
        is_new = there is None
        with removed_on_failure(client, address, config.name) if is_new else nullcontext():
            client.create_table(config)
            if is_new:
                client.update_table(config.name, TableUpdate(rate_limiter_on=False))
            with _Lanes(address, config, plan.lanes, timeout_s, is_new=is_new) as lanes:
                for message in plan.messages():
                    lanes.append(exported, message)
                lanes.flush()
        if is_new and not exported.rate_limiter_off:
            _switch_on(client, config.name, timeout_s)
        table_items, evicted = None, 0
        with suppress(TidemillError):  # everything is stored: another import would store it twice
            now = client.describe_table(config.name)
            table_items = now.items
            evicted = max(now.evictions - (there.evictions if there else 0), 0)  # a table that was reset counts from 0
    return TransferReport(config.name, exported.items, exported.steps, 0, exported.size_bytes, table_items, evicted)


def _check_whole(address: str, there: TableDescription, exported: ExportedTable) -> None:
    """Raise AlreadyExists for a table that an import may have left unfinished when it or the server was killed."""
    if there.rate_limiter_off and (there.inserts < exported.items or not exported.rate_limiter_off):
        table = there.config.name
        raise AlreadyExists(
            f"table {table!r} at {address} looks like an interrupted import: its rate limiter is off, and it has had "
            f"{there.inserts:,} items. If it is one, run `tidemill replay drop {address} {table}` before you import "
            "again; otherwise append to it with --append (append=True)"
        )


def _switch_on(client: ReplayClient, table: str, timeout_s: float) -> None:
    pause, deadline_s = Backoff(), time.monotonic() + timeout_s
    while True:
        try:
            client.update_table(table, TableUpdate(rate_limiter_on=True))
            return
        except Unavailable as error:
            if (left_s := deadline_s - time.monotonic()) <= 0:
                raise Unavailable(
                    f"all items of table {table!r} are stored, but its rate limiter is still off: {error}. Do not "
                    f"import again; run `tidemill replay update ADDRESS {table} --rate-limiter on`"
                ) from error
            time.sleep(min(pause.next_s(), left_s))


class _Lanes:
    """The appenders of an import, one for each length of chunks; items are inserted in the order of the calls."""

    def __init__(
        self, address: str, config: TableConfig, lanes: dict[int, int], timeout_s: float, *, is_new: bool
    ) -> None:
        self._config, self._timeout_s = config, timeout_s
        self._address, self._lanes = address, lanes
        self._is_new = is_new
        self._name = f"import-{secrets.token_hex(6)}"
        self._appenders: dict[int, StreamAppender] = {}
        self._newest: StreamAppender | None = None
        self._stack = ExitStack()

    def append(self, exported: ExportedTable, message: PlannedMessage) -> None:
        """Append a message, once all before it are stored if these had chunks of another length."""
        appender = self._appender(message.chunk_length)
        if self._newest not in (None, appender):
            self.flush()
        self._newest = appender
        priorities, payloads, times_sampled = exported.item_values(message.items.start, message.items.stop)
        items = ItemBatch(
            table_index=0,
            chunk_indices=message.chunk_indices,
            last_offsets=message.last_offsets,
            lengths=exported.lengths[message.items],
            priorities=priorities,
            payloads=tuple(map(bytes, payloads)) if self._config.payload_bytes else (),
            times_sampled=times_sampled if times_sampled.any() else None,
        )
        try:
            appender.append(self._chunks(exported, message), [items], self._timeout_s)
        except StreamRestarted as restarted:
            raise FailedPrecondition(_LOST) from restarted
        except AppendOverdue:
            raise self._overdue(appender) from None

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        if self._newest is not None and not self._newest.flush(self._timeout_s):
            raise self._overdue(self._newest)
        if self._newest is not None and self._newest.restarts:
            raise FailedPrecondition(_LOST)

    def _overdue(self, appender: StreamAppender) -> Unavailable:
        why = appender.last_failure or why_held_back(self._address, [self._config.name], self._timeout_s)
        return Unavailable(
            f"the replay server at {self._address} did not acknowledge {appender.unacknowledged_chunks} chunks within "
            f"{self._timeout_s:g} s: "
            f"{why or 'it is down, its disk is full, or the rate limiter of the table holds inserts back'}"
            f"{'' if self._is_new else self._how_to_remove()}"
        )

    def _how_to_remove(self) -> str:
        command = f"tidemill replay delete {self._address} {self._config.name} --actor"
        commands = " and ".join(f"`{command} {self._writer(length)}`" for length in self._appenders)
        return f". Some items may be stored: before you import again, remove them with {commands}"

    def _writer(self, length: int) -> str:
        return f"{self._name}-{length}"

    def _chunks(self, exported: ExportedTable, message: PlannedMessage) -> list[Chunk]:
        signature, length = self._config.signature, message.chunk_length
        chunks = []
        for planned in message.chunks:
            start, count = exported.rows_of(planned.index)
            columns = exported.rows(start, start + count)
            if count < length:
                columns = {
                    name: np.concatenate([column, np.zeros((length - count, *column.shape[1:]), column.dtype)])
                    for name, column in columns.items()
                }
            version = int(exported.params_versions[planned.index])
            chunks.append(Chunk(planned.lane, planned.first_step, length, 0, version, encode(signature, columns)))
        return chunks

    def _appender(self, length: int) -> StreamAppender:
        if length not in self._appenders:
            appender = StreamAppender(
                self._address,
                self._writer(length),
                self._lanes[length],
                self._config.signature,
                (self._config.name,),
                length,
                max_in_flight_chunks=_MAX_IN_FLIGHT,
            )
            self._appenders[length] = self._stack.enter_context(appender)
        return self._appenders[length]

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
