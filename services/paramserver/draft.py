"""A version that a publisher announces, before it has a number."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tidemill.errors import InvalidArgument, ResourceExhausted
from tidemill.params.version import Encoding, ParamsMetadata, Precision

MAX_TEXT_CHARACTERS = 256
"""Longest text in metadata and longest publisher name."""

_SHA256_BYTES = 32


@dataclass(frozen=True)
class Draft:
    """What a publish announces.

    Attributes:
        generation: Generation of the publisher.
        base_version: Newest version the publisher knows of; 0 for none.
        metadata: What the parameters are.
        encodings: Encodings in the order in which their bytes follow, full precision first.
    """

    generation: int
    base_version: int
    metadata: ParamsMetadata
    encodings: tuple[Encoding, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all encodings together."""
        return sum(encoding.size_bytes for encoding in self.encodings)

    def check(self, max_blob_bytes: int) -> None:
        """Refuse a draft whose fields are out of range, before memory or disk is taken for it.

        Raises:
            InvalidArgument: A field is out of range.
            ResourceExhausted: An encoding is larger than `max_blob_bytes`.
        """
        _expect(self.generation >= 1, "generation", self.generation, "1 or more, from OpenGeneration")
        for name, value in dataclasses.asdict(self.metadata).items():
            if isinstance(value, str):
                check_text(f"metadata.{name}", value)
        precisions = [encoding.precision for encoding in self.encodings]
        named = [precision.value for precision in precisions]
        _expect(precisions[:1] == [Precision.FULL], "encodings", named, "full precision first")
        _expect(len(set(precisions)) == len(precisions), "encodings", named, "each precision at most once")
        for encoding in self.encodings:
            _check_encoding(encoding, max_blob_bytes)


def check_text(field: str, value: str) -> None:
    """Refuse a text longer than `MAX_TEXT_CHARACTERS`.

    Raises:
        InvalidArgument: It is longer.
    """
    if len(value) > MAX_TEXT_CHARACTERS:
        raise InvalidArgument(
            f"{field} has {len(value)} characters ({value[:32]!r}...), allowed: {MAX_TEXT_CHARACTERS}"
        )


def _check_encoding(encoding: Encoding, max_blob_bytes: int) -> None:
    field = f"encodings[{encoding.precision.value}]"
    _expect(encoding.size_bytes >= 1, f"{field}.size_bytes", encoding.size_bytes, "1 or more")
    if encoding.size_bytes > max_blob_bytes:
        raise ResourceExhausted(
            f"{field}.size_bytes is {encoding.size_bytes}, allowed: at most paramserver.max_blob_bytes, "
            f"{max_blob_bytes}"
        )
    length = len(encoding.sha256)
    _expect(length == _SHA256_BYTES, f"length of {field}.sha256", length, f"{_SHA256_BYTES} bytes")


def _expect(is_valid: bool, field: str, value: object, allowed: str) -> None:
    if not is_valid:
        raise InvalidArgument(f"{field} is {value!r}, allowed: {allowed}")
