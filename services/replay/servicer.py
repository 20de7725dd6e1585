"""The replay API: unpacks a request, makes one call to the state, packs the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc.aio
import numpy as np
import structlog

from tidemill.errors import InvalidArgument, TidemillError, Unimplemented
from tidemill.replay.chunk import check_priorities
from tidemill.replay.limits import MAX_KEYS
from tidemill.replay.table_config import check_signature
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import pack_description, unpack_append, unpack_config, unpack_signature
from tidemill.rpc.server import RpcServer
from tidemill.services.replay.active_streams import Calls
from tidemill.services.replay.admission import Gate
from tidemill.services.replay.append import Appending, plan
from tidemill.services.replay.batch_reader import BatchReader, BatchRoom
from tidemill.services.replay.description import describe
from tidemill.services.replay.log.commits import when_durable
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.requests import Outgoing, add_handlers, read, read_each
from tidemill.services.replay.sample_queue import Credit, Wanted
from tidemill.services.replay.state import Replay
from tidemill.services.replay.tables.sampled_items import Sample as SampledItems
from tidemill.services.replay.tables.table import Table

_log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE = "tidemill.replay.v1.ReplayService"
_MAX_BATCH_SIZE = 65_536
_MAX_BATCH_STEPS = 2**22  # where a batch lies is looked up chunk by chunk before its size is known
_MESSAGE_MARGIN = 0.9  # of a message may be blocks
_KEYS_AT_ONCE = 2**13  # between two of them others get their turn
_COPIES = 3  # a message that waits is in memory as it came, parsed and unpacked


class ReplayServicer:
    """Serves one `Replay`; calls that must wait do so in its `Gate`. Requests come as bytes, see `requests`."""

    def __init__(self, replay: Replay, gate: Gate, max_message_bytes: int, log: ReplayLog | None = None) -> None:
        """Serve a state.

        Args:
            replay: The state; nothing else may change it.
            gate: Where inserts and samples wait.
            max_message_bytes: Largest message this server can send.
            log: Where changes are written before they are acknowledged; None keeps all in memory only.
        """
        self._replay = replay
        self._gate = gate
        self._log = log
        cold = log.cold if log is not None else None
        self._batches = BatchReader(replay, gate, cold, int(max_message_bytes * _MESSAGE_MARGIN))
        self._calls = Calls()
        self._told_of_evictions = False

    def add_to(self, server: RpcServer) -> None:
        """Let a server answer with this servicer."""
        add_handlers(self, server.grpc)
        server.announce(SERVICE)

    def close(self) -> None:
        """End the streams in progress, because the server stops."""
        self._calls.close()

    async def CreateTable(self, raw: bytes, context: Context) -> pb.CreateTableResponse:
        """Create a table, or confirm an equal one."""
        before = self._replay.sequence
        created = self._replay.create_table(unpack_config(read(pb.CreateTableRequest, raw).config))
        if self._replay.sequence != before:
            self._gate.changed()  # a restored table may have another rate limiter now
            await self._durable()
        return pb.CreateTableResponse(created=created)

    async def ListTables(self, raw: bytes, context: Context) -> pb.ListTablesResponse:
        """Describe every table in order of name."""
        read(pb.ListTablesRequest, raw)
        return pb.ListTablesResponse(tables=[self._describe(t) for t in self._replay.tables])

    async def DescribeTable(self, raw: bytes, context: Context) -> pb.DescribeTableResponse:
        """Describe one table."""
        table = self._replay.find(read(pb.DescribeTableRequest, raw).name)
        return pb.DescribeTableResponse(table=self._describe(table))

    async def ResetTable(self, raw: bytes, context: Context) -> pb.ResetTableResponse:
        """Remove every item of a table and zero its counters."""
        table = self._replay.find(read(pb.ResetTableRequest, raw).name)
        removed = self._replay.reset(table)
        self._gate.forget_blocked(table)
        self._gate.changed()
        await self._durable()
        return pb.ResetTableResponse(removed=removed)

    async def UpdatePriorities(self, raw: bytes, context: Context) -> pb.UpdatePrioritiesResponse:
        """Set priorities by key."""
        request = read(pb.UpdatePrioritiesRequest, raw)
        table = self._replay.find(request.table)
        if len(request.keys) != len(request.priorities):
            raise InvalidArgument(f"priorities has {len(request.priorities)} entries, keys {len(request.keys)}")
        parts = _parts_of(request.keys)
        for part in parts:
            check_priorities(np.array(request.priorities[part]), part.start)
            await _pause(part)
        updated = 0
        for part in parts:
            keys = np.array(request.keys[part], dtype=np.uint64)
            updated += table.update_priorities(keys, np.array(request.priorities[part]))
            self._gate.changed()
            await _pause(part)
        return pb.UpdatePrioritiesResponse(updated=updated, unknown=len(request.keys) - updated)

    async def DeleteItems(self, raw: bytes, context: Context) -> pb.DeleteItemsResponse:
        """Remove items by key."""
        request = read(pb.DeleteItemsRequest, raw)
        table = self._replay.find(request.table)
        deleted = 0
        for part in _parts_of(request.keys):
            deleted += self._replay.delete(table, np.array(request.keys[part], dtype=np.uint64))
            self._gate.changed()
            await _pause(part)
        await self._durable()
        return pb.DeleteItemsResponse(deleted=deleted, unknown=len(request.keys) - deleted)

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
        requests = read_each(pb.AppendRequest, request_iterator)
        first = await anext(requests, None)
        if first is None:
            return
        appending = self._open_streams(first)
        try:
            with self._calls.running(appending.epoch.number):
                answer = self._acknowledge(appending)  # of what is stored now: not all that comes later may be durable
                await self._durable()
                yield answer
                if self._log is None:
                    async for _, answer in self._store(appending, requests):
                        yield answer
                else:
                    async for answer in when_durable(self._store(appending, requests), self._log.commits.durable):
                        yield answer
        finally:
            self._replay.close_streams(appending.epoch)

    async def Sample(self, request_iterator: AsyncIterator[bytes], context: Context) -> AsyncIterator[Outgoing]:
        """Draw batches as credit and the rate limiter allow."""
        requests = read_each(pb.SampleRequest, request_iterator)
        first = await anext(requests, None)
        if first is None:
            return
        table, batch_size, distinct = self._open_sample(first)
        credit = Credit(batch_size)
        _grant(credit, first)
        reading = asyncio.create_task(_read_credit(requests, credit))
        room = BatchRoom(self._replay.budget, self._gate.changed)
        try:
            with self._calls.running():
                while (wanted := await credit.take()) is not None:
                    yield Outgoing(await self._draw(table, wanted, distinct, room))
                    room.release()
        finally:
            reading.cancel()
            room.release()

    async def _draw(self, table: Table, wanted: Wanted, distinct: bool, room: BatchRoom) -> pb.SampleResponse:
        if wanted.items:
            sample = await self._batches.read(table, wanted, distinct, room)
            return _pack_sample(sample, self._env_steps, table.limiter.lead, self._replay.history)
        table.limiter.sampled(wanted.counted_by(table.limiter) or 0)
        self._gate.changed()
        return pb.SampleResponse(
            table_items=table.size,
            priority_mass=table.priority_mass,
            env_steps=self._env_steps,
            limiter_lead=table.limiter.lead,
            history=self._replay.history,
        )

    def _describe(self, table: Table) -> pb.TableDescription:
        return pack_description(describe(table, self._replay, self._gate, self._log))

    def _open_streams(self, request: pb.AppendRequest) -> Appending:
        if request.WhichOneof("message") != "open":
            raise InvalidArgument("the first message of Append must be `open`")
        opening = request.open
        signature = unpack_signature(opening.signature)
        check_signature(signature)
        return self._replay.open_streams(
            opening.actor_id, opening.epoch, opening.env_count, opening.tables, signature, opening.chunk_length
        )

    async def _append(self, appending: Appending, request: pb.AppendRequest) -> None:
        if request.WhichOneof("message") != "data":
            raise InvalidArgument("every message of Append after the first must be `data`")
        chunks, items = unpack_append(request.data)
        planned = plan(appending, chunks, items)
        with self._held(request) if self._gate.would_wait(planned.tables) else contextlib.nullcontext():
            await self._gate.insert(planned.tables, lambda: self._replay.append(appending, planned, chunks, items))
        if self._replay.memory.evictions and not self._told_of_evictions:
            self._told_of_evictions = True
            _log.warning("memory is full: tables give up items", remedy="raise max_memory_mib or lower max_items")

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
        self, appending: Appending, requests: AsyncIterator[pb.AppendRequest]
    ) -> AsyncIterator[tuple[int, pb.AppendResponse]]:
        """Store messages as they come; yield the log's record and the acknowledgement of each."""
        async for request in requests:
            if self._log is not None and not self._log.commits.has_room:
                with self._held(request):
                    await self._log.commits.room()
            await self._append(appending, request)
            if self._log is not None:
                self._log.commits.stored(self._replay.sequence, self._replay.env_steps)
            yield self._replay.sequence, self._acknowledge(appending)

    @property
    def _env_steps(self) -> int:
        """Agent decisions stored for good: a count that a restart does not take back."""
        return self._log.commits.env_steps if self._log is not None else self._replay.env_steps

    async def _durable(self) -> None:
        """Wait until everything so far may be acknowledged."""
        if self._log is not None:
            await self._log.commits.durable(self._replay.sequence)

    def _acknowledge(self, appending: Appending) -> pb.AppendResponse:
        epoch = appending.epoch
        return pb.AppendResponse(
            epoch=epoch.number,
            next_steps=epoch.next_steps(),
            env_steps=self._replay.env_steps,
            superseded_epoch=epoch.superseded,
        )

    def _open_sample(self, request: pb.SampleRequest) -> tuple[Table, int, bool]:
        if not request.HasField("open"):
            raise InvalidArgument("the first message of Sample must have `open`")
        opening = request.open
        if not 1 <= opening.batch_size <= _MAX_BATCH_SIZE:
            raise InvalidArgument(f"batch_size is {opening.batch_size}, must be 1 .. {_MAX_BATCH_SIZE}")
        table = self._replay.find(opening.table)
        steps = opening.batch_size * table.config.max_item_steps
        if steps > _MAX_BATCH_STEPS:
            raise InvalidArgument(
                f"batch_size is {opening.batch_size}, for items of up to {table.config.max_item_steps} steps "
                f"it must be at most {_MAX_BATCH_STEPS // table.config.max_item_steps}"
            )
        table.check_batch_size(opening.batch_size, opening.without_replacement)
        return table, opening.batch_size, opening.without_replacement


