"""The client processes of the traffic benchmark: some hundreds of replayed actors, or one learner.

Every actor has its own channels, streams and name. It appends the recorded messages at their times, whatever was
acknowledged meanwhile, except that it waits like an actor while too many chunks are unacknowledged; and it fetches each
new version of the parameters. The learner samples at a fixed rate, sets the priorities of what it was sent if the table
draws by them, and publishes versions. What comes is not decoded: that is the work of actors and learners.

Figures are those of a span of time that the benchmark gives, the same for all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import grpc
import grpc.aio
import numpy as np

from benchmarks.traffic_recording import APPEND, Recording
from tidemill.params.client import ParamsClient
from tidemill.params.v1 import params_pb2 as params_pb
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.rpc.channel import MAX_MESSAGE_BYTES
from tidemill.rpc.options import client_options

_FETCH = "/tidemill.params.v1.ParamService/Fetch"
_SAMPLE = "/tidemill.replay.v1.ReplayService/Sample"
_SET = "/tidemill.replay.v1.ReplayService/UpdatePriorities"
_AppendCall: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
_Response = TypeVar("_Response")

CONNECTIONS_PER_S = 100.0
"""Actors that connect per second before traffic begins: all at once wait for each other until gRPC gives up."""
_STAGGER_S = 1.0  # over which actors begin
_WAIT_S = 60.0  # of a fetch, as actors have it
_BACKOFF_S = 0.1  # after a fetch that failed
_CHUNKS_PER_ENV = 2  # unacknowledged, as actors have it
_AHEAD = 4  # calls of the sampler that the server may answer beforehand


@dataclass(frozen=True)
class Span:
    """When figures are taken, in seconds of the monotonic clock; traffic begins at `begin_s`."""

    begin_s: float
    from_s: float
    until_s: float

    def __contains__(self, at_s: float) -> bool:
        return self.from_s <= at_s < self.until_s


@dataclass
class Figures:
    """What one process has seen in its span."""

    processor_s: float = 0.0
    """Its own processor time."""
    peak_mib: float = 0.0
    """Its largest resident memory, its start included."""
    decisions: int = 0
    """Agent decisions acknowledged."""
    acknowledged_ms: list[float] = field(default_factory=list)
    """From each message to its acknowledgement."""
    versions_ms: list[float] = field(default_factory=list)
    """From the storing of a version to its arrival, for each actor and version that came."""
    missed: int = 0
    """Versions that were replaced before an actor had them, over all actors."""
    sampled: int = 0
    """Items received."""


class Actor:
    """Sends what one actor sends, and fetches versions as it does."""

    def __init__(self, name: str, recording: Recording, connects_s: float, span: Span, figures: Figures) -> None:
        """Take its name, what it sends, and when it connects; add what it sees to `figures`."""
        self._name, self._recording, self._connects_s = name, recording, connects_s
        self._span, self._figures = span, figures
        self._sent: deque[tuple[float, int, int]] = deque()  # when, chunks, decisions; not acknowledged
        self._has_room = asyncio.Event()

    async def append(self, address: str, begin_s: float) -> None:
        """Append without end, from `begin_s` of the monotonic clock on."""
        await _sleep_until(self._connects_s)
        async with _channel(address) as channel:
            call: _AppendCall = channel.stream_stream(APPEND)(wait_for_ready=True)
            await call.write(self._recording.opening_of(self._name))
            await _received(call)
            if time.monotonic() > begin_s:
                raise RuntimeError(f"the streams of {self._name} were opened after they had to send")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._take_acknowledgements(call))
                tasks.create_task(self._send(call, begin_s))

    async def fetch(self, address: str, *, from_file: bool) -> None:
        """Fetch each newer version without end."""
        seen = 0
        await _sleep_until(self._connects_s)
        async with _channel(address) as channel:
            fetch: grpc.aio.UnaryStreamMultiCallable[params_pb.FetchRequest, bytes] = channel.unary_stream(
                _FETCH, params_pb.FetchRequest.SerializeToString
            )
            while True:
                request = params_pb.FetchRequest(
                    tag="latest",
                    newer_than=seen,
                    wait_s=_WAIT_S,
                    precision=params_pb.PRECISION_HALF,
                    accepts_file=from_file,
                )
                try:
                    responses = [response async for response in fetch(request, wait_for_ready=True)]
                except grpc.aio.AioRpcError:  # too many at a time: the next one comes with what was missed
                    await asyncio.sleep(_BACKOFF_S)
                    continue
                version = params_pb.FetchResponse.FromString(responses[0]).header.version
                if version.version and time.monotonic() in self._span:
                    self._figures.versions_ms.append(1e3 * time.time() - version.created.ToNanoseconds() / 1e6)
                    self._figures.missed += version.version - seen - 1 if seen else 0
                seen = max(version.version, seen)

    async def _send(self, call: _AppendCall, begin_s: float) -> None:
        limit = _CHUNKS_PER_ENV * self._recording.env_count
        for message in self._recording.messages():
            await _sleep_until(begin_s + message.due_s)
            while self._sent and sum(chunks for _, chunks, _ in self._sent) + message.chunks > limit:
                self._has_room.clear()
                await self._has_room.wait()
            self._sent.append((time.monotonic(), message.chunks, message.decisions))
            await call.write(message.request)

    async def _take_acknowledgements(self, call: _AppendCall) -> None:
        while True:
            await _received(call)
            sent_s, _, decisions = self._sent.popleft()
            self._has_room.set()
            now_s = time.monotonic()
            if now_s in self._span:
                self._figures.decisions += decisions
                self._figures.acknowledged_ms.append(1e3 * (now_s - sent_s))


class Learner:
    """Samples and publishes at the rate of a learner."""

    def __init__(self, table: str, items: int, calls_per_s: float, span: Span, figures: Figures) -> None:
        """Take the items of a call and how many calls a second there are; add what it sees to `figures`."""
        self._table, self._items, self._calls_per_s = table, items, calls_per_s
        self._span, self._figures = span, figures
        self._rng = np.random.default_rng(0)

    async def sample(self, address: str, mirror: pb.Mirror, *, sets_priorities: bool) -> None:
        """Sample without end; as fast as the server allows where it is slower than the rate."""
        opening = pb.SampleOpen(
            table=self._table, batch_size=self._items, mirror=mirror, max_message_bytes=MAX_MESSAGE_BYTES
        )
        async with _channel(address) as channel:
            call = channel.stream_stream(_SAMPLE, pb.SampleRequest.SerializeToString, pb.SampleResponse.FromString)()
            set_priorities: grpc.aio.UnaryUnaryMultiCallable[pb.UpdatePrioritiesRequest, bytes] = channel.unary_unary(
                _SET, pb.UpdatePrioritiesRequest.SerializeToString
            )
            await call.write(pb.SampleRequest(open=opening, credit=_AHEAD))
            due_s, setting = self._span.begin_s, None
            while True:
                response = await _received(call)
                if time.monotonic() in self._span:
                    self._figures.sampled += len(response.keys)
                if sets_priorities and response.keys:
                    if setting is not None:
                        await setting  # one such call at a time, beside the next batches
                    priorities = self._rng.random(len(response.keys))
                    setting = set_priorities(
                        pb.UpdatePrioritiesRequest(table=self._table, keys=response.keys, priorities=priorities)
                    )
                if not response.more:
                    due_s = max(due_s + 1 / self._calls_per_s, time.monotonic() - 1)  # catches up with a second at most
                    await _sleep_until(due_s)
                    await call.write(pb.SampleRequest(credit=1))

    async def publish(self, address: str, every_s: float) -> None:
        """Publish the parameters that are there again and again, in all their encodings."""
        with ParamsClient(address, transfer_deadline_s=_WAIT_S) as client:
            found = {each: client.fetch(precision=each) for each in Precision}
            blobs = {params.precision: params.blob for params in found.values() if params is not None}
            grant = client.acquire_fencing_token("traffic")
            version, due_s = grant.latest_version, self._span.begin_s
            while True:
                await _sleep_until(due_s)
                due_s = max(due_s + every_s, time.monotonic())
                version = await asyncio.to_thread(
                    client.publish, blobs, ParamsMetadata(), fencing_token=grant.fencing_token, base_version=version
                )


async def _received(call: grpc.aio.StreamStreamCall[Any, _Response]) -> _Response:
    """Return the next message of a call; raise the error that ended it instead."""
    response = await call.read()
    if response is grpc.aio.EOF:
        raise RuntimeError(f"the call ended: {await call.details()}")
    return cast("_Response", response)


async def _sleep_until(at_s: float) -> None:
    """Wait for a time of the monotonic clock; not at all if it is over."""
    await asyncio.sleep(at_s - time.monotonic())


def _channel(address: str) -> grpc.aio.Channel:
    """Return a channel with a separate connection: channels with the same options would share one."""
    options = [*client_options(MAX_MESSAGE_BYTES), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address, options=options)


async def run_in(span: Span, works: Iterable[Coroutine[None, None, None]], figures: Figures) -> None:
    """Do endless work until the span is over; raise what ends any of it before."""
    over = asyncio.create_task(_measure(span, figures))
    tasks = [over, *map(asyncio.create_task, works)]
    done, going_on = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in going_on:
        task.cancel()
    await asyncio.gather(*going_on, return_exceptions=True)
    errors = [error for task in done if (error := task.exception())]
    if errors:
        raise errors[0]


async def _measure(span: Span, figures: Figures) -> None:
    """Take what this process needs in the span."""
    await _sleep_until(span.from_s)
    before_s = time.process_time()
    await _sleep_until(span.until_s)
    figures.processor_s = time.process_time() - before_s
    figures.peak_mib = peak_mib("self")


def peak_mib(pid: int | str) -> float:
    """Return the largest resident memory of a process so far (proc(5): VmHWM, in KiB)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def _actors(a: argparse.Namespace, span: Span, figures: Figures) -> Iterator[Coroutine[None, None, None]]:
    recording = Recording.load(a.recording)
    for index in range(a.first, a.count, a.step):
        connects_s = time.monotonic() + index / CONNECTIONS_PER_S
        actor = Actor(f"actor-{index}", recording, connects_s, span, figures)
        yield actor.append(a.replay, span.begin_s + _STAGGER_S * index / a.count)
        yield actor.fetch(a.params, from_file=a.from_file)


