"""The control API over a real connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from tests.support.naming import because, naming
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, ResourceExhausted, Unavailable
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import LearnerState, LearnerStatus, SavedCheckpoint, SourceStatus
from tidemill.learner.v1 import learner_pb2 as pb
from tidemill.learner.v1 import learner_pb2_grpc
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.channel import open_channel
from tidemill.rpc.settings import ServerSettings
from tidemill.services.learner.servicer import LearnerServicer
from tidemill.services.learner.status.control import Control

_STATUS = LearnerStatus(
    checkpoint_error="the disk is full",
    state=LearnerState.TRAINING,
    learner_steps=7,
    env_steps=28,
    steps_per_s=3.5,
    wait_fraction=0.25,
    params_version=2,
    fencing_token=3,
    checkpoint_steps=5,
    table_items=11,
    metrics={"critic_loss": 0.5},
    uptime_s=9.0,
    max_learner_steps=100,
    restored="checkpoint-000001-00000001",
    shards=(ShardReport("0", "unix:///a", True, 5, 2.5, 100), ShardReport("1", "unix:///b", False, 0, 0.0, 7)),
    sources=(SourceStatus("demos", 0.25, 1_000, 40, 2.5), SourceStatus("yesterday", 0.5)),
)


@pytest.fixture
def control() -> Control:
    """The requests of a learner that has no training thread."""
    return Control(threading.Event())


@pytest.fixture
def client(control: Control) -> Iterator[LearnerClient]:
    """A client of a served control API."""
    with BackgroundServer("learner", ServerSettings(grace_s=0.2)) as server:
        LearnerServicer(control, lambda: _STATUS).add_to(server.server)
        with LearnerClient(server.start(), deadline_s=10) as connected:
            yield connected


def test_status_arrives_whole(client: LearnerClient) -> None:
    """Every field survives the wire."""
    assert client.get_status() == _STATUS


@pytest.mark.parametrize("state", list(LearnerState))
def test_states_are_those_of_the_contract(state: LearnerState) -> None:
    """Each state has a name in the proto."""
    expected = "UNSPECIFIED" if state is LearnerState.UNKNOWN else state.name
    with BackgroundServer("learner", ServerSettings(grace_s=0.2)) as server:
        LearnerServicer(Control(threading.Event()), lambda: replace(_STATUS, state=state)).add_to(server.server)
        with open_channel(server.start()) as channel:
            answer = learner_pb2_grpc.LearnerServiceStub(channel).GetStatus(pb.GetStatusRequest(), timeout=10)
    assert pb.LearnerState.Name(answer.state) == f"LEARNER_STATE_{expected}"


def test_pause_and_resume_reach_the_training_thread(client: LearnerClient, control: Control) -> None:
    """What the training thread reads changes with the calls."""
    client.pause()
    assert control.paused
    client.resume()
    assert not control.paused


def test_stop_gives_its_reason(client: LearnerClient, control: Control) -> None:
    """It is answered at once, and later requests are refused."""
    client.stop("target reached")
    assert control.stop_reason == "target reached"
    with pytest.raises(FailedPrecondition, match=naming("stopping target reached"), check=because(Reason.STOPPING)):
        client.pause()
    with pytest.raises(FailedPrecondition):
        client.save_checkpoint()


def test_overlong_reason_is_refused(client: LearnerClient, control: Control) -> None:
    """Nothing is stopped by a malformed request."""
    with pytest.raises(InvalidArgument, match=naming("1001")):
        client.stop("x" * 1001)
    assert control.stop_reason is None


def _answer(control: Control, result: SavedCheckpoint | Exception) -> threading.Thread:
    def serve() -> None:
        taken: list[Future[SavedCheckpoint]] = []

        def asked() -> bool:
            taken.extend(filter(None, [control.take_checkpoint_request()]))
            return bool(taken)

        wait_until(asked, "a request for a checkpoint", 10.0)
        if isinstance(result, Exception):
            taken[0].set_exception(result)
        else:
            taken[0].set_result(result)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_checkpoint_is_answered_with_its_path(client: LearnerClient, control: Control) -> None:
    """The call ends when the training thread's part has."""
    thread = _answer(control, SavedCheckpoint("/runs/x/c", 7))
    assert client.save_checkpoint() == SavedCheckpoint("/runs/x/c", 7)
    thread.join(10)


def test_full_disk_reaches_the_caller(client: LearnerClient, control: Control) -> None:
    """As RESOURCE_EXHAUSTED, with the reason."""
    thread = _answer(control, ResourceExhausted("cannot write c: No space left on device"))
    with pytest.raises(ResourceExhausted, match="No space left"):
        client.save_checkpoint()
    thread.join(10)


def test_checkpoint_nobody_makes_is_not_waited_for_forever(control: Control) -> None:
    """The wait is bounded, and the request is withdrawn."""
    with BackgroundServer("learner", ServerSettings(grace_s=0.2)) as server:
        LearnerServicer(control, lambda: _STATUS, checkpoint_timeout_s=0.1).add_to(server.server)
        with (
            LearnerClient(server.start(), deadline_s=10) as client,
            pytest.raises(Unavailable, match=naming("0.1"), check=because(Reason.BUSY)),
        ):
            client.save_checkpoint()
    request = control.take_checkpoint_request()
    assert request is not None
    assert request.cancelled()


def test_absent_learner_is_unavailable_within_the_deadline() -> None:
    """A call to an address where nothing listens ends."""
    began_s = time.monotonic()
    with LearnerClient("127.0.0.1:1", deadline_s=0.5) as client, pytest.raises(Unavailable):
        client.get_status()
    assert time.monotonic() - began_s < WAIT_S
