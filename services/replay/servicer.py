"""The replay API: unpacks a request, makes one call to the state, packs the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc.aio
import numpy as np

from tidemill.errors import InvalidArgument, NotFound, Unimplemented
from tidemill.logger import LateLogger
from tidemill.replay.argument_types import check_range
from tidemill.replay.batch import StoredSteps
from tidemill.replay.chunk import check_priorities
from tidemill.replay.limits import MAX_BATCH_SIZE, MAX_BATCH_STEPS, MAX_KEYS, least_slots
from tidemill.replay.table_config import TableConfig, TableUpdate, check_signature, describe_limiter
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import (
    pack_description,
    pack_part,
    pack_sample,
    unpack_append,
    unpack_config,
    unpack_epoch,
    unpack_signature,
    unpack_update,
)
from tidemill.rpc.open_calls import OpenCalls
from tidemill.rpc.server import RpcServer
from tidemill.services.replay.admission import AdmissionQueue, StepClock
from tidemill.services.replay.batch_reader import BatchReader, BatchRoom
from tidemill.services.replay.chunks.mirror import ChunkMirror
from tidemill.services.replay.export import TableExport, exported_parts
from tidemill.services.replay.item_traces import ItemTraces
from tidemill.services.replay.lasting_work import finished
from tidemill.services.replay.leases import Leases
from tidemill.services.replay.log.commits import acknowledge_in_order
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.metrics import describe
from tidemill.services.replay.requests import Outgoing, add_handlers, grant, read, read_credit, read_each, times_of
from tidemill.services.replay.sample_queue import MAX_BATCH_BYTES, OpenedSample, SampleDemand, SampleQueue
from tidemill.services.replay.state.append import AppendSession, plan_append
from tidemill.services.replay.state.replay_state import MAX_CHUNK_LENGTH, ReplayState
from tidemill.services.replay.tables.epochs import Epochs
from tidemill.services.replay.tables.table import Table

_log = LateLogger()

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

SERVICE = "tidemill.replay.v1.ReplayService"
_MESSAGE_MARGIN = 0.9  # of a message may be blocks
_PART_MARGIN = 64  # bytes of a message that has a part of a batch, beside the part
_LEAST_PART_BYTES = 65_536
_MAX_SLOTS = 2**21  # chunks that a caller of Sample may keep
_MAX_HOLD = 2**16
_KEYS_AT_ONCE = 2**13  # between two of them others get their turn
_COPIES = 3  # a message that waits is in memory as it came, parsed and unpacked


class ReplayServicer:
    """Serves one `ReplayState`; calls wait in its `AdmissionQueue`. Requests are bytes, see `requests`."""

    def __init__(
        self,
        replay: ReplayState,
        admission: AdmissionQueue,
        max_message_bytes: int,
        log: ReplayLog | None = None,
        *,
        max_request_bytes: int = 0,
    ) -> None:
        """Serve a state.

        Args:
            replay: The state; nothing else may change it.
            admission: Where inserts and samples wait.
            max_message_bytes: Largest message this server can send.
            log: Where changes are written before they are acknowledged; None keeps all in memory only.
            max_request_bytes: Largest message that it takes; 0 means `max_message_bytes`.
        """
        self._replay = replay
        self._admission = admission
        self._log = log
        self._blobs = blobs = log.blobs if log is not None else None
        self._max_message_bytes, self._max_request_bytes = max_message_bytes, max_request_bytes or max_message_bytes
        self._batches = BatchReader(replay, admission, blobs, self._corrupt_records)
        self._clock = StepClock(lambda: replay.streams.step_count)
        self._calls = OpenCalls("replay server")
        self._told_of_evictions = False
        self._created: dict[str, int] = {}  # the log's record of the newest creation of a table, or change by one
        self._dropped = 0  # and of the newest removal
        self._changes: set[asyncio.Task[Any]] = set()
        self._configuring = asyncio.Lock()
        self._traces = ItemTraces()

    def add_to(self, server: RpcServer) -> None:
        """Let a server answer with this servicer."""
        add_handlers(self, server.grpc)
        server.announce(SERVICE)

    def close(self) -> None:
        """End the streams in progress, because the server stops."""
        self._calls.close()

    def stop_changes(self) -> None:
        """Leave changes of tables whose callers are gone where they are, because the log closes."""
        for change in self._changes:
            change.cancel()

    async def CreateTable(self, raw: bytes, context: Context) -> pb.CreateTableResponse:
        """Create a table, or confirm an equal one."""
        request = read(pb.CreateTableRequest, raw)
        config = unpack_config(request.config)
        created = await self._whole("CreateTable", self._create(config, redeclare=request.redeclare))
        await self._durable(self._created.get(config.name, 0))  # of an equal call, too, whose answer did not come
        return pb.CreateTableResponse(created=created)

    async def ListTables(self, raw: bytes, context: Context) -> pb.ListTablesResponse:
        """Describe every table in order of name."""
        read(pb.ListTablesRequest, raw)
        return pb.ListTablesResponse(tables=[self._describe(t) for t in self._replay.tables])

    async def DescribeTable(self, raw: bytes, context: Context) -> pb.DescribeTableResponse:
        """Describe one table."""
        table = self._replay.find(read(pb.DescribeTableRequest, raw).name)
        return pb.DescribeTableResponse(table=self._describe(table))

    async def UpdateTable(self, raw: bytes, context: Context) -> pb.UpdateTableResponse:
        """Change a table while it is in use."""
        request = read(pb.UpdateTableRequest, raw)
        table = self._replay.find(request.name)
        await self._whole("UpdateTable", self._update(table, unpack_update(request)))
        await self._durable()
        return pb.UpdateTableResponse(table=self._describe(table))

    async def ResetTable(self, raw: bytes, context: Context) -> pb.ResetTableResponse:
        """Remove every item of a table and zero its counters."""
        table = self._replay.find(read(pb.ResetTableRequest, raw).name)
        parts = self._replay.resetting(table)
        removed = next(parts)
        self._note_env_steps(table)
        self._admission.forget_blocked(table)
        await self._whole("ResetTable", self._in_parts(parts))
        await self._durable()
        return pb.ResetTableResponse(removed=removed)

    async def DropTable(self, raw: bytes, context: Context) -> pb.DropTableResponse:
        """Remove a table."""
        try:
            table = self._replay.find(read(pb.DropTableRequest, raw).name)
        except NotFound:
            await self._durable(self._dropped)  # an equal call, whose answer did not come, may have removed it
            raise
        parts = self._replay.dropping(table)
        removed = next(parts)
        self._dropped = self._replay.sequence
        self._created.pop(table.config.name, None)
        self._admission.changed()
        self._admission.forget(table)
        _log.info("table dropped", table=table.config.name, items=removed)
        await self._whole("DropTable", self._in_parts(parts))
        await self._durable()
        return pb.DropTableResponse(removed=removed)

    async def UpdatePriorities(self, raw: bytes, context: Context) -> pb.UpdatePrioritiesResponse:
        """Set priorities by key."""
        request = read(pb.UpdatePrioritiesRequest, raw)
        table = self._replay.find(request.table)
        if len(request.keys) != len(request.priorities):
            raise InvalidArgument(
                f"priorities has {len(request.priorities)} entries, must have {len(request.keys)} like keys"
            )
        parts = _parts_of(request.keys)
        for part in parts:
            check_priorities(np.array(request.priorities[part]), part.start, least=table.config.least_priority)
            await _pause(part)
        table.note_fencing_token(request.fencing_token)  # also of a learner that has no priorities yet
        updated = 0
        for part in parts:
            keys = np.array(request.keys[part], dtype=np.uint64)
            updated += table.update_priorities(keys, np.array(request.priorities[part]), request.fencing_token)
            self._admission.changed()
            await _pause(part)
        return pb.UpdatePrioritiesResponse(updated=updated, unknown=len(request.keys) - updated)

    async def DeleteItems(self, raw: bytes, context: Context) -> pb.DeleteItemsResponse:
        """Remove items by key."""
        request = read(pb.DeleteItemsRequest, raw)
        table = self._replay.find(request.table)
        deleted = 0
        for part in _parts_of(request.keys):
            deleted += self._replay.delete(table, np.array(request.keys[part], dtype=np.uint64))
            self._admission.changed()
            await _pause(part)
        await self._durable()
        return pb.DeleteItemsResponse(deleted=deleted, unknown=len(request.keys) - deleted)

    async def DeleteMatchingItems(self, raw: bytes, context: Context) -> pb.DeleteMatchingItemsResponse:
        """Remove items by their writer or their age."""
        request = read(pb.DeleteMatchingItemsRequest, raw)
        table = self._replay.find(request.table)
        env_index = request.env_index if request.HasField("env_index") else None
        conditions = request.actor_id, env_index, request.min_age, *times_of(request)
        parts = self._replay.delete_matching(table, *conditions)
        deleted = await self._whole("DeleteMatchingItems", self._in_parts(parts))
        await self._durable()
        return pb.DeleteMatchingItemsResponse(deleted=deleted)

    async def Checkpoint(self, raw: bytes, context: Context) -> pb.CheckpointResponse:
        """Take a snapshot."""
        read(pb.CheckpointRequest, raw)
        if self._log is None:
            raise Unimplemented("this server keeps its tables in memory only and writes no snapshots")
        return pb.CheckpointResponse(snapshot=await self._log.checkpoint())

    async def Append(
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[pb.AppendResponse]:
        """Store chunks and items, acknowledging each message once the rate limiters admitted it."""
        with self._calls.running():
            requests = read_each(pb.AppendRequest, request_iterator)
            first = await anext(requests, None)
            if first is None:
                return
            session = self._open_streams(first)
            try:
                with self._calls.appending_to(session.epoch.number):
                    async for answer in self._answers(session, requests):
                        yield answer
            finally:
                self._replay.close_streams(session.epoch)

    async def Sample(self, request_iterator: AsyncIterator[bytes], context: Context) -> AsyncIterator[Outgoing]:
        """Draw batches as credit and the rate limiter allow."""
        with self._calls.running():
            requests = read_each(pb.SampleRequest, request_iterator)
            first = await anext(requests, None)
            if first is None:
                return
            opened = self._open_sample(first)
            with ExitStack() as ending:
                if opened.mirror is not None:
                    ending.callback(opened.mirror.close)
                queue = SampleQueue(opened.batch_size)
                changed, log_removed = self._admission.changed, self._replay.log_removed
                leases = Leases(opened.table, changed, log_removed, caller_settles=opened.caller_settles)
                ending.callback(leases.close)
                room = BatchRoom(self._replay.budget, self._admission.changed)
                ending.callback(room.release)
                grant(queue, leases, first)
                ending.callback(asyncio.create_task(read_credit(requests, queue, leases)).cancel)
                while (wanted := await queue.take()) is not None:
                    if opened.settles or opened.may_shrink:
                        data = await self._draw_asking(opened, wanted, room, leases, queue)
                    else:
                        data = await self._draw(opened, wanted, room, leases)
                    if data is None:
                        break
                    if len(data) <= opened.part_bytes:
                        message = Outgoing(data)
                        del data
                        yield message
                    else:
                        for start in range(0, len(data), opened.part_bytes):
                            end = start + opened.part_bytes
                            yield Outgoing(pack_part(data[start:end], more=end < len(data)))
                        del data
                    room.release()

    async def Export(self, raw: bytes, context: Context) -> AsyncIterator[Outgoing]:
        """Hand out items of a table as they are now."""
        request = read(pb.ExportRequest, raw)
        table = self._replay.find(request.table)
        max_age = request.max_age if request.HasField("max_age") else None
        choose = partial(TableExport, table, request.newest, request.min_age, max_age, *times_of(request))
        with self._calls.running(), self._replay.memory.holding(choose) as export:
            try:
                async for part in exported_parts(table, export, self._replay, self._blobs):
                    yield Outgoing(part)
            finally:
                export.close()
                self._admission.changed()

    async def _answers(
        self, session: AppendSession, requests: AsyncIterator[pb.AppendRequest]
    ) -> AsyncIterator[pb.AppendResponse]:
        """Acknowledge what is stored already, then each message once it may be."""
        answer = self._acknowledge(session)  # of what is stored now: not all that comes later may be durable
        await self._durable()
        yield answer
        if self._log is None:
            async for _, answer in self._store(session, requests):
                yield answer
        else:
            async for answer in acknowledge_in_order(self._store(session, requests), self._log.commits.durable):
                yield answer

    async def _draw(self, opened: OpenedSample, wanted: SampleDemand, room: BatchRoom, leases: Leases) -> bytes:
        table = opened.table
        table.check_there()
        if opened.epochs is not None:
            table.check_epochs()  # or it might wait for samples that it may no longer draw
        if wanted.seed is not None:
            self._batches.check_intact(table)  # or it might wait for steps that are lost
        if wanted.at_step_count is not None:
            await self._clock.reach(wanted.at_step_count)
        if wanted.items:
            sample, eras, counted = await self._batches.read(opened, wanted, room)
            number = leases.sent(sample, eras, counted)
            stored = self._stored_steps(table)
            epoch = opened.epochs.place if opened.epochs is not None else None
            counts = opened.item_counts
            sample, spans = self._traces.drawn(table, sample)
            data = pack_sample(sample, stored, table.limiter.diff, item_counts=counts, number=number, epoch=epoch)
            for span in spans:
                span.end()
            return data
        table.limiter.sampled(wanted.counted_by(table.limiter) or 0)
        self._admission.changed()
        stored = self._stored_steps(table)
        return pb.SampleResponse(
            table_items=table.size,
            total_weight=table.total_weight,
            env_steps=stored.env_steps,
            limiter_diff=table.limiter.diff,
            store_id=stored.store_id,
            count_id=stored.count_id,
        ).SerializeToString()

    async def _draw_asking(
        self, opened: OpenedSample, wanted: SampleDemand, room: BatchRoom, leases: Leases, queue: SampleQueue
    ) -> bytes | None:
        """Draw a batch for a caller who may want a smaller one, or none, before it comes.

        None, with nothing drawn, once a caller that settles grants no more: it could not settle it.
        """
        while True:
            drawing = asyncio.ensure_future(self._draw(opened, wanted, room, leases))
            closed = asyncio.ensure_future(queue.closed()) if opened.settles else None
            smaller = asyncio.ensure_future(queue.smaller.wait()) if opened.may_shrink else None
            tasks = [task for task in (drawing, closed, smaller) if task is not None]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if closed is not None and closed.done():
                    await closed
                    return None
                if drawing.done():
                    queue.smaller.clear()  # it was for this batch, which is whole
                    return await drawing
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            room.release()  # what was drawn, but not read, is back in the table
            queue.smaller.clear()
            if items := opened.table.fewer(wanted.items, opened.without_replacement):
                wanted = replace(wanted, items=items, first=True)

    async def _create(self, config: TableConfig, *, redeclare: bool) -> bool:
        async with self._configuring:
            if (found := self._replay.redeclared(config, redeclare=redeclare)) is not None:
                with contextlib.suppress(NotFound):  # dropped meanwhile: it is made again
                    await self._in_parts(self._replay.shrink(*found))
            before = {table.config.name: table.config for table in self._replay.tables}.get(config.name)
            created = self._replay.create_table(config, redeclare=redeclare)
            table = self._replay.find(config.name)
            if table.config != before:
                self._admission.changed()  # it may have another rate limiter now
                self._created[config.name] = self._replay.sequence
                if before is not None:
                    limiter = describe_limiter(table.config.rate_limiter, is_on=table.limiter.is_on)
                    changes = {"max_items": table.config.max_items, "limiter": limiter}
                    _log.info("table changed by a client's settings", table=config.name, **changes)
            return created

    async def _update(self, table: Table, update: TableUpdate) -> None:
        async with self._configuring:
            table.check_there()
            await self._in_parts(self._replay.shrink(table, update.applied_to(table.config)))
            self._replay.update_table(table, update)
            self._admission.changed()
            _log.info("table changed", table=table.config.name, **update.values)

    async def _in_parts(self, parts: Iterator[int]) -> int:
        """Make a change of a table part by part, between which others act; return the sum of what the parts yield."""
        total = 0
        for count in parts:
            total += count
            self._admission.changed()
            await asyncio.sleep(0)
            if self._log is not None:
                await self._log.commits.room()
        return total

    async def _whole(self, method: str, change: Coroutine[Any, Any, T]) -> T:
        """Make a change of a table to its end, also if the time of its caller, who called a method, is up."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await finished(task, method)

    def _corrupt_records(self) -> int:
        return self._log.corrupt_records if self._log is not None else 0

    def _describe(self, table: Table) -> pb.TableDescription:
        return pack_description(describe(table, self._replay, self._admission, self._log))

    def _open_streams(self, request: pb.AppendRequest) -> AppendSession:
        if request.WhichOneof("message") != "open":
            raise InvalidArgument("the first message of Append must be `open`")
        opening = request.open
        signature = unpack_signature(opening.signature)
        check_signature(signature)
        return self._replay.open_streams(
            opening.actor_id, opening.epoch, opening.env_count, opening.tables, signature, opening.chunk_length
        )

    async def _append(self, session: AppendSession, request: pb.AppendRequest) -> None:
        if request.WhichOneof("message") != "data":
            raise InvalidArgument("every message of Append after the first must be `data`")
        received_ns = time.time_ns() if request.data.traceparent else 0
        chunks, items = unpack_append(request.data)
        planned = plan_append(session, chunks, items)
        if request.data.HasField("at_step_count") and planned.chunks:
            with self._held(request):
                await self._clock.reach(request.data.at_step_count)

        def store() -> None:  # all that follows from it at once: the call may be cancelled before it runs again
            stored = self._replay.append(session, planned, chunks, items)
            record = self._replay.sequence
            self._clock.advanced()
            self._note_env_steps(*session.tables)
            if request.data.traceparent:
                self._traces.stored(request.data.traceparent, received_ns, stored.inserted, self._durable(record))

        with self._held(request) if self._admission.would_wait(planned.tables) else contextlib.nullcontext():
            await self._admission.insert(planned.tables, store)
        if self._replay.memory.evictions and not self._told_of_evictions:
            self._told_of_evictions = True
            _log.warning("memory is full: tables evict items", remedy="raise max_memory_mib or lower max_items")

    @contextlib.contextmanager
    def _held(self, request: pb.AppendRequest) -> Iterator[None]:
        """Count a message while it waits. ResourceExhausted: too much waits already."""
        size, budget = _COPIES * request.ByteSize(), self._replay.budget
        budget.hold_message(size)
        try:
            yield
        finally:
            budget.message_bytes -= size

    async def _store(
        self, session: AppendSession, requests: AsyncIterator[pb.AppendRequest]
    ) -> AsyncIterator[tuple[int, pb.AppendResponse]]:
        """Store messages as they come; yield the log's record and the acknowledgement of each."""
        async for request in requests:
            if self._log is not None and not self._log.commits.has_room:
                with self._held(request):
                    await self._log.commits.room()
            await self._append(session, request)
            yield self._replay.sequence, self._acknowledge(session)

    def _stored_steps(self, table: Table) -> StoredSteps:
        return self._log.stored_steps(table) if self._log is not None else self._replay.stored_steps(table)

    def _note_env_steps(self, *tables: Table) -> None:
        """Have the counts of tables told once what was logged so far is durable."""
        if self._log is not None:
            counts = {table: self._replay.stored_steps(table) for table in tables}
            self._log.commits.stored(self._replay.sequence, counts)

    async def _durable(self, record: int | None = None) -> None:
        """Wait until a record of the log and all before it may be acknowledged; by default everything so far."""
        if self._log is not None:
            await self._log.commits.durable(self._replay.sequence if record is None else record)

    def _acknowledge(self, session: AppendSession) -> pb.AppendResponse:
        epoch = session.epoch
        return pb.AppendResponse(
            epoch=epoch.number,
            next_steps=epoch.next_steps(),
            env_steps=session.tables[0].counters.env_steps,
            superseded_epoch=epoch.superseded,
            max_request_bytes=self._max_request_bytes,
        )

    def _open_sample(self, request: pb.SampleRequest) -> OpenedSample:
        if not request.HasField("open"):
            raise InvalidArgument("the first message of Sample must have `open`")
        opening = request.open
        check_range("batch_size", opening.batch_size, 1, MAX_BATCH_SIZE)
        table = self._replay.find(opening.table)
        steps = opening.batch_size * table.config.max_item_steps
        if steps > MAX_BATCH_STEPS:
            raise InvalidArgument(
                f"batch_size is {opening.batch_size}, for items of up to {table.config.max_item_steps} steps "
                f"it must be at most {MAX_BATCH_STEPS // table.config.max_item_steps}"
            )
        table.check_batch_size(opening.batch_size, opening.without_replacement)
        epochs = None
        if opening.HasField("epoch"):
            table.check_epochs()
            epochs = Epochs(unpack_epoch(opening.epoch))
        takes_parts = bool(opening.max_message_bytes)
        if takes_parts and opening.max_message_bytes < _LEAST_PART_BYTES:
            raise InvalidArgument(
                f"max_message_bytes is {opening.max_message_bytes}, must be 0 or at least {_LEAST_PART_BYTES}"
            )
        message_bytes = min(opening.max_message_bytes or self._max_message_bytes, self._max_message_bytes)
        return OpenedSample(
            table=table,
            batch_size=opening.batch_size,
            without_replacement=opening.without_replacement,
            mirror=_open_mirror(opening, table) if opening.HasField("mirror") else None,  # last, for it is to be closed
            slot_steps=opening.mirror.slot_steps,
            item_counts=opening.item_counts,
            most_bytes=MAX_BATCH_BYTES if takes_parts else int(message_bytes * _MESSAGE_MARGIN),
            part_bytes=message_bytes - _PART_MARGIN if takes_parts else MAX_BATCH_BYTES,
            caller_settles=opening.settles,
            rng=np.random.default_rng(opening.seed) if opening.HasField("seed") else None,
            allow_smaller=opening.allow_smaller,
            epochs=epochs,
        )


