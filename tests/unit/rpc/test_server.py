"""Servers and channels: health, errors as status codes, exposure, and the background thread."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY

from tests.support.naming import because, naming
from tests.support.waiting import wait_until
from tidemill.errors import (
    ConfigError,
    FailedPrecondition,
    FatalError,
    InvalidArgument,
    NotFound,
    Reason,
    TidemillError,
    Unavailable,
    Unimplemented,
)
from tidemill.learner.v1 import learner_pb2, learner_pb2_grpc
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.v1 import replay_pb2_grpc
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.channel import open_channel
from tidemill.rpc.server import RpcServer, raise_open_files
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.status import from_rpc_error, to_status, translated
from tidemill.rpc.tls import check_exposure

_SERVICE = "tidemill.replay.v1.ReplayService"


class _Servicer(replay_pb2_grpc.ReplayServiceServicer):
    """Answers each way a handler can end."""

    async def DescribeTable(self, request: pb.DescribeTableRequest, context: object) -> pb.DescribeTableResponse:
        """Fail as asked."""
        if request.name == "fault":
            raise ZeroDivisionError("by zero")
        if request.name in Reason.__members__:
            raise FailedPrecondition("not now", reason=Reason[request.name])
        raise NotFound(f"no table {request.name!r}")

    async def Sample(
        self, request_iterator: AsyncIterator[pb.SampleRequest], context: object
    ) -> AsyncIterator[pb.SampleResponse]:
        """Echo credit; 3 is refused."""
        async for request in request_iterator:
            if request.credit == 3:
                raise InvalidArgument("credit is 3", reason=Reason.TOO_LARGE)
            yield pb.SampleResponse(table_items=request.credit)


class _Request:
    """A request that can be watched."""

    alive: ClassVar[weakref.WeakSet[_Request]] = weakref.WeakSet()

    def __init__(self, raw: bytes) -> None:
        self.alive.add(self)


async def _refuse(request: _Request, context: object) -> bytes:
    raise InvalidArgument("whatever it is")


async def _refuse_the_second(requests: AsyncIterator[_Request], context: object) -> AsyncIterator[bytes]:
    yield await _answer_to(await anext(requests))
    await _refuse(await anext(requests), context)


async def _answer_to(request: _Request) -> bytes:
    return b"answer"


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    """A bound server with the test's servicer."""
    with BackgroundServer("test", ServerSettings(grace_s=0.5)) as background:
        replay_pb2_grpc.add_ReplayServiceServicer_to_server(_Servicer(), background.server.grpc)
        background.server.announce(_SERVICE)
        yield background


def _check(channel: grpc.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=5).status)


def test_health_is_serving_only_once_told(server: BackgroundServer) -> None:
    """A process that is still preparing reports NOT_SERVING, for itself and for its services."""
    with open_channel(server.start()) as channel:
        states = health_pb2.HealthCheckResponse
        assert [_check(channel, name) for name in ("", _SERVICE)] == [states.NOT_SERVING] * 2
        server.set_serving(True)
        assert [_check(channel, name) for name in ("", _SERVICE)] == [states.SERVING] * 2


def test_server_raises_its_limit_of_open_files(server: BackgroundServer) -> None:
    """Each connection is a file, and the usual soft limit of a shell is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        server.start()
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


@pytest.mark.parametrize("soft, most, expected", [(256, 61_440, 10_240), (256, 4_096, 4_096), (10_240, 10_240, 10_240)])
def test_limit_of_open_files_is_raised_to_what_the_system_accepts(
    soft: int, most: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, where the hard limit is infinite and a number above another bound is refused."""
    limits = [(soft, resource.RLIM_INFINITY)]

    def limit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", limit)
    raise_open_files()
    assert limits[-1] == (expected, resource.RLIM_INFINITY)


def test_exception_of_a_handler_reaches_the_client_as_itself(server: BackgroundServer) -> None:
    """NotFound on the server is NotFound, with its message, in the client."""
    with (
        open_channel(server.start()) as channel,
        pytest.raises(NotFound, match=r"^no table 'a'$"),
        translated(),
    ):
        replay_pb2_grpc.ReplayServiceStub(channel).DescribeTable(pb.DescribeTableRequest(name="a"), timeout=5)


def test_call_of_another_service_says_that_the_address_may_be_wrong(server: BackgroundServer) -> None:
    """GRPC answers `Method not found!`, which names nothing."""
    with (
        open_channel(server.start()) as channel,
        pytest.raises(Unimplemented, match=naming("address another service release Method not found")),
        translated(),
    ):
        learner_pb2_grpc.LearnerServiceStub(channel).GetStatus(learner_pb2.GetStatusRequest(), timeout=5)


