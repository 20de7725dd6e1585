"""What the evaluator says of this learner's versions, read from the tags of the parameter server."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from tidemill.errors import TidemillError
from tidemill.params.client import ParamsClient
from tidemill.params.version import EVALUATED, LAST_TRAINED, VERDICT, Version, VersionList

_LOOK_S = 0.25
_DEADLINE_S = 5.0
"""A server that is frozen holds up the end of the learner by no more than two of these."""
_JOIN_S = 10.0

_log = structlog.get_logger()


class Verdicts:
    """One thread that looks at the tags again and again; a server that is away is asked again later.

    A verdict that was there at the start is that of an earlier session, which this one goes on from.
    """

    def __init__(self, address: str, generation: int, on_verdict: Callable[[], None]) -> None:
        """Take the tags as they are and start looking.

        Args:
            address: Address of the parameter server.
            generation: Of this learner as a publisher; only its own versions are told of.
            on_verdict: Called in the thread, once, when the run has been decided.

        Raises:
            Unavailable: The server does not answer.
        """
        self._client = ParamsClient(address, deadline_s=_DEADLINE_S)
        self._generation, self._on_verdict = generation, on_verdict
        self._evaluated: int | None = None
        self._closed = threading.Event()
        try:
            self._old = self._client.list_versions().tags.get(VERDICT, 0)
        except BaseException:
            self._client.close()
            raise
        self._thread = threading.Thread(target=self._run, name="verdicts", daemon=True)
        self._thread.start()

    @property
    def evaluated(self) -> int | None:
        """Gradient steps behind the version under evaluation; None if it is not this learner's."""
        return self._evaluated

    def decided(self) -> Version | None:
        """End the thread, look a last time, and return the version that ended the run; None if none has."""
        self._end()
        return self._look()

    def tag_last_trained(self, number: int) -> None:
        """Say where training stood when the verdict came; without the server it stays unsaid."""
        try:
            self._client.set_tag(LAST_TRAINED, number)
        except TidemillError as error:
            _log.warning("cannot set a tag", tag=LAST_TRAINED, version=number, reason=str(error))

    def close(self) -> None:
        """End the thread and the connection. May be called twice."""
        self._end()
        self._client.close()

    def _end(self) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            if self._look() is not None:
                self._on_verdict()
                return

    def _look(self) -> Version | None:
        """Take the tags as they are now; return the version that ended the run, None if none has."""
        try:
            listed = self._client.list_versions()
        except TidemillError as error:
            _log.debug("cannot see what is evaluated", reason=str(error))
            return None
        evaluated = _tagged(listed, EVALUATED)
        is_own = evaluated is not None and evaluated.generation == self._generation
        self._evaluated = evaluated.metadata.learner_steps if evaluated is not None and is_own else None
        verdict = _tagged(listed, VERDICT)
        return verdict if verdict is not None and verdict.version != self._old else None


def _tagged(listed: VersionList, tag: str) -> Version | None:
    number = listed.tags.get(tag, 0)
    return next((version for version in listed.versions if version.version == number), None)
