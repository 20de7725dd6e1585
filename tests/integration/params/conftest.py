"""A parameter server in the test's process, and who talks to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.params_service import LIMIT_BYTES, LocalServer, local_server
from tidemill.params.client import ParamsClient
from tidemill.params.v1 import params_pb2_grpc
from tidemill.rpc.channel import open_channel


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    """A server that keeps three versions of at most 4 MiB."""
    with local_server(tmp_path, keep_versions=3, max_blob_bytes=LIMIT_BYTES) as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[ParamsClient]:
    """A client that is sent the bytes, as on another machine."""
    with ParamsClient(server.address, reads_files=False) as connected:
        yield connected


@pytest.fixture
def stub(server: LocalServer) -> Iterator[params_pb2_grpc.ParamServiceStub]:
    """The bare stub, for messages that the client would never send."""
    with open_channel(server.address) as channel:
        yield params_pb2_grpc.ParamServiceStub(channel)
