"""The exception tree of Tidemill.

TidemillError
├── InvalidArgument        a value is wrong: the message names the field, the value and what is allowed
│   └── ConfigError        a setting is unknown or has the wrong type
│       ├── NewerSettings  a newer Tidemill wrote a file with settings that this one does not know
│       └── GpuUnusable    a setting asks for a GPU that is not there, or that torch cannot use: it may have been lost
├── NotFound               there is no such table, version or tag
├── AlreadyExists          the name is taken by something with another configuration
├── FailedPrecondition     the call is right but not now: a stale publisher, a closed stream
├── ResourceExhausted      a limit of size or number was reached
├── DataLoss               stored bytes do not match their checksum
├── Unimplemented          the call is part of the contract but not of this server
├── Unauthenticated        a call brings no token, or one that the server does not know
├── PermissionDenied       the token is known, and its role may not make this call
├── Unavailable            a service cannot be reached, or did not answer within its deadline
└── FatalError             the process cannot continue; the message is its last line
    ├── EnvFailed          an environment raised, hung, died or returned something wrong
    ├── GpuLost            a run that has trained on a GPU has none that it can use
    └── UnknownFormat      a file has a format that this version does not read; another attempt would not either

`reason` of an error tells causes apart that share a class.
"""

from __future__ import annotations

import enum


class Reason(enum.StrEnum):
    """Why a call failed, where its status code has several causes; docs/reference/wire.md describes each value."""

    STREAM_GAP = "REASON_STREAM_GAP"
    STREAM_ENDED = "REASON_STREAM_ENDED"
    SIGNATURE_DIFFERS = "REASON_SIGNATURE_DIFFERS"
    EPOCH_SUPERSEDED = "REASON_EPOCH_SUPERSEDED"
    FENCING_TOKEN_SUPERSEDED = "REASON_FENCING_TOKEN_SUPERSEDED"
    BASE_VERSION_DIFFERS = "REASON_BASE_VERSION_DIFFERS"
    TABLE_UNSUITABLE = "REASON_TABLE_UNSUITABLE"
    SLOT_TOO_SMALL = "REASON_SLOT_TOO_SMALL"
    STEP_COUNT_PASSED = "REASON_STEP_COUNT_PASSED"
    SPACES_DIFFER = "REASON_SPACES_DIFFER"
    RUN_DIFFERS = "REASON_RUN_DIFFERS"
    EVALUATION_REPLACED = "REASON_EVALUATION_REPLACED"
    EVALUATION_OVER = "REASON_EVALUATION_OVER"
    STOPPING = "REASON_STOPPING"
    CALL_REPLACED = "REASON_CALL_REPLACED"
    CALLER_SILENT = "REASON_CALLER_SILENT"
    BUSY = "REASON_BUSY"
    VERSION_REMOVED = "REASON_VERSION_REMOVED"
    DEPENDENCY_UNAVAILABLE = "REASON_DEPENDENCY_UNAVAILABLE"
    TOO_MANY_TABLES = "REASON_TOO_MANY_TABLES"
    TOO_MANY_STREAMS = "REASON_TOO_MANY_STREAMS"
    TOO_MANY_CALLS = "REASON_TOO_MANY_CALLS"
    TOO_MANY_TAGS = "REASON_TOO_MANY_TAGS"
    TOO_MANY_EXPORTS = "REASON_TOO_MANY_EXPORTS"
    MEMORY_FULL = "REASON_MEMORY_FULL"
    DISK_FULL = "REASON_DISK_FULL"
    TOO_LARGE = "REASON_TOO_LARGE"
    UNDECODABLE = "REASON_UNDECODABLE"
    UNKNOWN_TABLE = "REASON_UNKNOWN_TABLE"
    UNKNOWN_ACTOR = "REASON_UNKNOWN_ACTOR"
    UNKNOWN_VERSION = "REASON_UNKNOWN_VERSION"
    UNKNOWN_TAG = "REASON_UNKNOWN_TAG"


class TidemillError(Exception):
    """Base of every error Tidemill raises on purpose.

    Attributes:
        reason: The cause, if a service names one; None otherwise.
    """

    def __init__(self, *arguments: object, reason: Reason | None = None) -> None:
        super().__init__(*arguments)
        self.reason = reason


class InvalidArgument(TidemillError):
    """A value is wrong; the message names the field, the value and what is allowed."""


class ConfigError(InvalidArgument):
    """A setting is unknown, missing or of the wrong type."""


class NewerSettings(ConfigError):
    """A newer Tidemill wrote a file with settings that this one does not know."""


class GpuUnusable(ConfigError):
    """A setting asks for a GPU that is not there, or that torch cannot use."""


class NotFound(TidemillError):
    """There is no such table, version or tag."""


class AlreadyExists(TidemillError):
    """The name is taken by something with another configuration."""


class FailedPrecondition(TidemillError):
    """The call is right but not in this state."""


class ResourceExhausted(TidemillError):
    """A limit of size or number was reached."""


class DataLoss(TidemillError):
    """Stored bytes do not match their checksum."""


class Unimplemented(TidemillError):
    """The call is part of the contract but not of this server; the message says what to do instead."""


class Unauthenticated(TidemillError):
    """A call brings no token, or one that the server does not know."""


class PermissionDenied(TidemillError):
    """The token is known, and its role may not make this call."""


class Unavailable(TidemillError):
    """A service cannot be reached, or did not answer within its deadline."""


class FatalError(TidemillError):
    """The process cannot continue; the message is its last line."""


class EnvFailed(FatalError):
    """An environment raised, hung, died or returned something wrong.

    Attributes:
        kind: One of `tidemill.envs.failures.KINDS`.
        index: Which environment of its batch; None if the whole batch failed.
        trace: Traceback of what was raised; empty without one.
        is_final: Whether restarts were tried, or are not wanted: another process would fail in the same way.
    """

    def __init__(
        self, message: str, *, kind: str = "invalid", index: int | None = None, trace: str = "", is_final: bool = False
    ) -> None:
        super().__init__(message)
        self.kind, self.index, self.trace, self.is_final = kind, index, trace, is_final


class GpuLost(FatalError):
    """A run that has trained has no GPU that it can use; another process may have one, or this one's may be reset."""


class UnknownFormat(FatalError):
    """A file has a format that this version does not read; another attempt would not either."""


def described(error: BaseException) -> str:
    """Return the message of an error, after its class unless it is one of these, whose messages explain themselves."""
    return str(error) if isinstance(error, TidemillError) else f"{type(error).__name__}: {error}"
