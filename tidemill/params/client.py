"""The synchronous client of the parameter server, which reads a version's file itself where it can."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from tidemill.closing import Closing
from tidemill.errors import DataLoss, ResourceExhausted
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.v1 import params_pb2_grpc
from tidemill.params.version import (
    LATEST,
    MAX_BLOB_BYTES,
    Encoding,
    Params,
    ParamsMetadata,
    Precision,
    PublisherGrant,
    Version,
    VersionList,
)
from tidemill.params.wire import (
    MAX_PIECE_BYTES,
    pack_encoding,
    pack_metadata,
    pack_precision,
    unpack_encoding,
    unpack_version,
)
from tidemill.replay.argument_types import check_address, check_deadline, check_range
from tidemill.rpc.channel import DEADLINE_S, open_channel
from tidemill.rpc.fork import OwnerProcess
from tidemill.rpc.silence import each_within
from tidemill.rpc.status import translated


class UnreadableFile(Exception):
    """The file cannot be read here, or is not what the server says; its bytes must be sent.

    Attributes:
        may_pass: Whether the next version's file may be readable: not where the server's folder cannot be seen.
    """

    def __init__(self, message: str, *, may_pass: bool) -> None:
        """Take what is wrong, and whether it may pass."""
        super().__init__(message)
        self.may_pass = may_pass


def read_encoding(path: str, encoding: Encoding) -> bytes:
    """Return the bytes of an encoding's file, checked against its size and SHA-256.

    Args:
        path: Where the server says that it is. Nothing but a regular file of the right size is read.
        encoding: What the server says of it.

    Raises:
        UnreadableFile: It cannot be read, or is another file.
    """
    try:
        # A pipe would keep an open() waiting that may block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != encoding.size_bytes:
                raise UnreadableFile(f"{path} is another file", may_pass=False)
            blob = file.readall()
    except (OSError, ValueError) as error:  # the latter for a path with a null byte
        is_retained = isinstance(error, FileNotFoundError) and Path(path).parent.is_dir()
        raise UnreadableFile(f"cannot read {path}: {error}", may_pass=is_retained) from error
    if hashlib.sha256(blob).digest() != encoding.sha256:
        raise UnreadableFile(f"{path} does not match its SHA-256", may_pass=False)
    return blob


TRANSFER_DEADLINE_S = 60.0
"""Longest wait for the next bytes of a fetch, in seconds; a publish may take as long besides its bytes."""

_LEAST_BYTES_PER_S = MAX_PIECE_BYTES
"""Slowest line over which a publish is not given up."""


class ParamsClient(Closing):
    """Publishes, fetches and tags versions. Safe to use from several threads.

    Every call raises `Unavailable` when the server cannot be reached or does not answer within its deadline.

    Example:
        >>> import numpy as np
        >>> import tidemill
        >>> from tidemill.params.blob import pack, unpack
        >>> blob = pack({"weight": np.zeros((2, 3), np.float32)})
        >>> with tidemill.ParamsClient("127.0.0.1:7402") as params:
        ...     token = params.acquire_fencing_token("a notebook").fencing_token  # older publishers are refused now
        ...     metadata = tidemill.ParamsMetadata(algorithm="mine", learner_steps=100)
        ...     blobs = {tidemill.Precision.FULL: blob}
        ...     version = params.publish(blobs, metadata, fencing_token=token, base_version=0)
        ...     params.set_tag("favourite", version)
        ...     fetched = params.fetch("favourite")
        >>> fetched.version.metadata.learner_steps, unpack(fetched.blob)["weight"].shape
        (100, (2, 3))
    """

    def __init__(
        self,
        address: str,
        *,
        deadline_s: float = DEADLINE_S,
        transfer_deadline_s: float = TRANSFER_DEADLINE_S,
        max_blob_bytes: int = MAX_BLOB_BYTES,
        reads_files: bool = True,
        folder: Path | None = None,
    ) -> None:
        """Prepare a channel; it connects with the first call.

        Args:
            address: `host:port`, `dns:///name:port` or `unix:///path`.
            deadline_s: Longest wait for an answer, in seconds.
            transfer_deadline_s: Longest wait for the next bytes of a fetch, in seconds. A publish may take as long, and
                one second more for each MiB.
            max_blob_bytes: Largest encoding a fetch accepts, in bytes.
            reads_files: Whether to read a version's file where the server and its folder are on this machine, which
                costs a fraction of being sent its bytes.
            folder: Where the server's folder of versions is mounted, if it is. Files are then read there, on whatever
                machine the server is. A folder that does not exist is ignored.
        """
        check_address(address)
        check_deadline("deadline_s", deadline_s)
        check_deadline("transfer_deadline_s", transfer_deadline_s)
        self._address = address
        self._channel = open_channel(address)
        self._stub = params_pb2_grpc.ParamServiceStub(self._channel)
        self._deadline_s, self._transfer_deadline_s = deadline_s, transfer_deadline_s
        self._max_blob_bytes, self._reads_files = max_blob_bytes, reads_files
        self._folder = folder

    def acquire_fencing_token(
        self,
        publisher: str,
        *,
        last_known_token: int = 0,
        last_known_version: int = 0,
        held_token: int = 0,
        connect_timeout_s: float = 0.0,
    ) -> PublisherGrant:
        """Become the one publisher: older fencing tokens are refused from now on.

        Args:
            publisher: Who asks, for the server's log, e.g. host name and process id.
            last_known_token: Greatest fencing token known, e.g. from a checkpoint; the new one is greater.
            last_known_version: Greatest version known; the next one is greater, even if the server has lost them all.
            held_token: Fencing token that the caller has and keeps, as its server has lost versions; 0 for a new one.
            connect_timeout_s: How long to wait for a server that is not yet up, and for its answer, in
                seconds; 0 does not wait for a server.

        Raises:
            FailedPrecondition: `held_token` was superseded.
        """
        with translated():
            response = self._stub.AcquireFencingToken(
                pb.AcquireFencingTokenRequest(
                    publisher=publisher,
                    last_known_token=last_known_token,
                    last_known_version=last_known_version,
                    held_token=held_token,
                ),
                timeout=connect_timeout_s or self._deadline_s,
                wait_for_ready=connect_timeout_s > 0,
            )
        return PublisherGrant(response.fencing_token, response.latest_version)

    def publish(
        self,
        blobs: Mapping[Precision, bytes],
        metadata: ParamsMetadata,
        *,
        fencing_token: int,
        base_version: int,
    ) -> int:
        """Store a new version and return its number once it is on disk. Repeating a call is safe.

        Args:
            blobs: Safetensors bytes by precision; full precision is required.
            metadata: What the parameters are.
            fencing_token: From `acquire_fencing_token`.
            base_version: Newest version the publisher knows of; 0 for none.

        Raises:
            FailedPrecondition: The fencing token was superseded, or `base_version` is not the newest version.
            InvalidArgument: A field is out of range.
            ResourceExhausted: An encoding is larger than the server's limit, or its disk is full.
            DataLoss: The bytes changed in transit.
        """
        ordered = [(precision, blobs[precision]) for precision in Precision if precision in blobs]
        header = pb.PublishHeader(
            fencing_token=fencing_token,
            base_version=base_version,
            metadata=pack_metadata(metadata),
            encodings=[pack_encoding(_describe(precision, blob)) for precision, blob in ordered],
        )
        size_bytes = sum(len(blob) for _, blob in ordered)
        timeout_s = self._transfer_deadline_s + size_bytes / _LEAST_BYTES_PER_S
        with translated():
            response = self._stub.Publish(_messages(header, [blob for _, blob in ordered]), timeout=timeout_s)
        return int(response.version)

    def fetch(
        self,
        selector: int | str = LATEST,
        *,
        newer_than: int | Version = 0,
        wait_s: float = 0.0,
        precision: Precision = Precision.FULL,
    ) -> Params | None:
        """Read a version, or return None when there is none newer than `newer_than` in time.

        Args:
            selector: Number of a version, or a tag.
            newer_than: Only a version whose number is greater than this; 0 means any. Of a version, one created later
                is returned, too: a server that was started with another folder numbers from 1 again.
            wait_s: How long to wait for one, in seconds, 0 to 300.
            precision: Preferred number format; full precision is returned when the version has no such encoding.

        Raises:
            NotFound: No such version or tag.
            InvalidArgument: A field is out of range.
            DataLoss: The stored bytes are corrupt, or the bytes changed in transit.
            ResourceExhausted: The encoding is larger than `max_blob_bytes`.
        """
        request = pb.FetchRequest(wait_s=wait_s, precision=pack_precision(precision))
        if isinstance(newer_than, Version):
            request.newer_than = newer_than.version
            request.newer_than_created.FromDatetime(newer_than.created)
        else:
            request.newer_than = newer_than
        if isinstance(selector, str):
            request.tag = selector
        else:
            check_range("selector", selector, 1, 2**64 - 1)
            request.version = selector
        with translated():
            try:
                return self._fetch(request, accepts_file=self._reads_files)
            except UnreadableFile as unreadable:
                self._reads_files = unreadable.may_pass
                return self._fetch(request, accepts_file=False)

    def watch(self, tag: str = LATEST, *, newer_than: int = 0) -> Watch:
        """Return an iterator over the versions a tag points at: at once, then whenever it changes.

        It has no deadline; keepalive notices within seconds when the server is gone.

        Args:
            tag: Tag to watch; it need not be set yet.
            newer_than: A version not to announce at first, e.g. the one already known.
        """
        return Watch(self._stub.Watch(pb.WatchRequest(tag=tag, newer_than=newer_than)))

    def list_versions(self) -> VersionList:
        """Return the versions the server still has, and all tags."""
        with translated():
            response = self._stub.ListVersions(pb.ListVersionsRequest(), timeout=self._deadline_s)
        versions = tuple(map(unpack_version, response.versions))
        return VersionList(versions, dict(response.tags), response.fencing_token)

    def set_tag(self, tag: str, version: int) -> None:
        """Point a tag at a version, which is then kept until the tag moves.

        Raises:
            NotFound: No such version.
            InvalidArgument: The name is malformed, or `latest`.
        """
        with translated():
            self._stub.SetTag(pb.SetTagRequest(tag=tag, version=version), timeout=self._deadline_s)

    def close(self) -> None:
        """Close the channel; calls in progress end with `Unavailable`. May be called twice."""
        self._channel.close()

    def _fetch(self, request: pb.FetchRequest, *, accepts_file: bool) -> Params | None:
        folder = self._folder if accepts_file and self._folder is not None and self._folder.is_dir() else None
        request.accepts_file, request.sees_folder = accepts_file, folder is not None
        call = self._stub.Fetch(request)
        try:
            first_s = request.wait_s + self._transfer_deadline_s
            server = f"the parameter server at {self._address}"
            return self._receive(each_within(call, server, self._transfer_deadline_s, first_s), folder)
        finally:
            call.cancel()  # without effect on a call that ended

    def _receive(self, responses: Iterator[pb.FetchResponse], folder: Path | None) -> Params | None:
        first = next(responses, None)
        if first is None or not first.HasField("header"):
            raise DataLoss("a fetch began without its header")
        if first.header.not_newer:
            next(responses, None)  # the end of the call
            return None
        version, encoding = unpack_version(first.header.version), unpack_encoding(first.header.encoding)
        if encoding.size_bytes > self._max_blob_bytes:
            raise ResourceExhausted(
                f"version {version.version} is {encoding.size_bytes} bytes, allowed: {self._max_blob_bytes}"
            )
        file = first.header.file
        if file and folder is not None:
            file = str(folder / Path(file).name)
        blob = read_encoding(file, encoding) if file else _join(responses, version.version, encoding)
        return Params(version, encoding.precision, blob)


class Watch:
    """Announcements of the version a tag points at; iterate until `cancel`, from any thread, or an error.

    In a process forked from the one that made it iterating raises `FailedPrecondition`, and `cancel` does nothing.
    """

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - grpc publishes no class for it
        self._owner = OwnerProcess("Watch")
        self._call, self._cancelled = call, False

    def __iter__(self) -> Iterator[Version]:
        """Yield versions as they are announced; ends after `cancel`.

        Raises:
            Unavailable: The connection was lost; watch again from the last version.
        """
        self._owner.check()
        with translated():
            try:
                for response in self._call:
                    yield unpack_version(response.version)
                    self._owner.check()
            except grpc.RpcError:
                if not self._cancelled:
                    raise

    def cancel(self) -> None:
        """End the iteration. May be called twice."""
        self._cancelled = True
        if self._owner.is_here:
            self._call.cancel()


def _describe(precision: Precision, blob: bytes) -> Encoding:
    return Encoding(precision, len(blob), hashlib.sha256(blob).digest())


def _messages(header: pb.PublishHeader, blobs: list[bytes]) -> Iterator[pb.PublishRequest]:
    yield pb.PublishRequest(header=header)
    for blob in blobs:
        for start in range(0, len(blob), MAX_PIECE_BYTES):
            yield pb.PublishRequest(piece=blob[start : start + MAX_PIECE_BYTES])


def _join(responses: Iterator[pb.FetchResponse], number: int, encoding: Encoding) -> bytes:
    """Return the bytes of an encoding, checked against its size and SHA-256."""
    pieces: list[bytes] = []
    missing = encoding.size_bytes
    for response in responses:
        pieces.append(response.piece)
        missing -= len(response.piece)
        if missing < 0:
            raise DataLoss(f"version {number} has more than the {encoding.size_bytes} bytes it declared")
    blob = b"".join(pieces)
    if missing or hashlib.sha256(blob).digest() != encoding.sha256:
        raise DataLoss(f"version {number} ({encoding.precision.value}) does not match its size and SHA-256")
    return blob