def _open_mirror(opening: pb.SampleOpen, table: Table) -> ChunkMirror:
    asked = opening.mirror
    check_range("mirror.slot_steps", asked.slot_steps, 1, MAX_CHUNK_LENGTH)
    check_range("mirror.hold", asked.hold, 0, _MAX_HOLD)
    least = least_slots(opening.batch_size, table.config.max_item_steps, asked.slot_steps, asked.hold)
    if not least <= asked.slots <= _MAX_SLOTS:
        raise InvalidArgument(
            f"mirror.slots is {asked.slots}, must be {least} .. {_MAX_SLOTS} for batches of {opening.batch_size} items "
            f"of up to {table.config.max_item_steps} steps, mirror.slot_steps {asked.slot_steps} and hold {asked.hold}"
        )
    return ChunkMirror(table.store, asked.slots, asked.hold)


def _parts_of(keys: Sequence[int]) -> list[slice]:
    """Return the parts of a list that are worked off one after the other."""
    if len(keys) > MAX_KEYS:
        raise InvalidArgument(f"keys has {len(keys)} entries, must have at most {MAX_KEYS}")
    return [slice(start, min(start + _KEYS_AT_ONCE, len(keys))) for start in range(0, len(keys), _KEYS_AT_ONCE)]


async def _pause(part: slice) -> None:
    """Give others their turn after a part that was not the whole."""
    if part.start or part.stop == _KEYS_AT_ONCE:
        await asyncio.sleep(0)
