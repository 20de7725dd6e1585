"""The call under samplers and appenders, against servers that the test plays."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing, contextmanager

import grpc
import pytest
from structlog.testing import capture_logs

from tidemill.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from tidemill.replay import reconnecting_call
from tidemill.replay.reconnecting_call import ReconnectingCall
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.channel import Backoff

_BOUND_S = 60.0
_Call = ReconnectingCall[pb.SampleRequest, pb.SampleResponse]


class _Server(replay_pb2_grpc.ReplayServiceServicer):
    """Answers each message with its credit; ends the call with what the test says in place of a credit of 0."""

    status = grpc.StatusCode.UNAVAILABLE

    def Sample(
        self, request_iterator: Iterator[pb.SampleRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.SampleResponse]:
        """Answer."""
        for request in request_iterator:
            if not request.credit:
                context.abort(self.status, "as the test wants")
            yield pb.SampleResponse(table_items=request.credit)


@contextmanager
def serving(status: grpc.StatusCode) -> Iterator[str]:
    """Serve on a free port; yield the address."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    servicer = _Server()
    servicer.status = status
    replay_pb2_grpc.add_ReplayServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(_BOUND_S)


class _Owner:
    """Notes what its call reports, in order."""

    def __init__(self, address: str, prepare: Callable[[], None] = lambda: None, pause_limit_s: float = 2.0) -> None:
        self.events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.call = _Call(
            "test",
            address,
            lambda stub: stub.Sample,
            opened=lambda: self.events.put("opened"),
            answered=lambda answer: self.events.put(answer.table_items),
            lost=lambda: self.events.put("lost"),
            failed=self.events.put,
            prepare=prepare,
            pause_limit_s=pause_limit_s,
        )
        self.call.start()

    def send(self, credit: int) -> None:
        """Send a message."""
        self.call.send(pb.SampleRequest(credit=credit))

    def next(self) -> object:
        """Return the next event."""
        return self.events.get(timeout=_BOUND_S)

    def close(self) -> None:
        """Close the call."""
        self.call.close()


@pytest.mark.parametrize("how", ["the server ends it", "it is cut"])
def test_call_that_breaks_is_opened_again(how: str) -> None:
    """Answers come in order; what was sent between two calls goes into neither."""
    may_open = threading.Event()
    may_open.set()

    def prepare() -> None:
        assert may_open.wait(_BOUND_S)

    with (
        serving(grpc.StatusCode.UNAVAILABLE) as address,
        closing(_Owner(address, prepare)) as owner,
    ):
        assert owner.next() == "opened"
        owner.send(1)
        owner.send(2)
        assert [owner.next(), owner.next()] == [1, 2]
        may_open.clear()
        if how == "it is cut":
            owner.call.cut()
        else:
            owner.send(0)
        assert owner.next() == "lost"
        owner.send(3)
        may_open.set()
        assert owner.next() == "opened"
        owner.send(4)
        assert owner.next() == 4


@pytest.mark.parametrize(
    "status, answers, grows",
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 1, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 2, False),
        (grpc.StatusCode.UNAVAILABLE, 1, False),
    ],
)
def test_pauses_grow_where_a_full_server_answers_and_refuses(
    monkeypatch: pytest.MonkeyPatch, status: grpc.StatusCode, answers: int, grows: bool
) -> None:
    """It answers the opening of each call alone, and everything is sent again after it."""
    pauses_s = list[float]()

    class Noting(Backoff):
        def next_s(self) -> float:
            pauses_s.append(super().next_s())
            return 0.0

    monkeypatch.setattr(reconnecting_call, "Backoff", Noting)
    with serving(status) as address, closing(_Owner(address)) as owner:
        for _ in range(4):
            assert owner.next() == "opened"
            for _ in range(answers):
                owner.send(1)
                assert owner.next() == 1
            owner.send(0)
            assert owner.next() == "lost"
    assert pauses_s[:3] == ([0.1, 0.2, 0.4] if grows else [0.1, 0.1, 0.1])


def test_call_that_is_refused_for_good_is_not_opened_again() -> None:
    """The owner gets the error as the exception it stands for, after the call is over, and nothing follows."""
    with serving(grpc.StatusCode.INVALID_ARGUMENT) as address, closing(_Owner(address)) as owner:
        assert owner.next() == "opened"
        owner.send(0)
        assert owner.next() == "lost"
        assert isinstance(owner.next(), InvalidArgument)
    assert owner.events.empty()


def test_call_is_not_opened_before_it_is_prepared() -> None:
    """A preparation that may succeed later is repeated; one that cannot ends it, with no call opened."""
    failures = [Unavailable("not yet"), AlreadyExists("another configuration")]

    def prepare() -> None:
        raise failures.pop(0)

    with closing(_Owner("127.0.0.1:9", prepare)) as owner:
        assert isinstance(owner.next(), AlreadyExists)
    assert owner.events.empty()


def test_close_ends_a_call_that_nobody_answers() -> None:
    """A peer that takes the connection and is silent holds up nobody; closing twice is closing once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        owner = _Owner(f"127.0.0.1:{silent.getsockname()[1]}")
        assert owner.next() == "opened"
        owner.send(1)
        began = time.monotonic()
        owner.close()
        owner.close()
        assert time.monotonic() - began < 5.0
        assert owner.next() == "lost"
        assert not [thread for thread in threading.enumerate() if thread.name == "test"]


def test_start_of_a_cluster_is_no_warning() -> None:
    """A server or table that is not there yet is waited for; what lasts, or loses what was there, is a warning."""
    attempts = itertools.count(1)

    def prepare() -> None:
        if next(attempts) <= 7:
            raise NotFound("there is no table 'replay'")

    with (
        capture_logs() as lines,
        serving(grpc.StatusCode.UNAVAILABLE) as address,
        closing(_Owner(address, prepare, pause_limit_s=0.01)) as owner,
    ):
        assert owner.next() == "opened"
        waits = list(lines)
        owner.send(1)
        assert owner.next() == 1
        owner.send(0)
        assert owner.next() == "lost"
        assert owner.next() == "opened"
        lost = lines[len(waits)]
    assert [line["log_level"] for line in waits] == ["info"] * 5 + ["warning"] * 2
    assert {line["event"] for line in waits} == {"waiting for the replay service"}
    assert (lost["log_level"], lost["event"]) == ("warning", "replay stream lost, reconnecting")
