"""Real parameter servers for the tests: one inside the test's process, one as a separate process."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from tests.support.forked_service import ServiceProcess
from tests.support.free_ports import free_address
from tests.support.waiting import WAIT_S
from tidemill.params.client import ParamsClient
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.paramserver.metrics import Metrics
from tidemill.services.paramserver.servicer import ParamServicer
from tidemill.services.paramserver.version_notifier import VersionNotifier
from tidemill.services.paramserver.version_store import VersionStore
from tidemill.services.paramserver.writer import StoreWriter

METADATA = ParamsMetadata("sac", "Pendulum-v1", learner_steps=100, env_steps=400)
MIB = 2**20
LIMIT_BYTES = 4 * MIB
"""Largest blob of the fixture's server."""
LARGE = np.random.default_rng(0).bytes(3 * MIB + 17)
"""A blob of several pieces."""


@dataclass(frozen=True)
class LocalServer:
    """A server inside this process, with its parts at hand."""

    address: str
    store: VersionStore
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric of the server, 0 when it was never touched."""
        return self.registry.get_sample_value(f"tidemill_paramserver_{name}", labels) or 0.0


@contextmanager
def local_server(
    folder: Path,
    *,
    keep_versions: int = 20,
    max_blob_bytes: int = 64 * 2**20,
    stall_s: float = 10.0,
    unread_s: float = 30.0,
    max_fetch_bytes: int = 64 * MIB,
    address: str = "",
) -> Iterator[LocalServer]:
    """Serve a folder, on a free port unless an address is given."""
    store = VersionStore(
        folder,
        keep_versions=keep_versions,
        max_blob_bytes=max_blob_bytes,
        max_tags=64,
        max_fetch_bytes=max_fetch_bytes,
    )
    notifier, registry = VersionNotifier(), CollectorRegistry()
    writer = StoreWriter(store, notifier, clock=lambda: datetime.datetime.now(datetime.UTC), stall_s=stall_s)
    metrics = Metrics(lambda: store.catalog, registry)
    try:
        with BackgroundServer("paramserver", ServerSettings(address or free_address(), grace_s=0.2)) as background:
            servicer = ParamServicer(
                store, writer, notifier, metrics, max_fetch_bytes=max_fetch_bytes, unread_s=unread_s
            )
            servicer.add_to(background.server)
            yield LocalServer(background.start(), store, registry)
    finally:
        writer.close()
        store.close()


class ServerProcess(ServiceProcess):
    """A parameter server."""

    def __init__(self, root: Path, address: str, *options: str, forked: bool = True) -> None:
        """Start it at an address, for the runs of a folder."""
        self.address = address
        served = ("--run.root", str(root), "--paramserver.server.address", address)
        super().__init__("paramserver", *served, *options, forked=forked)

    def line(self) -> str:
        """Return the next line it writes."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def server_process(root: Path, options: Sequence[str] = (), *, forked: bool = True) -> Iterator[ServerProcess]:
    """Run a server as a process, on a free port."""
    process = ServerProcess(root, free_address(), *options, forked=forked)
    try:
        yield process
    finally:
        process.close()


def publish(client: ParamsClient, full: bytes, half: bytes = b"") -> int:
    """Publish as a new publisher."""
    opened = client.acquire_fencing_token("test", connect_timeout_s=WAIT_S)
    blobs = {Precision.FULL: full} | ({Precision.HALF: half} if half else {})
    return client.publish(blobs, METADATA, fencing_token=opened.fencing_token, base_version=opened.latest_version)
