"""Faults that the tests cause in the services of a stack, and questions they ask them, from outside and from within."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.compose.stack import Stack

_SECOND_PUBLISHER = """
from tidemill.errors import FailedPrecondition
from tidemill.params.client import ParamsClient
from tidemill.params.version import ParamsMetadata, Precision
client = ParamsClient("paramserver:7402")
taken = client.acquire_fencing_token("another learner")
metadata = ParamsMetadata("sac", "Pendulum-v1", learner_steps=1, env_steps=1)
old = {"fencing_token": taken.fencing_token - 1, "base_version": taken.latest_version}
try:
    client.publish({Precision.FULL: b"parameters"}, metadata, **old)
    raise SystemExit("a superseded learner published")
except FailedPrecondition as error:
    print(error)
"""
_REFUSED = (
    'sum(grpc_server_handled_total{job="replay", grpc_method="Append", grpc_code="INVALID_ARGUMENT"}) or vector(0)'
)
_NONSENSE = """
import grpc
from tidemill.replay.v1 import replay_pb2 as pb, replay_pb2_grpc
from tidemill.rpc.channel import open_channel
stub = replay_pb2_grpc.ReplayServiceStub(open_channel("replay-0:7401"))
try:
    list(stub.Append(iter([pb.AppendRequest()]), timeout=10))
    raise SystemExit("nonsense was accepted")
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
"""
_CORRUPTION = """
import pathlib
from tidemill.errors import TidemillError
from tidemill.params.client import ParamsClient
client = ParamsClient("paramserver:7402")
number = client.list_versions().versions[-3].version  # the newest may be in memory
client.set_tag("corrupt", number)  # so that it is kept
(file,) = pathlib.Path("/runs/short/params").rglob(f"{number:010d}.full.safetensors")
data = bytearray(file.read_bytes())
data[-1] ^= 1
file.write_bytes(data)
try:
    client.fetch(number)
    raise SystemExit("the corruption was not noticed")
except TidemillError as error:
    print(error)
"""
_EXPIRY = """
import pathlib
from tidemill.services.tools import certs
certs.CERTIFICATE_DAYS = 0
certs.make_services(pathlib.Path("/certs"))
"""


def can_read_metrics(address: str) -> bool:
    """True if a process of ours at an address shows its metrics to this machine."""
    try:
        with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=5) as answer:
            return b"tidemill_build_info" in answer.read()
    except OSError:  # nothing answers, or one of those that answer for every address
        return False


def crash_in_sight(stack: Stack, actor: Mapping[str, Any], times: int) -> None:
    """Kill an actor's process again and again, each time once the rule about restarts has counted that it started.

    Here the rule looks every three seconds and would miss a life that is shorter than that.
    """
    series = f'max(tidemill_start_time_seconds{{job="actor",host="{actor["Config"]["Hostname"]}"}})'
    counted = f"changes({series}[15m:3s])"
    for _ in range(times):
        before = stack.value(counted)
        stack.crash("actor", actor["Name"].strip("/"))
        stack.until_above(counted, before)


def publish_as_another(stack: Stack) -> None:
    """Take the parameter server over from the learner, as a second one would, and publish as the superseded one.

    The learner itself may notice before it publishes: it asks before each checkpoint, too.
    """
    stack.as_operator(_SECOND_PUBLISHER)


def append_nonsense(stack: Stack) -> None:
    """Send a replay shard messages that it must refuse, as an actor of another version might.

    The second comes once Prometheus has seen the first: an increase is from one look to the next.
    """
    for _ in range(2):
        seen = stack.value(_REFUSED)
        stack.inside("actor", "python", "-c", _NONSENSE)
        stack.until_above(_REFUSED, seen)


def corrupt_version(stack: Stack) -> None:
    """Flip a bit of stored parameters on the disk, and have them read."""
    stack.inside("learner", "python", "-c", _CORRUPTION)


def in_volume(stack: Stack, *command: str) -> None:
    """Run a command as root on the volume of the run."""
    mounted = ["--rm", "--user", "0", "--network", "none", "--volume", f"{stack.project}_runs:/runs"]
    stack.engine.docker("run", *mounted, "--entrypoint", command[0], stack.image("evaluator"), *command[1:])


def expire_certificates(stack: Stack) -> None:
    """Give every server a certificate that expires as it is made."""
    stack.compose("run", "--rm", "-T", "--entrypoint", "python", "certs", "-c", _EXPIRY)
