"""Batches of one table of one or several servers, received ahead of use."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tidemill.errors import FatalError, InvalidArgument
from tidemill.logger import LateLogger
from tidemill.replay.argument_types import check_range
from tidemill.replay.batch import EpochPlace, Lease, SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.limits import LEAST_MESSAGE_BYTES, MAX_DRAWS
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.one_server import OneServer
from tidemill.replay.sampling.pending_batch import PendingBatch
from tidemill.replay.sampling.plan import Draw
from tidemill.replay.sampling.priority_calls import PriorityCalls
from tidemill.replay.sampling.sample_call import SampleCall
from tidemill.replay.sampling.schedule import Schedule
from tidemill.replay.sampling.shard import Shard
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.replay.sampling.sharded_table import ShardedTable
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import SelectorKind, TableConfig, shard_config
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import unpack_sample
from tidemill.rpc.channel import DEADLINE_S, MAX_MESSAGE_BYTES
from tidemill.rpc.settings import GRPC_MOST

SILENT_S = 8.0
"""A shard that answers nothing for so long is left out until it answers again, in seconds."""

_TICK_S = 0.05
_LOOK_S = 0.5  # how old the knowledge about a shard may be while nothing is drawn from it
_SHARD_DEADLINE_S = 5.0  # of unary calls to a shard
_OPENING_S = 5.0  # longest wait for all shards before the first batch

_RANDOM = (SelectorKind.UNIFORM, SelectorKind.PRIORITIZED)

_log = LateLogger()


def check_seed(seed: int | None) -> None:
    """Raise InvalidArgument unless it may be a seed, TypeError unless it is an integer or None."""
    if seed is not None:
        check_range("seed", seed, 0, 2**64 - 1)


def seed_of(seed: int, part: int) -> int:
    """Return the seed, 0 to 2**64 - 1, of one of several parts that are drawn by one."""
    return int(np.random.SeedSequence([seed, part]).generate_state(1, np.uint64)[0])


class SampleStream:
    """Batches of a table, of which at most `max_in_flight_batches` are under way or ready.

    A planner decides what each server is asked for: `OneServer` where a single one has the whole table, which holds
    samples back itself, and `ShardedTable` where several have a part each. When a call breaks, the batches under way
    are lost and count as sampled, and the table is created again if the server lost it. With `max_times_sampled` the
    items of batches that were not taken are in the table again when a call breaks or is closed, so what is ready then
    is dropped, and drawn again. With `lends`, so are those of batches whose lease is not settled. Every method may be
    called from any thread; each batch goes to one of them.

    Of several servers items have the probability with which they were drawn from all of them together, and keys [B, 2]:
    the key, and the number of the shard it belongs to, for `client_of`. A shard whose connection breaks, or that is
    silent for `SILENT_S`, is left out at once; one of a queue may wait longer, for items that no other shard has. The
    others make up for what it was to give, and with `max_times_sampled` what they gave for batches that are dropped is
    returned. It is taken back with its first answer.

    With a schedule each batch has a number, and the same number gives the same batch, always. The table must not change
    while batches are on their way: who writes to it has to know that all of a step count are taken. `take` and `again`
    are then called from one thread.
    """

    def __init__(  # noqa: PLR0913 - those of `ReplaySampler`, and what only a dataset asks for
        self,
        servers: ShardDirectory,
        table: TableConfig,
        batch_size: int,
        *,
        rng: np.random.Generator | None = None,
        max_in_flight_batches: int = 4,
        without_replacement: bool = False,
        mirror: TableMirror | None = None,
        item_counts: bool = False,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        seed: int | None = None,
        allow_smaller: bool = False,
        by_epoch: bool = False,
        schedule: Schedule | None = None,
        must_exist: bool = False,
        lends: bool = False,
        fencing_token: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start connecting in the background.

        Args:
            servers: Those that have the table; stay the caller's to close. Several take neither `seed`, `allow_smaller`
                and `by_epoch` nor `schedule`.
            table: The whole table; each shard gets its part, see `shard_config`.
            batch_size: See `ReplaySampler`.
            rng: Source of all splits; None for a new one.
            max_in_flight_batches: See `ReplaySampler`. 0 draws a batch once `take` asks for it, and none after it.
            without_replacement: See `ReplaySampler`.
            mirror: Keeps the rows that come, so that each step crosses the wire once; batches are then without blocks.
                Has a part for each shard.
            item_counts: See `ReplaySampler`.
            max_message_bytes: See `ReplaySampler`.
            seed: See `ReplaySampler`.
            allow_smaller: See `ReplaySampler`.
            by_epoch: See `ReplaySampler`.
            schedule: Draws each batch with its own seed at a step count, for runs in lock-step.
            must_exist: Whether a table that a server has lost ends sampling with `FatalError`, instead of being created
                again.
            lends: Whether a batch with `max_times_sampled` has a lease, to be settled when it is handed out. Otherwise
                it is handed out when it is taken.
            fencing_token: Of the learner that samples: every server refuses the priorities of older ones. 0 for none.
            clock: Monotonic time in seconds.

        Raises:
            InvalidArgument: An argument is out of range, the table cannot be drawn by epochs, or several servers get
                what takes a single one.
        """
        check_range("max_message_bytes", max_message_bytes, LEAST_MESSAGE_BYTES, GRPC_MOST)
        check_seed(seed)
        if by_epoch:
            _check_by_epoch(table)
        _check_servers(servers, takes_one=seed is not None or allow_smaller or by_epoch or schedule is not None)
        assert schedule is None or 1 <= max_in_flight_batches <= MAX_DRAWS
        # how many threads wait, if a batch is drawn for each of them alone
        self._max_in_flight, self._takers = max_in_flight_batches, None if max_in_flight_batches else 0
        self._batch_size, self._mirror, self._clock = batch_size, mirror, clock
        self._settles, self._is_random = bool(table.max_times_sampled), table.sampler.kind in _RANDOM
        self._directory, self._seed, self._schedule, self._rng = servers, seed, schedule, rng or np.random.default_rng()
        self._epoch = EpochPlace(seed if seed is not None else secrets.randbits(64)) if by_epoch else None
        self._part = shard_config(table, servers.count) if servers.is_sharded else table
        self._opening = pb.SampleOpen(
            table=table.name,
            batch_size=_largest_draw(self._part, batch_size, without_replacement) if servers.is_sharded else batch_size,
            without_replacement=without_replacement,
            mirror=mirror.size.to_message() if mirror is not None else None,
            item_counts=item_counts,
            max_message_bytes=max_message_bytes,
            settles=self._settles,
            allow_smaller=allow_smaller,
        )
        self._must_exist, self._fencing_token, self._lends = must_exist, fencing_token, lends and self._settles
        self._changed = threading.Condition()  # guards everything below
        self._shards: dict[str, Shard] = {}
        self._free_parts = list(range(mirror.parts)) if mirror is not None else []
        self._incarnations: list[str] = []  # shard of each incarnation number
        self._underway: list[PendingBatch] = []
        self._ready: deque[PendingBatch] = deque()
        self._lent: dict[PendingBatch, Lease] = {}
        self._reconnects, self._was_found, self._wants_smaller = 0, False, False  # found: the table, on any server
        self._missing_at_s: float | None = None  # when a server first lacked it, with none listed that had it
        self._error: BaseException | None = None
        self._closed = threading.Event()
        self._open_at_s: float | None = None  # until then all shards are waited for
        self._one: OneServer | None = None
        self._union: ShardedTable | None = None
        self._planner: OneServer | ShardedTable
        self._priorities = PriorityCalls(table, self.client_of)
        self._thread: threading.Thread | None = None
        if not servers.is_sharded:
            self._planner = self._one = OneServer(schedule)
            self._open_call(table.name, servers.addresses[0], DEADLINE_S)
        else:
            self._planner = self._union = ShardedTable(
                table, servers.count, self._rng, without_replacement=without_replacement
            )
            self._open_at_s = clock() + _OPENING_S
            self._thread = threading.Thread(target=self._run, name=f"sample-shards-{table.name}", daemon=True)
            self._thread.start()

    def take(self, timeout_s: float) -> SampledBatch | None:
        """Return the next batch, or None if it takes longer than `timeout_s` seconds or the stream was closed.

        Raises:
            TidemillError: A server refused for good, such as one that has the table with another configuration; or,
                with a schedule, it has lost the table.
        """
        with self._changed:
            if self._takers is not None:
                self._takers += 1
                self._max_in_flight = max(self._max_in_flight, self._takers)
                self._advance()
            try:
                self._changed.wait_for(lambda: self._ready or self._error or self._closed.is_set(), timeout_s)
            finally:  # an interrupt ends the wait, too
                if self._takers is not None:
                    self._takers -= 1
            if self._closed.is_set():
                return None
            if self._error is not None:
                raise self._error
            if not self._ready:
                return None
            pending = self._ready.popleft()
            lease = Lease(partial(self._settle, pending)) if self._lends else None
            if lease is not None:
                self._lent[pending] = lease
            elif self._settles:
                self._tell_taken(pending)
            batch = self._finish(pending)
            if self._takers is not None:
                self._max_in_flight = self._takers
            self._advance()
        return batch() if lease is None else replace(batch(), lease=lease)

    def again(self) -> None:
        """With a schedule, draw the batch that was taken last once more, and then those after it."""
        if self._one is None or self._schedule is None:
            return
        with self._changed:
            (shard,) = self._shards.values()
            self._one.again()
            self._end_call(shard)
        shard.call.cut()

    def ask_smaller(self) -> None:
        """Ask that the next batch be as large as the table can make it now; batches of several servers are whole.

        Where the server is away, or goes before it has sent a batch, it is asked once it is there again.
        """
        with self._changed:
            if self._one is not None and not self._ready:
                self._wants_smaller = True
                (shard,) = self._shards.values()
                if shard.connected:
                    shard.ask_smaller()
                    shard.send()

    def client_of(self, incarnation: int) -> ReplayClient | None:
        """Return the client of the shard that keys of this number belong to; None if it is not live or lost them.

        The client of the only server is always there: whether that is can be told by its answer alone.
        """
        with self._changed:
            if self._one is not None:
                return next(iter(self._shards.values())).call.client
            shard = self._shards.get(self._incarnations[incarnation])
            return shard.call.client if shard and shard.live and shard.incarnation == incarnation else None

    def shards(self) -> tuple[ShardReport, ...]:
        """Return every shard as it is now, silent ones included, in order of name; nothing for one server."""
        if self._union is None:
            return ()
        with self._changed:
            states = self._union.states
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

    def update_priorities(
        self,
        keys: NDArray[np.uint64],
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Set the priorities [N] of items by key, see `ReplaySampler.update_priorities`."""
        self._priorities.send(keys, priorities, fencing_token, deadline_s)

    def delete_items(self, keys: NDArray[np.uint64]) -> None:
        """Remove items by key, see `ReplayClient.delete_items`; those of an unavailable shard stay.

        Raises:
            FatalError: There is a schedule: a corrupt item ends a run in lock-step.
        """
        if self._schedule is not None:
            raise FatalError(
                f"{len(keys)} items cannot be decoded: what follows would not be what another run with this seed gives"
            )
        numbers = keys[:, 1] if keys.ndim == 2 else np.zeros(len(keys), np.uint64)
        for incarnation in np.unique(numbers).tolist():
            if client := self.client_of(incarnation):
                client.delete_items(self._part.name, keys.reshape(len(keys), -1)[numbers == incarnation, 0])

    @property
    def reconnects(self) -> int:
        """How often a server's call was lost and opened again, those of all servers together."""
        return self._reconnects

    @property
    def priorities_dropped(self) -> int:
        """Priorities that were not delivered because their shard was unavailable or behind."""
        return self._priorities.dropped

    @property
    def unknown_keys(self) -> int:
        """Priorities that were delivered to a shard when their item had left it."""
        return self._priorities.unknown_keys

    def close(self) -> None:
        """End every call and thread, and every wait, within a bounded time. May be called twice."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
            calls = [shard.call for shard in self._shards.values()]
        self._priorities.close()
        if self._thread is not None:
            self._thread.join(SILENT_S)
        for call in calls:  # all at once: silent servers are waited for together
            call.stop()
        for call in calls:
            call.close()

    def opened(self, call: SampleCall, created: bool) -> None:
        """Ask the only server for what may be under way, and a shard how it is first."""
        if self._schedule is not None:
            if created:
                raise FatalError(
                    "the replay service has lost its table: a run in lock-step needs one with a log "
                    "(replay.storage.folder)"
                )
            self._schedule.prepare(call.client)
        with self._changed:
            if (shard := self._of(call)) is None:
                return
            if created:
                shard.incarnation = self._new_incarnation(call.name)  # keys of a table that it lost are not its own
            self._reconnects += shard.was_connected
            shard.connected, shard.was_connected, shard.heard_s = True, True, self._clock()
            self._was_found, self._missing_at_s = True, None
            if self._one is not None:
                # batches that are ready are kept: what follows them is drawn by another seed, or behind their place
                seed = None if self._seed is None or self._epoch is not None else seed_of(self._seed, self._reconnects)
                call.draw_by(seed=seed, epoch=self._epoch)
                shard.live = True
                self._planner.join(call.name)
                if self._wants_smaller:
                    shard.ask_smaller()
            else:
                look = Draw(call.name, 0, 0)
                shard.asked.append((look, None))
                look.add_to(shard.next_request)
            self._advance()

    def answered(self, call: SampleCall, answer: pb.SampleResponse) -> None:
        """Take an answer, its rows in the order in which the server sends them, and draw what it allows."""
        batch = self._received(call, answer)
        with self._changed:
            if (shard := self._of(call)) is None or not shard.asked:
                return  # given up, and drawn again
            draw, pending = shard.asked.popleft()
            shard.heard_s, shard.stored = self._clock(), batch.stored[""]
            shard.newest = batch.number
            shard.samples += len(batch.keys)
            if batch.epoch is not None:
                self._epoch = batch.epoch
            if not shard.live:
                shard.live = True
                self._planner.join(call.name)
                self._planner.asked(draw)
                _log.info("sampling from a replay shard", shard=call.name, address=shard.address)
            self._planner.answered(draw, batch.table_items, batch.total_weight, batch.limiter_diff)
            if pending is not None:
                self._wants_smaller = False
                self._take_part(pending, draw, shard.incarnation, batch)
            self._advance()

    def lost(self, call: SampleCall) -> None:
        """Leave a server out, and have the others make up for what it did not give."""
        with self._changed:
            if (shard := self._of(call)) is None:
                return
            if self._union is not None and shard.live and not self._closed.is_set():
                _log.warning("replay shard lost, sampling from the others", shard=call.name, address=shard.address)
            self._end_call(shard)
            self._advance()

    def missing_s(self) -> float | None:
        """Return for how many seconds servers have lacked the table while none that had it was listed; None: one is.

        The first answer after one was listed is 0. A server that is listed may only be away for a while.
        """
        with self._changed:
            if any(shard.was_connected for shard in self._shards.values()):
                self._missing_at_s = None
                return None
            now_s = self._clock()
            self._missing_at_s = now_s if self._missing_at_s is None else self._missing_at_s
            return now_s - self._missing_at_s

    def failed(self, error: BaseException) -> None:
        """Keep what ended the calls to a server for good; `take` raises it."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _of(self, call: SampleCall) -> Shard | None:
        shard = self._shards.get(call.name)
        return shard if shard is not None and shard.call is call else None

    def _finish(self, pending: PendingBatch) -> Callable[[], SampledBatch]:
        """Create the function that assembles a batch, which can be called without the lock."""
        if self._union is None:
            assert self._one is not None
            self._one.taken()
            return pending.only
        return partial(
            pending.batch,
            table_items=self._union.items,
            total_weight=self._union.total_weight,
            rotation=int(self._rng.integers(self._batch_size)),
            random=self._is_random,
            stored={name: shard.stored for name, shard in self._shards.items() if shard.stored is not None},
        )

    def _settle(self, pending: PendingBatch) -> None:
        with self._changed:
            if self._lent.pop(pending, None) is not None:
                self._tell_taken(pending)
                self._send()

    def _tell_taken(self, pending: PendingBatch) -> None:
        for _, name, answer in pending.answers:
            if answer.number:
                self._shards[name].next_request.taken.append(answer.number)

    def _received(self, call: SampleCall, answer: pb.SampleResponse) -> SampledBatch:
        """Return an answer's items; their rows are kept in the order in which the server sends them."""
        if self._mirror is None or not answer.keys:
            return unpack_sample(answer, received_at=time.monotonic())
        with self._changed:
            shard = self._of(call)
            is_wanted = shard is not None and bool(shard.asked)
        batch = unpack_sample(answer, mirrored=True, received_at=time.monotonic())
        return self._mirror.keep(batch, shard.mirror_part) if shard is not None and is_wanted else batch

    def _take_part(self, pending: PendingBatch, draw: Draw, incarnation: int, batch: SampledBatch) -> None:
        pending.answer(draw, incarnation, batch)
        if self._settles and draw.items and pending not in self._underway:
            self._shards[draw.shard].next_request.returned.append(batch.number)
        if not pending.waiting and pending in self._underway:
            self._underway.remove(pending)
            self._ready.append(pending)
            self._changed.notify_all()

    def _end_call(self, shard: Shard) -> None:
        """Leave a server out: what it was asked for is made up for, or the batches are drawn again."""
        name = shard.call.name
        self._planner.leave(name)
        lost = shard.end_call()
        for pending in [*self._underway, *self._ready, *self._lent]:
            if self._is_void(pending, name):
                self._give_up(pending)
        for pending, draws in lost:
            self._make_up(pending, draws)

    def _is_void(self, pending: PendingBatch, lost: str) -> bool:
        """True if a pending batch has to be dropped because the call of a server of its items is over."""
        if self._schedule is not None:
            return True  # they are drawn again, in order
        return self._settles and any(name == lost and answer.number for _, name, answer in pending.answers)

    def _make_up(self, pending: PendingBatch, lost: list[Draw]) -> None:
        if pending not in self._underway:
            return
        plan = self._planner.replan(pending.plan, lost)
        if plan is None:
            self._give_up(pending)  # nobody is left who could; the batch is drawn again from scratch
            return
        pending.replace(lost, plan)
        for draw in plan.draws:
            self._ask(draw, pending)

    def _give_up(self, pending: PendingBatch) -> None:
        """Forget a batch, and return what the servers that are connected gave for it."""
        if pending in self._underway:
            self._underway.remove(pending)
        if pending in self._ready:
            self._ready.remove(pending)
        if (lease := self._lent.pop(pending, None)) is not None:
            lease.is_void = True
        for _, name, answer in pending.answers if self._settles else ():
            shard = self._shards.get(name)
            if shard is not None and shard.connected:
                shard.next_request.returned.append(answer.number)

    def _advance(self) -> None:
        """Ask for as many batches as may be under way and the planner allows, and send what is to be sent."""
        if self._open_at_s is None and not self._closed.is_set():
            while len(self._underway) + len(self._ready) < self._max_in_flight:
                plan = self._planner.plan(self._batch_size)
                if plan is None:
                    break
                pending = PendingBatch(plan, list(plan.draws))
                self._underway.append(pending)
                for draw in plan.draws:
                    self._ask(draw, pending)
        self._send()

    def _ask(self, draw: Draw, pending: PendingBatch | None) -> None:
        shard = self._shards[draw.shard]
        if not shard.asked:
            shard.heard_s = self._clock()  # silence counts from the first thing that is not answered
        shard.asked.append((draw, pending))
        self._planner.asked(draw)
        draw.add_to(shard.next_request)

    def _send(self) -> None:
        for shard in self._shards.values():
            if shard.request is not None:
                shard.send()

    def _run(self) -> None:
        """Follow the shards, in a thread."""
        try:
            while not self._closed.wait(_TICK_S):
                with self._changed:
                    self._follow_directory()
                    self._tick(self._clock())
        except BaseException as error:  # raised by `take`
            self.failed(error)

    def _tick(self, now_s: float) -> None:
        assert self._union is not None
        held_back = self._union.is_held_back
        for name, shard in self._shards.items():
            if not shard.connected:
                continue
            silent_s = now_s - shard.heard_s
            if shard.asked and silent_s > SILENT_S and not (shard.live and self._union.may_wait(shard.asked[0][0])):
                shard.heard_s = now_s
                shard.call.cut()
            elif shard.live and not shard.asked and (held_back or silent_s > _LOOK_S):
                self._ask(self._union.probe(name), None)
        if self._open_at_s is not None:
            all_live = bool(self._shards) and all(shard.live for shard in self._shards.values())
            if all_live or now_s > self._open_at_s:
                self._open_at_s = None
        self._advance()

    def _follow_directory(self) -> None:
        if self._closed.is_set():
            return  # `close` has listed the calls that it ends
        current = self._directory.current
        for name, address in current.items():
            if name not in self._shards and (self._mirror is None or self._free_parts):
                part = self._free_parts.pop(0) if self._mirror is not None else 0  # none: until another shard has gone
                self._open_call(name, address, _SHARD_DEADLINE_S, part)
        for name in [name for name, shard in self._shards.items() if name not in current and not shard.connected]:
            gone = self._shards.pop(name)
            if self._mirror is not None:
                self._free_parts.append(gone.mirror_part)
            threading.Thread(target=gone.call.close, name=f"close-{name}", daemon=True).start()

    def _open_call(self, name: str, address: str, deadline_s: float, mirror_part: int = 0) -> None:
        call = SampleCall(
            name,
            address,
            self._part,
            self._opening,
            self,
            deadline_s=deadline_s,
            must_exist=self._must_exist,
            came_later=self._was_found,
            fencing_token=self._fencing_token,
        )
        self._shards[name] = Shard(address, call, self._new_incarnation(name), mirror_part=mirror_part)
        call.start()

    def _new_incarnation(self, shard: str) -> int:
        self._incarnations.append(shard)
        return len(self._incarnations) - 1


def _largest_draw(part: TableConfig, batch_size: int, without_replacement: bool) -> int:
    """Return the most items of a batch that a shard's part of the table can give; warn if that is not all."""
    is_limited = without_replacement or part.max_times_sampled
    if not is_limited or batch_size <= part.max_items:
        return batch_size
    _log.warning(  # while all writers are on one of them, the reader waits
        "each batch needs items of several replay shards", batch_size=batch_size, max_items_of_a_shard=part.max_items
    )
    return part.max_items


def _check_servers(servers: ShardDirectory, *, takes_one: bool) -> None:
    if servers.is_sharded and takes_one:
        raise InvalidArgument("seed, allow_smaller, epochs and schedule need a single server")


def _check_by_epoch(table: TableConfig) -> None:
    """Raise InvalidArgument unless a table can be drawn by epochs."""
    if table.sampler.kind is not SelectorKind.UNIFORM or table.max_times_sampled:
        raise InvalidArgument(
            f"table {table.name!r} has the sampler {table.sampler.kind.value} and max_times_sampled "
            f"{table.max_times_sampled}: epochs need the uniform sampler and 0"
        )
