"""The exception tree of Tidemill.

TidemillError
├── InvalidArgument        a value is wrong: the message names the field, the value and what is allowed
│   └── ConfigError        a setting is unknown or has the wrong type
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
    └── UnknownFormat      a file has a format that this version does not read; another attempt would not either
"""

from __future__ import annotations


class TidemillError(Exception):
    """Base of every error Tidemill raises on purpose."""


class InvalidArgument(TidemillError):
    """A value is wrong; the message names the field, the value and what is allowed."""


class ConfigError(InvalidArgument):
    """A setting is unknown, missing or of the wrong type."""


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


class UnknownFormat(FatalError):
    """A file has a format that this version does not read; another attempt would not either."""