def _grant(credit: Credit, request: pb.SampleRequest) -> None:
    credit.grant(request.credit)
    for draw in request.draws:
        credit.draw(draw.items, draw.counted)


async def _read_credit(requests: AsyncIterator[pb.SampleRequest], credit: Credit) -> None:
    try:
        async for request in requests:
            if request.HasField("open"):
                raise InvalidArgument("`open` is set again, must be set in the first message of Sample only")
            _grant(credit, request)
    except TidemillError as error:
        credit.close(error)
    else:
        credit.close()


def _parts_of(keys: Sequence[int]) -> list[slice]:
    """Return the parts of a list that are worked off one after the other."""
    if len(keys) > MAX_KEYS:
        raise InvalidArgument(f"keys has {len(keys)} entries, must have at most {MAX_KEYS}")
    return [slice(start, min(start + _KEYS_AT_ONCE, len(keys))) for start in range(0, len(keys), _KEYS_AT_ONCE)]


async def _pause(part: slice) -> None:
    """Give others their turn after a part that was not the whole."""
    if part.start or part.stop == _KEYS_AT_ONCE:
        await asyncio.sleep(0)


def _pack_sample(sample: SampledItems, env_steps: int, limiter_lead: float, history: int) -> pb.SampleResponse:
    """Return the message of a sample; lists are converted whole, never item by item."""
    message = pb.SampleResponse(
        keys=sample.keys.tolist(),
        probabilities=sample.probabilities.tolist(),
        first_rows=sample.first_rows.tolist(),
        lengths=sample.lengths.tolist(),
        payloads=sample.payloads,
        table_items=sample.table_items,
        priority_mass=sample.priority_mass,
        env_steps=env_steps,
        limiter_lead=limiter_lead,
        history=history,
    )
    chunks = message.chunks  # filled in place: a message given to another's constructor is copied
    chunks.step_counts.extend(sample.step_counts.tolist())
    chunks.params_versions.extend(sample.params_versions.tolist())
    for column in sample.blocks:
        chunks.columns.add(data=column.data, sizes=column.sizes.tolist())
    return message
