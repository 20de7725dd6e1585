"""A parameter server that is killed again and again while a learner publishes and actors watch and fetch."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.fault_report import FaultReport, pause
from tests.support.params_service import METADATA, ServerProcess, server_process
from tests.support.waiting import WAIT_S
from tidemill.errors import TidemillError
from tidemill.params.client import ParamsClient
from tidemill.params.version import Precision

_WATCHERS = 3
_LONGEST_PAUSE_S = 1.0
BLOB_BYTES = 200_000
_KEPT = 20
"""Versions that the server keeps unless told otherwise."""


def kill_params(folder: Path, kills: int, seed: int) -> FaultReport:
    """Kill the server at random moments: what was acknowledged is there with its bytes, and versions only grow."""
    rng, report = random.Random(seed), FaultReport("parameter server killed")
    with server_process(folder) as server:
        publisher = Publisher(server.address, rng.randbytes(BLOB_BYTES))
        watchers = [Watcher(server.address) for _ in range(_WATCHERS)]
        with running(publisher, *watchers):
            for _ in range(kills):
                pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
                began_s = time.monotonic()
                server.close()
                before = len(publisher.acknowledged)
                server.start()
                report.time_recovery(
                    began_s,
                    lambda b=before: len(publisher.acknowledged) > b,  # type: ignore[misc]
                    "the publisher continues",
                )
        compare(report, server, publisher, watchers)
    return report


class Client(threading.Thread):
    """A client that repeats its work until it is told to stop, whatever the server does."""

    def __init__(self, address: str, *, reads_files: bool = True) -> None:
        super().__init__()
        self._address, self._reads_files, self.ended = address, reads_files, threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Repeat it."""
        with ParamsClient(self._address, reads_files=self._reads_files) as client:
            while not self.ended.is_set():
                try:
                    self.work(client)
                except TidemillError:  # the server is away
                    self.ended.wait(0.02)
                except BaseException as error:
                    self.error = error
                    raise

    def work(self, client: ParamsClient) -> None:
        """Do it once."""
        raise NotImplementedError


class Publisher(Client):
    """Publishes blobs that differ from each other, and notes what was sent under which number and what acknowledged."""

    def __init__(self, address: str, blob: bytes) -> None:
        super().__init__(address)
        self._blob = blob
        self._count = 0
        self.sent: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}

    def work(self, client: ParamsClient) -> None:
        """Become the publisher and publish until something fails."""
        opened = client.acquire_fencing_token("chaos", connect_timeout_s=WAIT_S)
        assert opened.latest_version >= max(self.acknowledged, default=0), "an acknowledged version is gone"
        base = opened.latest_version
        while not self.ended.is_set():
            self._count += 1
            blob = self._count.to_bytes(8, "little") + self._blob
            digest = hashlib.sha256(blob).digest()
            self.sent.add(digest)
            full = {Precision.FULL: blob}
            base = client.publish(full, METADATA, fencing_token=opened.fencing_token, base_version=base)
            assert base not in self.acknowledged, "a version's number was given twice"
            self.acknowledged[base] = digest


class Watcher(Client):
    """Fetches each newest version, and notes a number that falls or bytes that change.

    With `reads_files` its bytes come from the server's folder, as on one machine they do, else from the wire.
    """

    def __init__(self, address: str, *, reads_files: bool = True) -> None:
        super().__init__(address, reads_files=reads_files)
        self.seen: dict[int, bytes] = {}
        self.newest = 0
        self.fell = self.altered = 0

    def work(self, client: ParamsClient) -> None:
        """Fetch the newest version."""
        params = client.fetch(newer_than=0, wait_s=1.0)
        self.ended.wait(0.02)
        if params is None:
            return
        digest = hashlib.sha256(params.blob).digest()
        self.fell += params.number < self.newest
        self.newest = max(self.newest, params.number)
        self.altered += self.seen.setdefault(params.number, digest) != digest


@contextmanager
def running(*clients: Client) -> Iterator[None]:
    """Let clients work while the block runs."""
    for client in clients:
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.ended.set()
        for client in clients:
            client.join(WAIT_S)


def compare(report: FaultReport, server: ServerProcess, publisher: Publisher, watchers: list[Watcher]) -> None:
    """Hold what the server has, and what the watchers saw, against what the publisher sent and was told."""
    errors = [client.error for client in (publisher, *watchers) if client.error]
    assert not errors, errors
    with ParamsClient(server.address) as client:
        client.acquire_fencing_token("checker", connect_timeout_s=WAIT_S)
        stored = {version.version for version in client.list_versions().versions}
        found = {}
        for number in stored:
            params = client.fetch(number)
            assert params is not None
            found[number] = hashlib.sha256(params.blob).digest()
    newest = max(publisher.acknowledged)
    expected = {number for number in publisher.acknowledged if number > max(newest, *stored) - _KEPT}
    report.acknowledged += len(publisher.acknowledged)
    report.acknowledged_lost += len(expected - stored)
    report.duplicates += sum(watcher.fell for watcher in watchers)  # a number that fell was given twice
    report.altered += sum(publisher.acknowledged.get(number, digest) != digest for number, digest in found.items())
    for watcher in watchers:
        assert watcher.seen, "a watcher saw nothing"
        report.altered += watcher.altered
        report.altered += sum(publisher.acknowledged.get(n, digest) != digest for n, digest in watcher.seen.items())
        report.unknown += len(set(watcher.seen.values()) - publisher.sent)
    report.unknown += len(set(found.values()) - publisher.sent)
