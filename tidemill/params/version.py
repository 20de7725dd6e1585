"""The nouns of the parameter server: versions, their encodings, and what a fetch returns."""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.errors import InvalidArgument

LATEST = "latest"
"""The tag that always points at the newest version."""
BEST = "best"
"""The evaluator's tag of the best version: one that was confirmed before all others, then by mean.

It moves to a version that reaches the target once fresh episodes were played, until which `EVALUATED` keeps that one.
"""
EVALUATED = "evaluated"
"""The evaluator's tag of the version under evaluation, which keeps it and the training state behind it."""
VERDICT = "verdict"
"""The evaluator's tag of the version that ended the run; the learner goes back to it and ends."""
LAST_TRAINED = "last_trained"
"""The learner's tag of where training stood when the verdict came, before it went back."""
DIVERGED = "diverged-"
"""Beginning of the learner's tag of the newest version when training has diverged, see `diverged_tag`."""

MAX_BLOB_BYTES = 1024**3
"""Largest encoding that is packed, fetched or unpacked unless another limit is given, in bytes."""

_TAG = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class Precision(enum.Enum):
    """Number format of an encoding."""

    FULL = "full"
    """As trained, float32."""
    HALF = "half"
    """float32 tensors rounded to float16; for acting, not for training."""


@dataclass(frozen=True)
class ParamsMetadata:
    """Origin of a version's parameters.

    Attributes:
        algorithm: Algorithm that made them, e.g. `sac`.
        env_id: Environment they were trained on, e.g. `LunarLanderContinuous-v3`.
        learner_steps: Updates behind them.
        env_steps: Agent decisions of the run by then, including those before a resume or a reset of its table.
        config_digest: SHA-256, in hex, of the resolved settings of agent and environment.
    """

    algorithm: str = ""
    env_id: str = ""
    learner_steps: int = 0
    env_steps: int = 0
    config_digest: str = ""


@dataclass(frozen=True)
class Encoding:
    """One encoding of a version: a safetensors file of `size_bytes` bytes with this SHA-256 (32 bytes)."""

    precision: Precision
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class Version:
    """A stored version.

    Attributes:
        version: Its number, from 1; numbers only grow and are never reused.
        base_version: The version it was trained on from; 0 for the first.
        fencing_token: Fencing token of its publisher.
        created: When the server stored it, in UTC.
        metadata: What the parameters are.
        encodings: Its encodings, full precision first.
    """

    version: int
    base_version: int
    fencing_token: int
    created: datetime.datetime
    metadata: ParamsMetadata
    encodings: tuple[Encoding, ...]

    def encoding(self, precision: Precision) -> Encoding:
        """Return the encoding of this precision, or the full one when there is no such encoding."""
        return next((item for item in self.encodings if item.precision is precision), self.encodings[0])


@dataclass(frozen=True)
class Params:
    """A fetched version: its description, the precision that came, and its bytes (see `blob.unpack`)."""

    version: Version
    precision: Precision
    blob: bytes

    @property
    def number(self) -> int:
        """The version's number."""
        return self.version.version


@dataclass(frozen=True)
class PublisherGrant:
    """The right to publish: a fencing token, and the newest version when it was given (0 for none)."""

    fencing_token: int
    latest_version: int


@dataclass(frozen=True)
class VersionList:
    """The versions a server still has, oldest first, all tags with the versions they point at, and who may publish."""

    versions: tuple[Version, ...]
    tags: Mapping[str, int]
    fencing_token: int
    """The newest fencing token handed out; 0 before the first."""


def check_tag(tag: str) -> None:
    """Refuse a malformed tag.

    Raises:
        InvalidArgument: `tag` does not match `[a-z][a-z0-9_-]{0,62}`.
    """
    if not _TAG.fullmatch(tag):
        raise InvalidArgument(f"tag is {tag[:64]!r}, allowed: {_TAG.pattern}")
