"""Real replay servers, in the test's process or a separate one, and what tests write to them and read."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from prometheus_client import REGISTRY

from tests.support.forked_service import ServiceProcess
from tests.support.free_ports import free_address
from tests.support.proxy import Proxy
from tests.support.replay_streams import SIGNATURE, make_chunk, make_items
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import decode
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import TableConfig
from tidemill.replay.writing.appender import StreamAppender
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import MEBIBYTE, ServerSettings
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state.memory import MemoryBudget
from tidemill.services.replay.state.replay_state import ReplayState

CHUNK_LENGTH = 4


@dataclass(frozen=True)
class LocalServer:
    """A server inside this process, with its state at hand (to be read only)."""

    address: str
    replay: ReplayState
    admission: AdmissionQueue
    loop: asyncio.AbstractEventLoop


@contextmanager
def local_server(
    max_message_bytes: int = 64 * MEBIBYTE,
    stored_limit: int = 0,
    *,
    max_request_bytes: int = 0,
    max_streams: int = 64,
    max_tables: int = 4,
    clock: Callable[[], float] = time.monotonic,
    time_of_day: Callable[[], float] = time.time,
) -> Iterator[LocalServer]:
    """Serve an empty state on a free port, which stores so many bytes; 0 means no limit."""
    settings = ServerSettings(grace_s=0.2, max_message_bytes=max_message_bytes, max_request_bytes=max_request_bytes)
    budget = MemoryBudget(stored_limit)
    replay = ReplayState(
        max_tables=max_tables,
        max_streams=max_streams,
        first_epoch=1,
        rng=np.random.default_rng(0),
        clock=time_of_day,
        budget=budget,
    )
    admission = AdmissionQueue(clock)
    with BackgroundServer("replay", settings) as background:
        servicer = ReplayServicer(replay, admission, max_message_bytes, max_request_bytes=settings.request_limit_bytes)
        servicer.add_to(background.server)
        address = background.start()
        background.set_serving(True)
        yield LocalServer(address, replay, admission, background.loop)


class ServerProcess(ServiceProcess):
    """A replay service."""

    def __init__(
        self, address: str = "127.0.0.1:0", *options: str, before: Sequence[str] = (), forked: bool = True
    ) -> None:
        """Start it at an address; `before` and `forked` are as of `ServiceProcess`.

        Of a port 0 it is one that no connection takes until the server listens there again.
        """
        address = free_address() if address == "127.0.0.1:0" else address
        super().__init__("replay", "--replay.server.address", address, *options, before=before, forked=forked)

    def start(self) -> None:
        """Start it, or start it again at its address after its end."""
        super().start()
        self.address, self.metrics_address = self._addresses()
        self.arguments[1] = self.address

    def _addresses(self) -> tuple[str, str]:
        assert self.process.stdout is not None
        self.before_serving = ""
        for line in self.process.stdout:
            if found := re.search(r"address=(\S+) metrics=(\S+)", line):
                return found[1], found[2]
            self.before_serving += line
        pytest.fail(f"the server ended: {self.before_serving}")


@contextmanager
def server_process(address: str = "127.0.0.1:0", *options: str, forked: bool = True) -> Iterator[ServerProcess]:
    """Run a server as a process."""
    process = ServerProcess(address, *options, forked=forked)
    try:
        yield process
    finally:
        process.close()


def open_appender(
    address: str, actor_id: str = "actor", env_count: int = 1, tables: tuple[str, ...] = ("t",)
) -> StreamAppender:
    """Return an appender of the tests' streams."""
    return StreamAppender(address, actor_id, env_count, SIGNATURE, tables, CHUNK_LENGTH, max_in_flight_chunks=64)


def rpc_count(name: str, method: str, **labels: str) -> float:
    """Return a counter of an RPC, such as `msg_sent` or `handled`, over the servers of this process."""
    labels |= {"grpc_service": "tidemill.replay.v1.ReplayService", "grpc_method": method}
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == f"grpc_server_{name}_total" and labels.items() <= sample.labels.items()
    )


def write(appender: StreamAppender, steps: range, env_index: int = 0) -> None:
    """Append steps of one environment, a message for each chunk, with an item of one step at each."""
    for first in range(steps.start, steps.stop, CHUNK_LENGTH):
        count = min(CHUNK_LENGTH, steps.stop - first)
        items = make_items(0, [(0, i, 1) for i in range(count)])
        assert appender.append([make_chunk(env_index, env_index, first, count)], [items], timeout_s=WAIT_S)


def lose_answer_of_creation(monkeypatch: pytest.MonkeyPatch, proxy: Proxy, server: LocalServer) -> None:
    """Cut each connection once the server has created a table and before it could say so."""
    create = ReplayClient.create_table

    def cut(client: ReplayClient, config: TableConfig) -> bool:
        def exists() -> bool:
            return config.name in [table.config.name for table in server.replay.tables]

        if exists():
            return create(client, config)
        with ThreadPoolExecutor(1) as pool:
            with proxy.without_answers():
                answer = pool.submit(create, client, config)
                wait_until(exists, "the table to be created")
            return answer.result(WAIT_S)

    monkeypatch.setattr(ReplayClient, "create_table", cut)


def items_of(batch: SampledBatch, length: int = 1) -> list[tuple[int, int]]:
    """Return (stream, last step) of each item, from the decoded columns."""
    decoded = decode(SIGNATURE, batch, length)
    last = decoded.index[:, -1]
    return list(zip(decoded.columns["stream"][last, 0].tolist(), decoded.columns["step"][last].tolist(), strict=True))


def whole_table(address: str, config: TableConfig) -> SampledBatch | None:
    """Return all items of a table, each once; None if it is empty."""
    with ReplayClient(address) as client:
        items = client.describe_table(config.name).items
    if not items:
        return None
    with ReplaySampler([address], config, items, max_in_flight_batches=1, without_replacement=True) as stream:
        batch = stream.take(WAIT_S)
    assert batch is not None, "the server does not answer"
    assert len(set(batch.keys.tolist())) == items
    return batch


def everything(address: str, config: TableConfig) -> list[tuple[int, int]]:
    """Return (stream, last step) of every item of a table, sorted."""
    batch = whole_table(address, config)
    return [] if batch is None else sorted(items_of(batch))