def _learner(a: argparse.Namespace, span: Span, figures: Figures) -> Iterator[Coroutine[None, None, None]]:
    learner = Learner(a.table, a.items, a.calls_per_s, span, figures)
    slots, slot_steps = a.mirror
    mirror = pb.Mirror(slots=slots, slot_steps=slot_steps, hold=_AHEAD + 2)
    yield learner.sample(a.replay, mirror, sets_priorities=a.sets_priorities)
    yield learner.publish(a.params, a.publish_every_s)


def main() -> None:
    """Say `ready`, read the span, play one role and print its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replay", required=True, help="address of the replay service")
    parser.add_argument("--params", required=True, help="address of the parameter server")
    roles = parser.add_subparsers(required=True)
    actors = roles.add_parser("actors")
    actors.set_defaults(works=_actors)
    actors.add_argument("--recording", type=Path, required=True)
    actors.add_argument("--first", type=int, required=True, help="index of this process's first actor")
    actors.add_argument("--step", type=int, required=True, help="from one of its actors to the next")
    actors.add_argument("--count", type=int, required=True, help="actors of all processes")
    actors.add_argument("--from-file", action="store_true", help="read versions from their files, as on one machine")
    learner = roles.add_parser("learner")
    learner.set_defaults(works=_learner)
    learner.add_argument("--table", required=True)
    learner.add_argument("--items", type=int, required=True, help="of a call")
    learner.add_argument("--calls-per-s", type=float, required=True)
    learner.add_argument("--mirror", type=int, nargs=2, required=True, help="its slots, and the steps of one")
    learner.add_argument("--publish-every-s", type=float, required=True)
    learner.add_argument("--sets-priorities", action="store_true")
    a = parser.parse_args()
    print("ready", flush=True)
    span, figures = Span(*map(float, sys.stdin.readline().split())), Figures()
    asyncio.run(run_in(span, a.works(a, span, figures), figures))
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
