"""Publishes a learner's parameters without making it wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tidemill.closing import Closing
from tidemill.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    TidemillError,
    Unauthenticated,
    Unimplemented,
)
from tidemill.logger import LateLogger
from tidemill.params.client import ParamsClient
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.replay.argument_types import check_number
from tidemill.rpc.channel import Backoff

_JOIN_S = 10.0

_FATAL = (InvalidArgument, FailedPrecondition, Unimplemented, PermissionDenied, Unauthenticated)
"""Errors that a retry would repeat; so would one of parameters that are too large. All others, including
a full disk, may be temporary."""

_log = LateLogger()


class StalePublisher(FailedPrecondition):
    """Another process became the publisher; this one must stop."""


Blobs = Mapping[Precision, bytes]
"""Safetensors bytes by precision, from `blob.pack`; full precision is required."""


@dataclass(frozen=True)
class _Offer:
    number: int
    blobs: Blobs | Callable[[], Blobs]
    metadata: ParamsMetadata


@dataclass(frozen=True)
class _Publish:
    number: int
    blobs: Blobs
    metadata: ParamsMetadata
    is_renewal: bool = False


class ParamsPublisher(Closing):
    """One background thread that publishes the newest offer; a newer offer replaces one not yet begun.

    A publish whose answer was lost is repeated until it is acknowledged, across restarts of the server. An
    error that cannot pass, such as `StalePublisher`, is raised by the owner's next call.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        last_known_token: int = 0,
        last_known_version: int = 0,
        connect_timeout_s: float = 60.0,
    ) -> None:
        """Become the publisher: older ones are refused from now on.

        Args:
            address: Address of the parameter server.
            name: Who publishes, for the server's log, e.g. host name and process id.
            last_known_token: Greatest fencing token known, e.g. from a checkpoint; this publisher's is greater.
            last_known_version: Greatest version known; this publisher's are greater.
            connect_timeout_s: How long to wait for the server, in seconds.

        Raises:
            Unavailable: The server did not answer in time.
        """
        self._client, self._name = ParamsClient(address), name
        try:
            opened = self._client.acquire_fencing_token(
                name,
                last_known_token=last_known_token,
                last_known_version=last_known_version,
                connect_timeout_s=connect_timeout_s,
            )
        except BaseException:
            self._client.close()
            raise
        self.fencing_token = opened.fencing_token
        """Fencing token of this publisher."""
        self._base_version = opened.latest_version
        self._known_version = max(last_known_version, opened.latest_version)
        self.version = 0
        """Newest version of this publisher that was acknowledged; 0 before the first."""
        self.replaced = 0
        """Offers that were never sent because a newer one came first."""
        self._offered, self._acknowledged = 0, 0
        self._pending: _Offer | _Publish | None = None
        self._last: _Publish | None = None
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = self._started()

    def offer(self, blobs: Blobs | Callable[[], Blobs], metadata: ParamsMetadata) -> None:
        """Hand over parameters to publish; never blocks.

        Args:
            blobs: Safetensors bytes by precision, or what makes them: called in the publisher's thread, once, and not
                at all if a newer offer comes first. Full precision is required.
            metadata: What the parameters are.

        Raises:
            StalePublisher: Another process became the publisher.
            TidemillError: An earlier offer was refused permanently, or making its bytes failed.
        """
        with self._changed:
            self._raise()
            self._offered += 1
            self.replaced += self._pending is not None
            self._pending = _Offer(self._offered, blobs if callable(blobs) else dict(blobs), metadata)
            self._changed.notify_all()

    def renew(self) -> None:
        """Have the newest version published again, under a new number, if the server cannot serve it; never blocks.

        To be called where others may wait for it. Without effect while an offer is on its way.

        Raises:
            StalePublisher, TidemillError: As `offer`.
        """
        with self._changed:
            self._raise()
            if self._last is not None and self._acknowledged == self._offered:
                self._offered += 1
                self._pending = replace(self._last, number=self._offered, is_renewal=True)
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the newest offer is acknowledged; return whether it was within `timeout_s` seconds.

        Raises:
            StalePublisher, TidemillError: As `offer`.
        """

        def is_over() -> bool:
            return self._acknowledged == self._offered or self._error is not None or self._closing.is_set()

        check_number("timeout_s", timeout_s)
        with self._changed:
            self._changed.wait_for(is_over, min(timeout_s, threading.TIMEOUT_MAX))
            self._raise()
            return self._acknowledged == self._offered

    def check(self) -> None:
        """Raise the error that ended publishing, such as `StalePublisher`; never blocks."""
        with self._changed:
            self._raise()

    def restart(self) -> None:
        """Take offers again after making the bytes of one failed; what was offered until then is dropped."""
        self._thread.join(_JOIN_S)
        with self._changed:
            self._error, self._pending, self._acknowledged = None, None, self._offered
        self._thread = self._started()

    def close(self) -> None:
        """End the thread without sending what waits; `flush` first to keep it. May be called twice."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._client.close()
        self._thread.join(_JOIN_S)

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="params-publisher", daemon=True)
        thread.start()
        return thread

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (publish := self._take()) is not None:
                if publish.is_renewal and self._is_served(publish):
                    self._acknowledge(publish, self.version)
                else:
                    self._repeat(publish)
        except BaseException as error:  # raised again in the owner's thread
            if not self._closing.is_set():
                with self._changed:
                    self._error = error
                    self._changed.notify_all()

    def _take(self) -> _Publish | None:
        """Wait for an offer and make its bytes, which frees what they are made of; None when closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None or self._closing.is_set())
            offer, self._pending, self._last = self._pending, None, None
        if offer is None or self._closing.is_set():
            return None
        if isinstance(offer, _Publish):
            return offer
        blobs = offer.blobs() if callable(offer.blobs) else offer.blobs
        return _Publish(offer.number, blobs, offer.metadata)

    def _is_served(self, publish: _Publish) -> bool:
        """False if the server cannot serve the newest version as such, in each of its encodings."""
        try:
            for precision in publish.blobs:
                newest = self._client.fetch(precision=precision)
                if newest is not None and newest.version.fencing_token > self.fencing_token:
                    return False  # to be told that it was replaced
                if newest is None or newest.number != self.version:
                    break
            else:
                return True
        except (DataLoss, NotFound):
            pass
        except TidemillError:  # not known, as of a server that is being restarted: the next call asks again
            return True
        _log.warning("the newest version is lost or damaged, publishing it again", version=self.version)
        return False

    def _repeat(self, publish: _Publish) -> None:
        """Repeat one publish until it is acknowledged or the publisher closes."""
        backoff = Backoff()
        while not self._closing.is_set():
            try:
                self._acknowledge(publish, self._attempt(publish))
                return
            except _FATAL:
                raise
            except TidemillError as error:
                if error.reason is Reason.TOO_LARGE:  # the next parameters are as large
                    raise
                pause_s = backoff.next_s()
                if not self._closing.is_set():
                    kind = type(error).__name__
                    _log.warning("cannot publish parameters, retrying", kind=kind, error=str(error), retry_in_s=pause_s)
                self._closing.wait(pause_s)

    def _attempt(self, publish: _Publish) -> int:
        """Publish once, or once more if the server has lost versions."""
        try:
            return self._send(publish)
        except (FailedPrecondition, InvalidArgument) as refusal:
            self._acquire_again(refusal)
            return self._send(publish)

    def _send(self, publish: _Publish) -> int:
        return self._client.publish(
            publish.blobs, publish.metadata, fencing_token=self.fencing_token, base_version=self._base_version
        )

    def _acquire_again(self, refusal: FailedPrecondition | InvalidArgument) -> None:
        """Take the server's newest version as the base, if that is older than this publisher's, and keep the token.

        A server goes back to an older version after its newest is corrupt, and to the fencing token of that time after
        its folder was lost or restored from a backup. Numbers continue above this publisher's.

        Raises:
            StalePublisher: Another process became the publisher.
            Unimplemented: The server is older than this publisher and cannot give a token back.
        """
        known = self._known_version
        try:
            if isinstance(refusal, FailedPrecondition) and refusal.reason is not Reason.BASE_VERSION_DIFFERS:
                raise refusal
            granted = self._client.acquire_fencing_token(
                self._name, last_known_version=known, held_token=self.fencing_token
            )
            newest = granted.latest_version
            if granted.fencing_token != self.fencing_token:
                raise Unimplemented(
                    "held_token is ignored: update the parameter server, which is older than its client"
                )
            if newest > known and isinstance(refusal, FailedPrecondition):  # published by another with the same token
                raise refusal
        except FailedPrecondition as error:
            raise StalePublisher(str(error), reason=error.reason) from error
        if newest < known:
            _log.warning("the parameter server has lost versions", newest=newest, last_published=known)
        self._base_version = newest

    def _acknowledge(self, publish: _Publish, version: int) -> None:
        with self._changed:
            self.version = self._base_version = self._known_version = version
            self._acknowledged, self._last = publish.number, publish
            self._changed.notify_all()