@pytest.mark.parametrize("kept", [True, False], ids=["present", "newer"])
def test_reason_of_an_error_crosses_the_wire(
    server: BackgroundServer, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Each in a trailer of a call or a stream, by its name in the contract; one that a client does not know is none."""
    if not kept:
        monkeypatch.setattr("tidemill.rpc.status.Reason", {})
    with open_channel(server.start()) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        for reason in Reason:
            with pytest.raises(FailedPrecondition, check=because(reason if kept else None)) as caught, translated():
                stub.DescribeTable(pb.DescribeTableRequest(name=reason.name), timeout=5)
            assert isinstance(caught.value.__cause__, grpc.RpcError)
            sent: dict[str, Any] = {each.key: each.value for each in caught.value.__cause__.trailing_metadata()}
            assert sent["tidemill-reason"] == f"REASON_{reason.name}"
        with pytest.raises(InvalidArgument, check=because(Reason.TOO_LARGE if kept else None)), translated():
            next(stub.Sample(iter([pb.SampleRequest(credit=3)]), timeout=5))


@pytest.mark.parametrize("value", ["x", "é", "\N{PILE OF POO}", "%", "\n"])
def test_long_message_is_cut_and_keeps_its_status(server: BackgroundServer, value: str) -> None:
    """However long a refused value is, the client gets the status and the message's beginning and end."""
    request = pb.DescribeTableRequest(name=value * 100_000)
    with open_channel(server.start()) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        with pytest.raises(NotFound, match=r"^no table '.*left out.*'$") as caught, translated():
            stub.DescribeTable(request, timeout=5)
    assert len(str(caught.value).encode()) < 2_100


def test_request_that_is_no_message_is_invalid_and_told_once(
    server: BackgroundServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a call or within a stream; each is counted, one line is written, and the server survives."""
    before = _undecodable()
    with open_channel(server.start()) as channel:
        call: Any = channel.unary_unary(f"/{_SERVICE}/DescribeTable")
        stream: Any = channel.stream_stream(f"/{_SERVICE}/Sample")
        good = pb.SampleRequest(credit=7).SerializeToString()
        for _ in range(20):
            with pytest.raises(InvalidArgument, match=naming("3"), check=because(Reason.UNDECODABLE)), translated():
                call(b"\xff\xff\xff", timeout=5)
        answers = stream(iter([good, b"\xff\xff\xff"]), timeout=5)
        assert pb.SampleResponse.FromString(next(answers)).table_items == 7
        with pytest.raises(InvalidArgument, match=naming(f"{_SERVICE}/Sample")), translated():
            next(answers)
        assert _check(channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING
    assert _undecodable() - before == 21
    written = "".join(capfd.readouterr())
    assert written.count("request cannot be decoded") == 1
    assert "Traceback" not in written


def _undecodable() -> float:
    samples = (s for metric in REGISTRY.collect() if metric.name == "grpc_server_undecodable" for s in metric.samples)
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


def test_fault_of_a_handler_is_internal_and_the_server_lives(server: BackgroundServer) -> None:
    """A bug answers INTERNAL with the exception's name; the next call works."""
    with open_channel(server.start()) as channel:
        stub = replay_pb2_grpc.ReplayServiceStub(channel)
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as caught:
                stub.DescribeTable(pb.DescribeTableRequest(name="fault"), timeout=5)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "ZeroDivisionError" in str(caught.value.details())


def test_stream_that_fails_midway_delivers_what_came_before(server: BackgroundServer) -> None:
    """Responses sent before the error arrive, then its status."""
    with open_channel(server.start()) as channel:
        requests = iter([pb.SampleRequest(credit=1), pb.SampleRequest(credit=3)])
        responses = replay_pb2_grpc.ReplayServiceStub(channel).Sample(requests, timeout=5)
        assert next(responses).table_items == 1
        with pytest.raises(InvalidArgument, match=naming("credit 3")), translated():
            next(responses)


def test_refused_request_does_not_stay_until_a_garbage_collection(server: BackgroundServer) -> None:
    """Or a caller could have the server hold message after message: a failed call is cyclic garbage of grpc's."""
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_refuse, request_deserializer=_Request),
        "Stream": grpc.stream_stream_rpc_method_handler(_refuse_the_second, request_deserializer=_Request),
    }
    server.server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Refusing", handlers),))
    gc.disable()
    try:
        with open_channel(server.start()) as channel:
            unary: Any = channel.unary_unary("/test.Refusing/Unary")
            stream: Any = channel.stream_stream("/test.Refusing/Stream")
            with pytest.raises(grpc.RpcError, match="whatever it is"):
                unary(b"1", timeout=5)
            with pytest.raises(grpc.RpcError, match="whatever it is"):
                list(stream(iter([b"2", b"3"]), timeout=5))
            # the server's thread is done with a call shortly after its caller
            wait_until(lambda: not _Request.alive, "the requests to leave", 10.0)
    finally:
        gc.enable()


