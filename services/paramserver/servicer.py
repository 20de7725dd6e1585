"""The parameter server's API: checks a request, asks the store, packs the answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc.aio
import structlog

from tidemill.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, Reason, TidemillError, Unavailable
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.v1 import params_pb2_grpc
from tidemill.params.version import LATEST, Precision, Version, check_tag
from tidemill.params.wire import (
    MAX_PIECE_BYTES,
    pack_encoding,
    pack_version,
    unpack_encoding,
    unpack_metadata,
    unpack_newer_than_created,
    unpack_precision,
)
from tidemill.rpc.addresses import caller_of
from tidemill.rpc.server import RpcServer
from tidemill.rpc.status import to_status, trailers
from tidemill.rpc.tls import is_local
from tidemill.services.paramserver.metrics import Metrics
from tidemill.services.paramserver.upload import PublishRequest, check_text
from tidemill.services.paramserver.version_files import StoredBlob
from tidemill.services.paramserver.version_notifier import VersionNotifier
from tidemill.services.paramserver.version_store import VersionStore
from tidemill.services.paramserver.writer import StoreWriter

_FULL_NAME = pb.DESCRIPTOR.services_by_name["ParamService"].full_name

MAX_WAIT_S = 300.0
"""Longest wait of a fetch for a newer version, in seconds."""

FETCH_SLOT_TIMEOUT_S = 30.0
"""Longest wait of a fetch for memory, in seconds."""

UNREAD_S = 30.0
"""Time in which the caller of a fetch must read a piece of it, in seconds."""

_MOST_UNREAD = 16
"""Fetches that one address may leave unread and open, before it is refused others."""

_PIECE_BYTES = MAX_PIECE_BYTES // 4
"""Bytes in one message of a fetch: smaller ones cost more time to send, larger ones more memory."""

_PIECE = f"a piece of {_PIECE_BYTES // 1024} KiB"

FETCH_BYTES = 5 * _PIECE_BYTES
"""Memory of one fetch that is being sent, its connection included, in bytes; measured with readers that do not read."""

_log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]


class ParamServicer(params_pb2_grpc.ParamServiceServicer):
    """Answers the calls of `ParamService`."""

    def __init__(
        self,
        store: VersionStore,
        writer: StoreWriter,
        notifier: VersionNotifier,
        metrics: Metrics,
        *,
        max_fetch_bytes: int,
        fetch_timeout_s: float = FETCH_SLOT_TIMEOUT_S,
        unread_s: float = UNREAD_S,
    ) -> None:
        """Create the servicer.

        Args:
            store: What is read.
            writer: Changes it.
            notifier: Announces changes.
            metrics: Counts every call.
            max_fetch_bytes: Half of it is for what is on its way to readers, and so bounds how many there are at a
                time; the other half is the store's.
            fetch_timeout_s: Longest wait of a fetch for that memory, in seconds.
            unread_s: How long a fetch may hold that memory while less than a piece of it is read, in seconds.
        """
        self._max_fetches = max(max_fetch_bytes // 2 // FETCH_BYTES, 1)
        self._fetch_slots = asyncio.Semaphore(self._max_fetches)
        self._fetch_timeout_s, self._unread_s = fetch_timeout_s, unread_s
        self._unread: dict[asyncio.Task[None], str] = {}  # by refusal, which lasts as long as the call: who calls
        self._store, self._writer, self._notifier, self._metrics = store, writer, notifier, metrics

    def add_to(self, server: RpcServer) -> None:
        """Register this servicer with a server."""
        params_pb2_grpc.add_ParamServiceServicer_to_server(self, server.grpc)
        server.announce(_FULL_NAME)

    async def AcquireFencingToken(
        self, request: pb.AcquireFencingTokenRequest, context: Context
    ) -> pb.AcquireFencingTokenResponse:
        """Make the caller the one publisher."""
        check_text("publisher", request.publisher)
        catalog = await self._writer.acquire_fencing_token(
            request.last_known_token, request.last_known_version, request.held_token
        )
        newest = catalog.newest.version if catalog.newest else 0
        _log.info("new publisher", publisher=request.publisher, fencing_token=catalog.fencing_token, latest=newest)
        return pb.AcquireFencingTokenResponse(fencing_token=catalog.fencing_token, latest_version=newest)

    async def Publish(self, request_iterator: AsyncIterator[pb.PublishRequest], context: Context) -> pb.PublishResponse:
        """Store a version."""
        request = _unpack_request(await anext(request_iterator, pb.PublishRequest()))
        try:
            with self._metrics.publish_seconds.time():
                version, is_new = await self._writer.publish(request, _pieces(request_iterator))
        except TidemillError as error:
            is_stale = isinstance(error, FailedPrecondition)
            (self._metrics.stale_publishes if is_stale else self._metrics.refused_publishes).inc()
            _log.warning("publish refused", fencing_token=request.fencing_token, reason=str(error))
            raise
        if is_new:
            self._metrics.published.inc()
            steps = version.metadata.learner_steps
            _log.debug("published", version=version.version, learner_steps=steps, bytes=request.size_bytes)
        return pb.PublishResponse(version=version.version)

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> AsyncIterator[pb.FetchResponse]:
        """Send a version, now or when there is a newer one."""
        _check_fetch(request)
        precision = unpack_precision(request.precision) if request.precision else Precision.FULL
        with self._metrics.fetches.track_inprogress():
            while (version := await self._find(request)) is not None:
                if request.accepts_file and (request.sees_folder or is_local(unquote(context.peer()))):
                    yield pb.FetchResponse(header=self._file_header(version, precision))
                    return
                async with self._fetch_slot():
                    self._check_read(context)
                    try:
                        blob = self._store.open(version.version, precision)
                    except NotFound as error:
                        if version.version in self._store.catalog.versions:  # not removed by retention
                            missing = f"its {version.encoding(precision).precision.value} encoding is missing"
                            raise self._corrupt(version, missing) from error
                        if not request.tag:
                            raise  # a version requested by number is gone; a tag points at another one by now
                        continue
                    with contextlib.closing(blob):
                        async for response in self._send(version, blob, context):
                            yield response
                    return
            yield pb.FetchResponse(header=pb.FetchHeader(not_newer=True))

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchResponse]:
        """Announce where a tag points, now and after every change."""
        tag, known = request.tag or LATEST, request.newer_than
        check_tag(tag)
        with self._metrics.watchers.track_inprogress():
            while True:
                version = await self._notifier.wait_for(partial(self._tagged, tag, partial(_is_other, known)))
                known = version.version
                yield pb.WatchResponse(version=pack_version(version))

    async def ListVersions(self, request: pb.ListVersionsRequest, context: Context) -> pb.ListVersionsResponse:
        """List versions and tags."""
        catalog = self._store.catalog
        versions = [pack_version(version) for version in catalog.versions.values()]
        return pb.ListVersionsResponse(versions=versions, tags=catalog.all_tags, fencing_token=catalog.fencing_token)

    async def SetTag(self, request: pb.SetTagRequest, context: Context) -> pb.SetTagResponse:
        """Point a tag at a version."""
        await self._writer.set_tag(request.tag, request.version)
        _log.info("tag set", tag=request.tag, version=request.version)
        return pb.SetTagResponse()

    def _check_read(self, context: Context) -> None:
        """Refuse a caller who keeps fetches open that it does not read: the last piece of each stays in memory."""
        if not self._unread:
            return
        caller = caller_of(context.peer())
        if (count := sum(each == caller for each in self._unread.values())) >= _MOST_UNREAD:
            raise Unavailable(
                f"{count} fetches from {caller} are open of which less than {_PIECE} was read in {self._unread_s:g} s; "
                "end them and fetch again",
                reason=Reason.BUSY,
            )

    @contextlib.asynccontextmanager
    async def _fetch_slot(self) -> AsyncIterator[None]:
        """Wait until there is memory for one more reader, and hold it until the end."""
        try:
            async with asyncio.timeout(self._fetch_timeout_s):
                await self._fetch_slots.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{self._max_fetches} fetches are in progress, the most that paramserver.max_fetch_bytes allows, "
                f"and this one waited {self._fetch_timeout_s:g} s for its turn; fetch again",
                reason=Reason.BUSY,
            ) from None
        try:
            yield
        finally:
            self._fetch_slots.release()

    def _file_header(self, version: Version, precision: Precision) -> pb.FetchHeader:
        encoding, file = version.encoding(precision), str(self._store.file(version, precision))
        return pb.FetchHeader(version=pack_version(version), encoding=pack_encoding(encoding), file=file)

    async def _send(self, version: Version, blob: StoredBlob, context: Context) -> AsyncIterator[pb.FetchResponse]:
        if not blob.in_memory:
            await self._verify(version, blob)
        header = pb.FetchHeader(version=pack_version(version), encoding=pack_encoding(blob.encoding))
        with self._read_in_time(context):
            yield pb.FetchResponse(header=header)
        sent_bytes = self._metrics.fetched_bytes.labels(blob.encoding.precision.value)
        while True:
            piece = blob.read_memory(_PIECE_BYTES)
            if piece is None:
                piece = await asyncio.to_thread(blob.read_disk, _PIECE_BYTES)
            if not piece:
                return
            sent_bytes.inc(len(piece))
            with self._read_in_time(context):
                yield pb.FetchResponse(piece=piece)

    @contextlib.contextmanager
    def _read_in_time(self, context: Context) -> Iterator[None]:
        """End the call if the message that the block yields is not read in time.

        gRPC waits for the reader in the call's task, where it does not come back to the block.
        """
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        timer = asyncio.get_running_loop().call_later(self._unread_s, self._end_unread, context, task)
        try:
            yield
        finally:
            timer.cancel()

    def _end_unread(self, context: Context, task: asyncio.Task[Any]) -> None:
        refusal, caller = asyncio.create_task(self._refuse(context)), caller_of(context.peer())
        self._metrics.unread_fetches.inc()
        _log.warning(f"fetch ended: less than {_PIECE} was read in time", caller=caller, limit_s=self._unread_s)
        self._unread[refusal] = caller
        refusal.add_done_callback(self._unread.pop)
        task.cancel()

    async def _refuse(self, context: Context) -> None:
        error = Unavailable(
            f"less than {_PIECE} of this fetch was read in {self._unread_s:g} s; fetch again",
            reason=Reason.CALLER_SILENT,
        )
        with contextlib.suppress(Exception):  # abort raises in any case
            await context.abort(to_status(error), str(error), trailers(error))

    async def _find(self, request: pb.FetchRequest) -> Version | None:
        if not request.tag:
            version = self._store.catalog.find(request.version)
            return version if _is_newer(version, request) else None
        if request.tag not in (LATEST, *self._store.catalog.tags):
            raise NotFound(f"tag {request.tag!r} is not set", reason=Reason.UNKNOWN_TAG)
        look = partial(self._tagged, request.tag, lambda version: _is_newer(version, request))
        return await self._notifier.wait_for_within(look, request.wait_s)

    def _tagged(self, tag: str, is_wanted: Callable[[Version], bool]) -> Version | None:
        version = self._store.catalog.tagged(tag)
        return version if version is not None and is_wanted(version) else None

    async def _verify(self, version: Version, blob: StoredBlob) -> None:
        try:
            await asyncio.to_thread(blob.verify)
        except DataLoss as error:
            raise self._corrupt(version, str(error)) from error

    def _corrupt(self, version: Version, reason: str) -> DataLoss:
        """Count and log a version that cannot be served; return the error."""
        self._metrics.corrupt_versions.inc()
        _log.error("version corrupt, not served", version=version.version, reason=reason)
        return DataLoss(f"version {version.version} is corrupt: {reason}")


def _unpack_request(first: pb.PublishRequest) -> PublishRequest:
    if first.WhichOneof("message") != "header":
        raise InvalidArgument("the first message of a publish must be its header")
    header = first.header
    return PublishRequest(
        fencing_token=header.fencing_token,
        base_version=header.base_version,
        metadata=unpack_metadata(header.metadata),
        encodings=tuple(unpack_encoding(encoding) for encoding in header.encodings),
    )


async def _pieces(requests: AsyncIterator[pb.PublishRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("message") != "piece":
            raise InvalidArgument("after its header, a publish holds only pieces")
        if not 1 <= len(request.piece) <= MAX_PIECE_BYTES:
            raise InvalidArgument(f"piece has {len(request.piece)} bytes, allowed: 1 to {MAX_PIECE_BYTES}")
        yield request.piece


def _is_newer(version: Version, request: pb.FetchRequest) -> bool:
    created = unpack_newer_than_created(request)
    return version.version > request.newer_than or (created is not None and version.created > created)


def _is_other(known: int, version: Version) -> bool:
    return version.version != known


def _check_fetch(request: pb.FetchRequest) -> None:
    if request.WhichOneof("selector") is None:
        raise InvalidArgument("selector is missing: name a version or a tag")
    if request.WhichOneof("selector") == "tag":
        check_tag(request.tag)
    elif request.version == 0:
        raise InvalidArgument("version is 0, allowed: 1 or more")
    if not (math.isfinite(request.wait_s) and 0 <= request.wait_s <= MAX_WAIT_S):
        raise InvalidArgument(f"wait_s is {request.wait_s}, allowed: 0 to {MAX_WAIT_S:g}")
    unpack_newer_than_created(request)
