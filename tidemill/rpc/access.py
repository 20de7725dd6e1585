"""Access control: the roles of every RPC, the tokens that prove a role, and the interceptor that asks for them."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tidemill.errors import ConfigError, PermissionDenied, Unauthenticated
from tidemill.logger import LateLogger
from tidemill.rpc.reloaded import Reloaded

ACTOR, LEARNER, EVALUATOR, OPERATOR, SIMULATOR = ROLES = ("actor", "learner", "evaluator", "operator", "simulator")
"""What a token stands for; an operator steers the run, a simulator plays in it."""

METADATA_KEY = "authorization"
SCHEME = "Bearer "

MIN_TOKEN_LENGTH = 32
"""Fewest characters of a token; `tidemill certs` writes 64, which hold 256 random bits."""

DIGEST = "sha256:"
"""What the SHA-256 of a token begins with, in the place of the token, in a server's file."""

LOG_EVERY_S = 10.0
"""Least time between two lines about refused calls, in seconds."""

_HEX_DIGEST = re.compile(DIGEST + "[0-9a-f]{64}")

_REPLAY, _PARAMS = "/tidemill.replay.v1.ReplayService/", "/tidemill.params.v1.ParamService/"
_LEARNER, _HEALTH = "/tidemill.learner.v1.LearnerService/", "/grpc.health.v1.Health/"
_INFERENCE = "/tidemill.inference.v1.InferenceService/"
_SIMULATOR = "/tidemill.simulator.v1.SimulatorService/"

_READERS = frozenset({ACTOR, LEARNER, EVALUATOR, OPERATOR})
_OPERATOR = frozenset({OPERATOR})
_TRAINING = frozenset({LEARNER, OPERATOR})

ALLOWED: dict[str, frozenset[str] | None] = {
    _REPLAY + "CreateTable": _TRAINING,
    _REPLAY + "ListTables": _READERS,
    _REPLAY + "DescribeTable": _READERS,
    _REPLAY + "UpdateTable": _OPERATOR,
    _REPLAY + "ResetTable": _OPERATOR,
    _REPLAY + "DropTable": _TRAINING,
    _REPLAY + "Append": frozenset({ACTOR, OPERATOR}),
    _REPLAY + "Sample": _TRAINING,
    _REPLAY + "UpdatePriorities": _TRAINING,
    _REPLAY + "DeleteItems": _TRAINING,
    _REPLAY + "DeleteMatchingItems": _OPERATOR,
    _REPLAY + "Export": _OPERATOR,
    _REPLAY + "Checkpoint": _TRAINING,
    _PARAMS + "AcquireFencingToken": _TRAINING,
    _PARAMS + "Publish": _TRAINING,
    _PARAMS + "Fetch": _READERS,
    _PARAMS + "Watch": _READERS,
    _PARAMS + "ListVersions": _READERS,
    _PARAMS + "SetTag": frozenset({LEARNER, EVALUATOR, OPERATOR}),
    _INFERENCE + "Act": frozenset({ACTOR, OPERATOR}),
    _SIMULATOR + "Play": frozenset({SIMULATOR, OPERATOR}),
    _SIMULATOR + "Evaluate": frozenset({EVALUATOR, OPERATOR}),
    _LEARNER + "GetStatus": _READERS,
    _LEARNER + "Pause": _OPERATOR,
    _LEARNER + "Resume": _OPERATOR,
    _LEARNER + "SaveCheckpoint": _OPERATOR,
    _LEARNER + "Stop": _OPERATOR,
    # A launcher, an engine or a balancer asks before it could know a token; the answer says nothing about the run.
    _HEALTH + "Check": None,
    _HEALTH + "Watch": None,
    _HEALTH + "List": None,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _OPERATOR,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _OPERATOR,
}
"""The roles that may call each method; None for anyone, without a token. What is not listed is refused."""

_log = LateLogger()


