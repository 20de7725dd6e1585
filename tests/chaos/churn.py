"""Actors that come and go by the hundred, half of them without a goodbye, and what a replay server keeps of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tests.chaos.fault_report import FaultReport
from tests.support.proxy import Proxy
from tests.support.replay_service import CHUNK_LENGTH, ServerProcess
from tests.support.replay_streams import SIGNATURE, make_chunk, make_config, make_items
from tests.support.scraped import scrape
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay import wire
from tidemill.replay.client import ReplayClient
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.replay.writing.append_message import AppendMessage
from tidemill.rpc.options import client_options
from tidemill.rpc.settings import MEBIBYTE

_COHORTS = 10
"""One of them is replaced each interval."""
_FATES = ("goodbye", "reset", "goodbye", "black hole")
"""What becomes of an actor that is replaced: half of them end their call."""
_POOL = 8
"""Threads by which gRPC's own pool may have grown on a busy machine, however many the connections were."""
_TABLE = make_config(max_items=2_000)
_OPTIONS = [*client_options(64 * MEBIBYTE), ("grpc.use_local_subchannel_pool", 1)]  # a connection for each actor


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a server process holds.

    Attributes:
        calls: Calls of Append in progress.
        streams: Streams that it knows, those of actors that are gone included, up to `max_streams`.
        open_files: Files and sockets.
        threads: Threads.
        memory_mib: Resident memory.
    """

    calls: int
    streams: int
    open_files: int
    threads: int
    memory_mib: int

    @classmethod
    def of(cls, server: ServerProcess) -> Footprint:
        """Ask a server."""
        seen = scrape(server.metrics_address)
        of_append = {name: count for name, count in seen.items() if 'grpc_method="Append"' in name}
        started, handled = (
            sum(count for name, count in of_append.items() if name.startswith(f"grpc_server_{kind}_total"))
            for kind in ("started", "handled")
        )
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        threads = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))
        files, memory = seen["process_open_fds"], seen["process_resident_memory_bytes"]
        return cls(int(started - handled), int(seen["tidemill_replay_streams"]), int(files), threads, int(memory) >> 20)


def churn(actors: int, rounds: int, seed: int) -> FaultReport:
    """Let so many actors append, replace a tenth of them so many times, and end them all; then once more.

    Half of those that end do so without a goodbye: their connection is reset, or carries nothing any more. Every
    acknowledged item was inserted, and none twice. When all have gone, the server has no call and no connection of
    theirs, and but few threads more than before. The streams that it still knows are bounded by `max_streams`, and the
    second time it takes no more memory than the first.
    """
    report = FaultReport(f"{actors} actors that churn, a tenth at a time")
    seen: dict[str, Footprint] = {}
    server = ServerProcess("127.0.0.1:0", "--replay.max-streams", str(2 * actors), forked=False)
    try:
        with ReplayClient(server.address) as client:
            client.create_table(_TABLE)
            seen["before"] = Footprint.of(server)
            for wave in ("first wave", "second wave"):
                with ExitStack() as network:
                    crowd = _Crowd(server.address, random.Random(f"{seed} {wave}"), network)
                    seen[wave] = asyncio.run(crowd.churn(server, actors, rounds))
                    report.acknowledged += crowd.acknowledged
                    report.duplicates -= crowd.sent  # until what was inserted is added
                    began_s = time.monotonic()
                    has_left = partial(_have_left, server, seen["before"])
                    wait_until(has_left, "all have gone", describe=lambda: f"{Footprint.of(server)}, {seen}")
                    report.faults += crowd.vanished
                    report.recovery_s.append(time.monotonic() - began_s)
                seen[f"after the {wave}"] = Footprint.of(server)
            inserted = client.describe_table(_TABLE.name).inserts
    finally:
        server.close()
    report.duplicates = max(0, report.duplicates + inserted)
    report.acknowledged_lost = max(0, report.acknowledged - inserted)
    report.figures = {name: asdict(footprint) for name, footprint in seen.items()}
    assert all(footprint.streams <= 2 * actors for footprint in seen.values()), report.figures
    peak_mib = seen["first wave"].memory_mib  # what is free again may stay with the allocator until the next wave
    assert seen["second wave"].memory_mib <= peak_mib + 8 + peak_mib // 10, report.figures
    return report


def _have_left(server: ServerProcess, before: Footprint) -> bool:
    now = Footprint.of(server)
    return now.calls == 0 and now.open_files <= before.open_files and now.threads <= before.threads + _POOL


class _Actor:
    """One connection and one stream, as an actor process has them."""

    def __init__(self, address: str, name: str) -> None:
        self.sent = self.acknowledged = 0
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._call: Any = replay_pb2_grpc.ReplayServiceStub(self._channel).Append(
            wait_for_ready=True
        )  # of a busy machine
        self._name = name

    async def open(self) -> None:
        """Open the stream."""
        columns = wire.pack_signature(SIGNATURE)
        await self._ask(
            pb.AppendRequest(
                open=pb.AppendOpen(
                    actor_id=self._name, env_count=1, tables=["t"], signature=columns, chunk_length=CHUNK_LENGTH
                )
            )
        )

    async def append(self) -> None:
        """Append a chunk with an item at each step."""
        items = make_items(0, [(0, i, 1) for i in range(CHUNK_LENGTH)])
        message = AppendMessage.of([make_chunk(0, 0, self.sent, CHUNK_LENGTH)], [items])
        self.sent += CHUNK_LENGTH
        await self._ask(message.request)
        self.acknowledged = self.sent

    async def leave(self) -> None:
        """End the call as a client does."""
        await self._call.done_writing()
        assert await asyncio.wait_for(self._call.read(), WAIT_S) is grpc.aio.EOF
        await self._channel.close()

    async def vanish(self) -> None:
        """Forget the connection, which the network has cut off from the server."""
        self._call.cancel()
        await self._channel.close()

    async def _ask(self, request: pb.AppendRequest) -> None:
        await asyncio.wait_for(self._call.write(request), WAIT_S)
        answer = await asyncio.wait_for(self._call.read(), WAIT_S)
        assert answer is not grpc.aio.EOF, await self._call.details()


class _Cohort:
    """Actors that come and go together, and the network that some of them go by."""

    def __init__(self, address: str, names: Sequence[str], network: ExitStack) -> None:
        self._network = network
        self._proxies = {fate: network.enter_context(Proxy(address)) for fate in ("reset", "black hole")}
        self.actors: dict[str, list[_Actor]] = {fate: [] for fate in _FATES}
        for i, name in enumerate(names):
            fate = _FATES[i % len(_FATES)]
            proxy = self._proxies.get(fate)
            self.actors[fate].append(_Actor(proxy.address if proxy else address, name))

    @property
    def all(self) -> list[_Actor]:
        """Every actor."""
        return [actor for actors in self.actors.values() for actor in actors]

    async def end(self) -> int:
        """End each as is its fate; return how many said no goodbye."""
        self._proxies["reset"].cut()
        self._network.enter_context(self._proxies["black hole"].black_hole())
        vanished = [*self.actors["reset"], *self.actors["black hole"]]
        await asyncio.gather(*(actor.vanish() for actor in vanished))
        await asyncio.gather(*(actor.leave() for actor in self.actors["goodbye"]))
        return len(vanished)


class _Crowd:
    """All actors."""

    def __init__(self, address: str, rng: random.Random, network: ExitStack) -> None:
        self._address, self._rng, self._network = address, rng, network
        self._generation = 0
        self.sent = self.acknowledged = self.vanished = 0

    async def churn(self, server: ServerProcess, actors: int, rounds: int) -> Footprint:
        """Come, replace each other and go; return what the server held before the last went."""
        size = actors // _COHORTS
        cohorts = [await self._come(range(first, first + size)) for first in range(0, actors, size)]
        for _ in range(rounds):
            await asyncio.gather(*(actor.append() for cohort in cohorts for actor in cohort.all))
            replaced = self._rng.randrange(len(cohorts))
            await self._go(cohorts[replaced])
            cohorts[replaced] = await self._come(range(replaced * size, (replaced + 1) * size))
        seen = await asyncio.to_thread(Footprint.of, server)
        for cohort in cohorts:
            await self._go(cohort)
        return seen

    async def _come(self, slots: range) -> _Cohort:
        """Open streams; every other actor has the name of the one before it, as a restarted one has."""
        self._generation += 1
        names = [f"actor-{slot}" + (f"-{self._generation}" if slot % 2 else "") for slot in slots]
        self._rng.shuffle(names)  # of either kind some end in each way
        cohort = _Cohort(self._address, names, self._network)
        await asyncio.gather(*(actor.open() for actor in cohort.all))
        return cohort

    async def _go(self, cohort: _Cohort) -> None:
        self.vanished += await cohort.end()
        self.sent += sum(actor.sent for actor in cohort.all)
        self.acknowledged += sum(actor.acknowledged for actor in cohort.all)
