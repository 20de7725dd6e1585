"""Versions to and from their messages; used by the client and by the servicer."""

from __future__ import annotations

import dataclasses
import datetime

from tidemill.errors import InvalidArgument
from tidemill.params.v1 import params_pb2 as pb
from tidemill.params.version import Encoding, ParamsMetadata, Precision, Version

MAX_PIECE_BYTES = 1024 * 1024
"""Largest piece of an encoding in one message."""

_PRECISION: dict[Precision, pb.Precision.ValueType] = {
    Precision.FULL: pb.PRECISION_FULL,
    Precision.HALF: pb.PRECISION_HALF,
}
_FROM_PRECISION: dict[int, Precision] = {message: precision for precision, message in _PRECISION.items()}


def pack_precision(precision: Precision) -> pb.Precision.ValueType:
    """Return a precision's number on the wire."""
    return _PRECISION[precision]


def unpack_precision(message: int) -> Precision:
    """Return the precision of a number on the wire.

    Raises:
        InvalidArgument: it is unspecified or unknown.
    """
    precision = _FROM_PRECISION.get(message)
    if precision is None:
        raise InvalidArgument(f"precision is {message}, allowed: PRECISION_FULL (1), PRECISION_HALF (2)")
    return precision


def pack_metadata(metadata: ParamsMetadata) -> pb.Metadata:
    """Return metadata as its message."""
    return pb.Metadata(**dataclasses.asdict(metadata))


def unpack_metadata(message: pb.Metadata) -> ParamsMetadata:
    """Return the metadata of a message."""
    return ParamsMetadata(**{field.name: getattr(message, field.name) for field in dataclasses.fields(ParamsMetadata)})


def pack_encoding(encoding: Encoding) -> pb.Encoding:
    """Return an encoding's description as its message."""
    return pb.Encoding(
        precision=pack_precision(encoding.precision), size_bytes=encoding.size_bytes, sha256=encoding.sha256
    )


def unpack_encoding(message: pb.Encoding) -> Encoding:
    """Return the description of an encoding.

    Raises:
        InvalidArgument: its precision is unspecified or unknown.
    """
    return Encoding(unpack_precision(message.precision), message.size_bytes, message.sha256)


def unpack_newer_than_created(request: pb.FetchRequest) -> datetime.datetime | None:
    """Return when the version that a caller has was created; None if it does not say so.

    Raises:
        InvalidArgument: It is not a time.
    """
    if not request.HasField("newer_than_created"):
        return None
    try:
        return request.newer_than_created.ToDatetime(tzinfo=datetime.UTC)
    except (ValueError, OverflowError) as error:
        seconds, nanos = request.newer_than_created.seconds, request.newer_than_created.nanos
        raise InvalidArgument(f"newer_than_created is {seconds} s and {nanos} ns, which is not a time") from error


def pack_version(version: Version) -> pb.Version:
    """Return a version's description as its message."""
    message = pb.Version(
        version=version.version,
        base_version=version.base_version,
        fencing_token=version.fencing_token,
        metadata=pack_metadata(version.metadata),
        encodings=[pack_encoding(encoding) for encoding in version.encodings],
    )
    message.created.FromDatetime(version.created)
    return message


def unpack_version(message: pb.Version) -> Version:
    """Return the description of a version.

    Raises:
        InvalidArgument: an encoding's precision is unspecified or unknown.
    """
    return Version(
        version=message.version,
        base_version=message.base_version,
        fencing_token=message.fencing_token,
        created=message.created.ToDatetime(tzinfo=datetime.UTC),
        metadata=unpack_metadata(message.metadata),
        encodings=tuple(unpack_encoding(encoding) for encoding in message.encodings),
    )
