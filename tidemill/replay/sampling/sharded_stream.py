"""The sampling side of the replay client over several shards: batches as from one table."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tidemill.logger import LateLogger
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.pending_batch import PendingBatch
from tidemill.replay.sampling.sample_call import SampleCall
from tidemill.replay.sampling.shard import Shard, ShardReport
from tidemill.replay.sampling.shard_priorities import ShardedPriorities
from tidemill.replay.sampling.sharded_table import ShardedTable, ShardRequest
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import SelectorKind, TableConfig, shard_config
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import unpack_sample, unpack_stored
from tidemill.rpc.channel import MAX_MESSAGE_BYTES

SILENT_S = 8.0
"""A shard that answers nothing for so long is left out until it answers again, in seconds."""

_TICK_S = 0.05
_LOOK_S = 0.5  # how old the knowledge about a shard may be while nothing is drawn from it
_DEADLINE_S = 5.0  # of unary calls to a shard
_OPENING_S = 5.0  # longest wait for all shards before the first batch

_RANDOM = (SelectorKind.UNIFORM, SelectorKind.PRIORITIZED)

_log = LateLogger()


class ShardedSampleStream:
    """Batches of a table that is spread over shards, each in proportion to its weight, received ahead of use.

    Items have the probability with which they were drawn from all shards together, and keys [B, 2]: the key, and the
    number of the shard it belongs to, for `client_of`. At most `max_in_flight_batches` are under way or ready. A shard
    whose connection breaks, or that is silent for `SILENT_S`, is left out at once; the others make up for what it was
    to give. With `max_times_sampled` batches that hold something of it are drawn again: its items are in its table
    again, and what others gave for them is returned. It is taken back with its first answer, and the table is created
    there if it is lost. Every method may be called from any thread.
    """

    def __init__(  # noqa: PLR0913 - each is one decision of the caller
        self,
        directory: ShardDirectory,
        table: TableConfig,
        shard_count: int,
        batch_size: int,
        *,
        rng: np.random.Generator,
        max_in_flight_batches: int = 4,
        without_replacement: bool = False,
        mirror: TableMirror | None = None,
        item_counts: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start connecting in the background.

        Args:
            directory: The shards; stays the caller's to close.
            table: The whole table; each shard gets its part, see `shard_config`.
            shard_count: Over how many shards it is divided, the same for everybody who creates it.
            batch_size: See `ReplaySampler`.
            rng: Source of all splits.
            max_in_flight_batches: See `ReplaySampler`.
            without_replacement: See `ReplaySampler`.
            mirror: See `ReplaySampler`; has a part for each shard.
            item_counts: See `ReplaySampler`.
            max_message_bytes: See `ReplaySampler`.
            clock: Monotonic time in seconds.
        """
        self._directory, self._part = directory, shard_config(table, shard_count)
        self._batch_size, self._max_in_flight, self._without_replacement = (
            batch_size,
            max_in_flight_batches,
            without_replacement,
        )
        self._most = _largest_draw(self._part, batch_size, without_replacement)
        self._is_random, self._rng, self._clock = table.sampler.kind in _RANDOM, rng, clock
        self._changed = threading.Condition()  # guards everything below
        self._table_state = ShardedTable(table, shard_count, rng, without_replacement=without_replacement)
        self._shards: dict[str, Shard] = {}
        self._mirror, self._item_counts = mirror, item_counts
        self._max_message_bytes, self._settles = max_message_bytes, bool(table.max_times_sampled)
        self._free_parts = list(range(mirror.parts)) if mirror is not None else []
        self._incarnations: list[str] = []  # shard of each incarnation number
        self._underway: list[PendingBatch] = []
        self._ready: deque[PendingBatch] = deque()
        self._reconnects = 0
        self._open_at_s: float | None = clock() + _OPENING_S
        self._error: BaseException | None = None
        self._closed = threading.Event()
        self._priorities = ShardedPriorities(table, self.client_of)
        self._thread = threading.Thread(target=self._run, name=f"sample-shards-{table.name}", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if it takes longer than `timeout_s` seconds or the stream was closed.

        Raises:
            TidemillError: a shard refused for good, such as one that has the table with another configuration.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error or self._closed.is_set(), timeout_s)
            if self._closed.is_set():
                return None
            if self._error is not None:
                raise self._error
            if not self._ready:
                return None
            pending = self._ready.popleft()
            if self._settles:
                for _, name, answer in pending.answers:
                    self._shards[name].call.send(pb.SampleRequest(taken=[answer.number]))
            items, total_weight, rotation = (
                self._table_state.items,
                self._table_state.total_weight,
                int(self._rng.integers(self._batch_size)),
            )
            stored = {name: shard.stored for name, shard in self._shards.items() if shard.stored is not None}
            self._advance()
        return pending.batch(
            table_items=items, total_weight=total_weight, rotation=rotation, random=self._is_random, stored=stored
        )

    def client_of(self, incarnation: int) -> ReplayClient | None:
        """Return the client of the shard that keys of this number belong to; None if it is not live or lost them."""
        with self._changed:
            shard = self._shards.get(self._incarnations[incarnation])
            return shard.call.client if shard and shard.live and shard.incarnation == incarnation else None

    def reports(self) -> tuple[ShardReport, ...]:
        """Return every shard as it is now, those that do not answer included, in order of name."""
        with self._changed:
            states = self._table_state.states
            return tuple(
                ShardReport(
                    name,
                    shard.address,
                    shard.live,
                    states[name].items if shard.live else 0,
                    states[name].total_weight if shard.live else 0.0,
                    shard.samples,
                )
                for name, shard in sorted(self._shards.items())
            )

    def ask_smaller(self) -> None:
        """Do nothing: batches of several servers are whole."""

    def update_priorities(
        self,
        keys: NDArray[np.uint64],
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        deadline_s: float | None = None,  # noqa: ARG002 - as of `SampleStream`
    ) -> None:
        """Send the priorities [N] of items by key [N, 2], see `ShardedPriorities.send`; never waits."""
        self._priorities.send(keys, priorities, fencing_token)

    def delete_items(self, keys: NDArray[np.uint64]) -> None:
        """Remove items by key [N, 2], see `ReplayClient.delete_items`; those of an unavailable shard stay."""
        for incarnation in np.unique(keys[:, 1]).tolist():
            if client := self.client_of(incarnation):
                client.delete_items(self._part.name, keys[keys[:, 1] == incarnation, 0])

    @property
    def reconnects(self) -> int:
        """How often a shard's call was lost and opened again, all shards together."""
        return self._reconnects

    @property
    def priorities_dropped(self) -> int:
        """Priorities that were not delivered because their shard was unavailable or behind."""
        return self._priorities.dropped

    @property
    def unknown_keys(self) -> int:
        """Priorities that were delivered when their item had left its table."""
        return self._priorities.unknown_keys

    def close(self) -> None:
        """End every call and thread, within a bounded time. May be called twice."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
            calls = [shard.call for shard in self._shards.values()]
        self._priorities.close()
        self._thread.join(SILENT_S)
        for call in calls:  # all at once: silent servers are waited for together
            call.stop()
        for call in calls:
            call.close()

    def opened(self, call: SampleCall, created: bool) -> None:
        """Ask a shard how it is; keys of a table that it lost are no longer its own (`SampleCallOwner`)."""
        with self._changed:
            if (shard := self._of(call)) is None:
                return
            if created:
                shard.incarnation = self._new_incarnation(call.name)
            self._reconnects += shard.was_connected
            shard.connected, shard.was_connected, shard.heard_s = True, True, self._clock()
            look = ShardRequest(call.name, 0, 0)
            shard.asked.append((look, None))
            call.send(_request(look))

    def answered(self, call: SampleCall, answer: pb.SampleResponse) -> None:
        """Take an answer, and draw what it allows (`SampleCallOwner`)."""
        batch = self._received(call, answer)
        with self._changed:
            if (shard := self._of(call)) is None:
                return
            draw, pending = shard.asked.popleft()
            shard.heard_s, shard.stored = self._clock(), unpack_stored(answer)
            shard.samples += len(answer.keys)
            if not shard.live:
                shard.live = True
                self._table_state.join(call.name)
                self._table_state.asked(draw)
                _log.info("sampling from a replay shard", shard=call.name, address=shard.address)
            self._table_state.answered(draw, answer.table_items, answer.total_weight, answer.limiter_diff)
            if pending is not None:
                self._take_part(pending, draw, shard.incarnation, batch)
            self._advance()

    def lost(self, call: SampleCall) -> None:
        """Leave a shard out, and have the others make up for what it did not give (`SampleCallOwner`)."""
        with self._changed:
            if (shard := self._of(call)) is None:
                return
            if shard.live and not self._closed.is_set():
                _log.warning("a replay shard is left out", shard=call.name, address=shard.address)
            self._table_state.leave(call.name)
            made_up = shard.end_call()
            if self._settles:
                for pending in [*self._underway, *self._ready]:
                    if any(name == call.name for _, name, _ in pending.answers):
                        self._give_up(pending)
            for pending, draws in made_up:
                self._make_up(pending, draws)
            self._advance()

    def failed(self, error: BaseException) -> None:
        """Keep what ended the calls to a shard for good; `take` raises it (`SampleCallOwner`)."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _of(self, call: SampleCall) -> Shard | None:
        shard = self._shards.get(call.name)
        return shard if shard is not None and shard.call is call else None

    def _received(self, call: SampleCall, answer: pb.SampleResponse) -> SampledBatch:
        """Return an answer's items; their rows are kept in the order in which the shard sends them."""
        if self._mirror is None or not answer.keys:
            return unpack_sample(answer)
        with self._changed:
            shard = self._of(call)
        batch = unpack_sample(answer, mirrored=True)
        return self._mirror.keep(batch, shard.mirror_part) if shard is not None else batch

    def _take_part(self, pending: PendingBatch, draw: ShardRequest, incarnation: int, batch: SampledBatch) -> None:
        pending.answer(draw, incarnation, batch)
        if self._settles and draw.items and pending not in self._underway:
            self._shards[draw.shard].call.send(pb.SampleRequest(returned=[batch.number]))
        if pending.is_complete and pending in self._underway:
            self._underway.remove(pending)
            self._ready.append(pending)
            self._changed.notify_all()

    def _make_up(self, pending: PendingBatch, lost: list[ShardRequest]) -> None:
        if pending not in self._underway:
            return
        plan = self._table_state.replan(pending.plan, lost)
        if plan is None:
            self._give_up(pending)  # nobody is left who could; the batch is drawn again from scratch
            return
        pending.replace(lost, plan)
        for draw in plan.draws:
            self._ask(draw, pending)

    def _give_up(self, pending: PendingBatch) -> None:
        """Forget a batch, and return what the shards that are connected gave for it."""
        if pending in self._underway:
            self._underway.remove(pending)
        if pending in self._ready:
            self._ready.remove(pending)
        for _, name, answer in pending.answers if self._settles else ():
            shard = self._shards.get(name)
            if shard is not None and shard.connected:
                shard.call.send(pb.SampleRequest(returned=[answer.number]))

    def _advance(self) -> None:
        """Ask for as many batches as the credit and the table allow."""
        if self._open_at_s is not None or self._closed.is_set():
            return
        while len(self._underway) + len(self._ready) < self._max_in_flight:
            plan = self._table_state.plan(self._batch_size)
            if plan is None:
                return
            pending = PendingBatch.of(plan)
            self._underway.append(pending)
            for draw in plan.draws:
                self._ask(draw, pending)

    def _ask(self, draw: ShardRequest, pending: PendingBatch | None) -> None:
        shard = self._shards[draw.shard]
        if not shard.asked:
            shard.heard_s = self._clock()  # silence counts from the first thing that is not answered
        shard.asked.append((draw, pending))
        self._table_state.asked(draw)
        shard.call.send(_request(draw))

    def _run(self) -> None:
        try:
            while not self._closed.wait(_TICK_S):
                with self._changed:
                    self._follow_directory()
                    self._tick(self._clock())
        except BaseException as error:  # raised by `take`
            self.failed(error)

    def _tick(self, now_s: float) -> None:
        held_back = self._table_state.is_held_back
        for name, shard in self._shards.items():
            if not shard.connected:
                continue
            silent_s = now_s - shard.heard_s
            if shard.asked and silent_s > SILENT_S:
                shard.heard_s = now_s
                shard.call.cut()
            elif shard.live and not shard.asked and (held_back or silent_s > _LOOK_S):
                self._ask(self._table_state.probe(name), None)
        if self._open_at_s is not None:
            all_live = bool(self._shards) and all(shard.live for shard in self._shards.values())
            if all_live or now_s > self._open_at_s:
                self._open_at_s = None
        self._advance()

    def _follow_directory(self) -> None:
        current = self._directory.current
        for name, address in current.items():
            if name not in self._shards and (self._mirror is None or self._free_parts):
                size = self._mirror.size if self._mirror is not None else None
                call = SampleCall(
                    name,
                    address,
                    self._part,
                    self._most,
                    self._without_replacement,
                    self,
                    size,
                    _DEADLINE_S,
                    item_counts=self._item_counts,
                    settles=self._settles,
                    max_message_bytes=self._max_message_bytes,
                )
                part = self._free_parts.pop(0) if self._mirror is not None else 0  # none: until another shard has gone
                self._shards[name] = Shard(address, call, self._new_incarnation(name), mirror_part=part)
                call.start()
        for name in [name for name, shard in self._shards.items() if name not in current and not shard.connected]:
            gone = self._shards.pop(name)
            if self._mirror is not None:
                self._free_parts.append(gone.mirror_part)
            threading.Thread(target=gone.call.close, name=f"close-{name}", daemon=True).start()

    def _new_incarnation(self, shard: str) -> int:
        self._incarnations.append(shard)
        return len(self._incarnations) - 1


def _request(draw: ShardRequest) -> pb.SampleRequest:
    return pb.SampleRequest(draws=[pb.Draw(items=draw.items, counted=draw.counted)])


def _largest_draw(part: TableConfig, batch_size: int, without_replacement: bool) -> int:
    """Return the most items of a batch that a shard's part of the table can give."""
    is_limited = without_replacement or part.max_times_sampled
    return min(batch_size, part.max_items) if is_limited else batch_size