def read_secret(path: str, setting: str) -> str:
    """Return the text of a file that others must not read.

    Its group may: Kubernetes gives a mounted secret to the group of the pod.

    Raises:
        ConfigError: It cannot be read, or other users may read or change it; the message names the setting.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        text = Path(path).read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:  # whose message would hold the text
        raise ConfigError(f"{setting}: {path} is not ASCII: is it the right file?") from None
    if mode & 0o027:
        raise ConfigError(f"{setting}: {path} has mode {mode:04o}, which lets other users in; chmod 600 {path}")
    return text


class Tokens:
    """The tokens of a file with a line `ROLE TOKEN` each, read again when the file changes.

    A role may have several, so that clients change to a new one before the old one is removed. Only digests are kept,
    and the file may hold them in the tokens' place: `ROLE sha256:HEX`.
    """

    def __init__(self, path: str) -> None:
        """Read the file.

        Raises:
            ConfigError: It cannot be read, other users may read it, or a line is malformed.
        """
        self._path = path
        self._entries = Reloaded([path], self._read, _log.error, "cannot reload tokens, keeping the old ones")

    def role_of(self, token: str) -> str | None:
        """Return the role of a token; None if it is unknown. Takes the same time whichever it is."""
        if self._entries.refresh():
            _log.info("tokens reloaded", file=self._path, tokens=len(self._entries.value))
        digest, role = _digest(token), None
        for known, its_role in self._entries.value:  # all of them: the time must not say which one was near
            if hmac.compare_digest(known, digest):
                role = its_role
        return role

    def _read(self) -> list[tuple[bytes, str]]:
        entries: dict[bytes, str] = {}
        for number, line in enumerate(read_secret(self._path, "server.tokens").splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            digest = _digest_of_line(words[1]) if len(words) == 2 and words[0] in ROLES else None
            if digest is None:
                raise ConfigError(
                    f"{self._path}, line {number}: must be `ROLE TOKEN`, ROLE one of {', '.join(ROLES)}, "
                    f"TOKEN of at least {MIN_TOKEN_LENGTH} characters or {DIGEST} and the 64 digits of its SHA-256"
                )
            if entries.setdefault(digest, words[0]) != words[0]:
                raise ConfigError(f"{self._path}, line {number}: another role has this token; use a new one")
        if not entries:
            raise ConfigError(f"server.tokens: {self._path} holds no token; `tidemill certs` writes one per role")
        return list(entries.items())


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Refuses a call whose token does not allow it, before any of its messages is read.

    A token is looked at when a call begins: a stream that is open outlives its token.
    """

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        """Guard a server; `clock` is monotonic, in seconds."""
        self._tokens, self._clock = tokens, clock
        self._unlogged, self._quiet_until = 0, clock()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:  # noqa: ANN401 - grpc's RpcMethodHandler is generic over both message types
        """Return the handler of the called method, or one that refuses the call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        try:
            self._check(handler_call_details.method, dict(handler_call_details.invocation_metadata or ()))
        except (Unauthenticated, PermissionDenied) as error:
            # As a stream, whatever the method is: gRPC would wait for the request of a unary call, and hold it.
            return grpc.stream_unary_rpc_method_handler(Refusal(error.with_traceback(None), self._tell))
        return handler

    def _check(self, method: str, metadata: dict[str, Any]) -> None:
        roles = ALLOWED.get(method, frozenset())
        if roles is None:
            return
        presented = str(metadata.get(METADATA_KEY, ""))
        if not presented.startswith(SCHEME):
            raise Unauthenticated(f"{method} needs a token: set TIDEMILL_TOKEN_FILE to the file that holds yours")
        role = self._tokens.role_of(presented.removeprefix(SCHEME))
        if role is None:
            raise Unauthenticated(
                f"{method}: this server does not know the token; compare the file that TIDEMILL_TOKEN_FILE names with "
                "the server's own (server.tokens)"
            )
        if role not in roles:
            allowed = " or ".join(sorted(roles)) or "nobody"
            raise PermissionDenied(f"{method} is not for the role {role}: use a token of {allowed}")

    def _tell(self, peer: str, reason: str) -> None:
        self._unlogged += 1
        if (now := self._clock()) >= self._quiet_until:
            _log.warning("call refused", peer=peer, reason=reason, since_last_line=self._unlogged)
            self._unlogged, self._quiet_until = 0, now + LOG_EVERY_S


class Refusal:
    """Answers a call with an error alone, before any of its messages is read."""

    def __init__(self, error: Unauthenticated | PermissionDenied, tell: Callable[[str, str], None]) -> None:
        """Refuse with an error; `tell` is given the peer and the message."""
        self._error, self._tell = error, tell

    async def __call__(self, _: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ANN401
        """Raise the error."""
        self._tell(context.peer(), str(self._error))
        raise self._error


def digest_line(token: str) -> str:
    """Return the digest that may replace a token in a server's file; a digest is returned unchanged."""
    return token if token.startswith(DIGEST) else DIGEST + _digest(token).hex()


def _digest_of_line(word: str) -> bytes | None:
    if word.startswith(DIGEST):
        return bytes.fromhex(word.removeprefix(DIGEST)) if _HEX_DIGEST.fullmatch(word) else None
    return _digest(word) if len(word) >= MIN_TOKEN_LENGTH else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