def test_server_stops_once_the_handlers_have_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """A handler may need some turns of the loop after its call was ended: the loop's end does not interrupt it."""
    ended = []

    async def serve() -> None:
        called = asyncio.Event()

        async def linger(request: bytes, context: object) -> bytes:
            called.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                for _ in range(100):
                    await asyncio.sleep(0)
                ended.append(True)
            return b""

        server = RpcServer("test", ServerSettings(grace_s=0.0))
        handlers: dict[str, Any] = {"Linger": grpc.unary_unary_rpc_method_handler(linger)}
        server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Lingering", handlers),))
        with open_channel(await server.start()) as channel:
            method: Any = channel.unary_unary("/test.Lingering/Linger")
            call = method.future(b"")
            await called.wait()
            await server.stop()
            call.cancel()

    asyncio.run(serve())
    assert ended == [True]
    assert "Traceback" not in "".join(capfd.readouterr())


def test_port_in_use_is_an_error_that_says_so(server: BackgroundServer) -> None:
    """Two servers never share a port in silence."""
    address = server.start()
    with (
        BackgroundServer("second", ServerSettings(address=address)) as second,
        pytest.raises(FatalError, match=naming(address)),
    ):
        second.start()


def test_unix_socket_is_an_address(tmp_path: Path) -> None:
    """A socket file works like a port."""
    settings = ServerSettings(address=f"unix://{tmp_path}/s.sock")
    with BackgroundServer("unix", settings) as background, open_channel(background.start()) as channel:
        assert _check(channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING


def test_unix_socket_in_use_is_an_error_that_says_so(tmp_path: Path) -> None:
    """The first server keeps its clients; a socket that a killed one left is taken."""
    settings = ServerSettings(address=f"unix://{tmp_path}/s.sock")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{tmp_path}/s.sock")
    with BackgroundServer("first", settings) as first:
        address = first.start()
        with (
            BackgroundServer("second", settings) as second,
            pytest.raises(FatalError, match=naming(address, "another process")),
        ):
            second.start()
        with open_channel(address) as channel:
            assert _check(channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:1", "[::1]:5", "127.9.9.9:80", "unix:///tmp/x"])
def test_loopback_address_needs_no_permission(address: str) -> None:
    """Addresses of this machine alone are allowed."""
    check_exposure(address, insecure=False)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.1.2.3:1", "example.org:1"])
def test_exposed_address_needs_permission(address: str) -> None:
    """Addresses that others reach are refused unless insecure is set."""
    check_exposure(address, insecure=True)
    with pytest.raises(ConfigError, match=naming("127.0.0.1")):
        check_exposure(address, insecure=False)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:", "host:port"])
def test_malformed_address_is_refused(address: str) -> None:
    """The message says what an address looks like."""
    with pytest.raises(ConfigError, match=naming("host:port")):
        check_exposure(address, insecure=True)


def test_every_exception_with_a_status_survives_the_wire() -> None:
    """The table of statuses reads the same in both directions."""

    class Failed(grpc.RpcError):
        def __init__(self, code: grpc.StatusCode, details: str = "why") -> None:
            self._code, self._details = code, details

        def code(self) -> grpc.StatusCode:
            return self._code

        def details(self) -> str:
            return self._details

        def trailing_metadata(self) -> tuple[Any, ...]:
            return ()

    for kind in TidemillError.__subclasses__():
        if kind is not FatalError:
            assert type(from_rpc_error(Failed(to_status(kind("why"))))) is kind
    proxied = Failed(grpc.StatusCode.UNIMPLEMENTED, "Received http2 header with status: 404")
    assert type(from_rpc_error(proxied)) is Unavailable
    assert "another program" in str(from_rpc_error(proxied))
    assert to_status(ConfigError("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert to_status(FatalError("x")) is grpc.StatusCode.INTERNAL
