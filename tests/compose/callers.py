"""Callers of a stack's services that are not of the stack: from this machine, with and without what lets them in."""

from __future__ import annotations

import hashlib
import io
import ssl
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.compose.stack import Stack
from tests.support.security import become
from tidemill.learner.v1 import learner_pb2, learner_pb2_grpc
from tidemill.params.v1 import params_pb2, params_pb2_grpc
from tidemill.replay.v1 import replay_pb2, replay_pb2_grpc
from tidemill.rpc import client_security
from tidemill.rpc.channel import open_channel
from tidemill.services.tools.certs import COMMON_HOST

Call = Callable[[grpc.Channel], Any]

CALLS: dict[str, tuple[str, int, Call]] = {
    "list tables": (
        "replay-0",
        7401,
        lambda channel: replay_pb2_grpc.ReplayServiceStub(channel).ListTables(
            replay_pb2.ListTablesRequest(), timeout=10
        ),
    ),
    "reset a table": (
        "replay-0",
        7401,
        lambda channel: replay_pb2_grpc.ReplayServiceStub(channel).ResetTable(
            replay_pb2.ResetTableRequest(name="no such table"), timeout=10
        ),
    ),
    "list versions": (
        "paramserver",
        7402,
        lambda channel: params_pb2_grpc.ParamServiceStub(channel).ListVersions(
            params_pb2.ListVersionsRequest(), timeout=10
        ),
    ),
    "pause": (
        "learner",
        7403,
        lambda channel: learner_pb2_grpc.LearnerServiceStub(channel).Pause(learner_pb2.PauseRequest(), timeout=10),
    ),
}
"""What a caller wants: the service, its port, and the call."""


def take_secrets(stack: Stack, folder: Path) -> Path:
    """Copy the operator's files to this machine, by the command of the operations guide; return their folder."""
    packed = stack.engine.pipe(
        *stack.command("run", "--rm", "-T", "--entrypoint", "tar", "operator", "-C", "/certs", "-cf", "-", "."),
        variables=stack.variables,
    )
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def take_token(stack: Stack, service: str, file: Path) -> Path:
    """Write the token that a service has to a file of this machine; return it."""
    file.touch(0o600)
    file.write_text(stack.inside(service, "cat", "/certs/token"))
    return file


def outcome(stack: Stack, wanted: str, patch: pytest.MonkeyPatch, **secrets: Path) -> grpc.StatusCode:
    """Make a call from this machine to a container's address; return its status.

    Args:
        stack: The cluster.
        wanted: A key of `CALLS`.
        patch: Of this process's environment.
        secrets: `ca` and `token`: what the caller has; without a CA it speaks plaintext.
    """
    service, port, call = CALLS[wanted]
    become(patch, **secrets)
    patch.setenv(client_security.NAME, COMMON_HOST)
    address = f"{stack.address(service)}:{port}"
    plain = grpc.insecure_channel(address) if "ca" not in secrets else None  # open_channel sends no token in plaintext
    with plain or open_channel(address) as channel:
        try:
            call(channel)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def fingerprint(address: str, port: int) -> str:
    """Return the SHA-256 of the certificate that a new connection to a server is shown."""
    return hashlib.sha256(ssl.get_server_certificate((address, port), timeout=10).encode()).hexdigest()
