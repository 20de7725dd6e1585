"""The JSON documents in a parameter server's folder: each carries its own checksum.

A sealed document is {"sha256": checksum of the content, "content": {...}}. The checksum is that of the content
as JSON with sorted keys and no spaces. The content has the number of the format.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from typing import Any

from tidemill import formats
from tidemill.errors import DataLoss
from tidemill.params.version import Encoding, ParamsMetadata, Precision, Version


def seal(content: dict[str, Any], kind: str = formats.PARAMETERS) -> bytes:
    """Return a document as the bytes of its file, with the number of its format; the inverse of `unseal`."""
    content = {formats.KEY: formats.NEWEST[kind], **content}
    return (json.dumps({"sha256": _digest(content), "content": content}, indent=1) + "\n").encode()


def unseal(data: bytes, where: object, kind: str = formats.PARAMETERS) -> dict[str, Any]:
    """Return the document of a sealed file, without the number of its format.

    Args:
        data: The file's bytes.
        where: The file, for messages.
        kind: Which format it has.

    Raises:
        DataLoss: It is truncated, has flipped bits or is not a sealed document.
        FatalError: It has a format that this version does not know.
    """
    try:
        document = json.loads(data)
        content, digest = document["content"], document["sha256"]
        is_whole = isinstance(content, dict) and _digest(content) == digest
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataLoss(f"it is not a sealed document: {error}") from error
    if not is_whole:
        raise DataLoss("it does not match its SHA-256")
    formats.check_format(kind, content.get(formats.KEY), where)
    return {name: value for name, value in content.items() if name != formats.KEY}


def from_version(version: Version) -> dict[str, Any]:
    """Return a version's description as a document."""
    return {
        **dataclasses.asdict(version),
        "created": version.created.isoformat(),
        "encodings": [
            {"precision": item.precision.value, "size_bytes": item.size_bytes, "sha256": item.sha256.hex()}
            for item in version.encodings
        ],
    }


def to_version(document: dict[str, Any]) -> Version:
    """Return the version a document describes.

    Raises:
        DataLoss: It has unexpected fields.
    """
    try:
        fields = {
            **document,
            "created": datetime.datetime.fromisoformat(document["created"]),
            "metadata": ParamsMetadata(**document["metadata"]),
            "encodings": tuple(
                Encoding(Precision(item["precision"]), item["size_bytes"], bytes.fromhex(item["sha256"]))
                for item in document["encodings"]
            ),
        }
        version = Version(**fields)
        _check_kinds(version, version.metadata, *version.encodings)
        version.encoding(Precision.FULL)  # there is one
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"the description has unexpected fields: {error}") from error
    return version


_KINDS = {"int": int, "str": str}
"""Types of fields that JSON has as they are, by their annotation."""


def _check_kinds(*described: Version | ParamsMetadata | Encoding) -> None:
    """Raise TypeError for a number or a text that is something else."""
    for each in described:
        for field in dataclasses.fields(each):
            value, kind = getattr(each, field.name), str(field.type)
            if kind in _KINDS and type(value) is not _KINDS[kind]:
                raise TypeError(f"{field.name} is {value!r}")


def _digest(content: object) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
