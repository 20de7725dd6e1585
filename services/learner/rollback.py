"""Goes back to the version that ended the run, so that a resume starts from the parameters that were measured.

The evaluator's verdict is on a version that training has moved past, so the states behind the last published versions
are kept on the device. Tags at the parameter server name the version under evaluation and the one that ended the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from tidemill.errors import TidemillError
from tidemill.params.client import ParamsClient
from tidemill.params.version import EVALUATED, LAST_TRAINED, VERDICT, Version, VersionList
from tidemill.services.learner.checkpoint.resume import LearnerSnapshot, ResumableState
from tidemill.services.learner.publishing import PolicyPublisher

PUBLISH_S = 20.0
"""Longest wait for the server to acknowledge each of the last two versions."""

MAX_BYTES = 256 * 1024**2
_MIN_SNAPSHOTS, _MAX_SNAPSHOTS = 2, 64
_POLL_S = 0.25
_DEADLINE_S = 5.0
"""A server that is frozen holds up the end of the learner by no more than two of these."""
_JOIN_S = 10.0

_log = structlog.get_logger()


class Rollback:
    """Keeps the snapshots that a verdict may fall on, and returns to one; belongs to the training thread."""

    def __init__(self, address: str, fencing_token: int, state: ResumableState, on_verdict: Callable[[], None]) -> None:
        """Start watching for a verdict.

        Args:
            address: Address of the parameter server.
            fencing_token: Of this learner as a publisher.
            state: The learner's state.
            on_verdict: Called in another thread, once, when the run has been decided.

        Raises:
            Unavailable: The server does not answer.
        """
        self._fencing_token, self._state = fencing_token, state
        self._history = SnapshotHistory(state.snapshot)
        self._verdicts = VerdictWatcher(address, fencing_token, on_verdict)

    def take_snapshot(self) -> None:
        """Keep the state behind the version that is being published."""
        self._history.add(self._verdicts.evaluated)

    def roll_back(self, publisher: PolicyPublisher, *, has_diverged: bool = False) -> bool:
        """Return to the version that ended the run, if that is known and its snapshot kept.

        Where training stood is published first, as `last_trained`. The caller publishes and saves the restored state.

        Args:
            publisher: Publishes for this learner.
            has_diverged: Training has no finite state to be published; parameters on their way may not be finite.

        Returns:
            Whether it did.

        Raises:
            Diverged: Where training stood is not finite.
            StalePublisher: A newer learner publishes now.
        """
        verdict = self._verdicts.decided()
        if verdict is None:
            return False
        steps = verdict.metadata.learner_steps
        snapshot = self._history.find(steps) if verdict.fencing_token == self._fencing_token else None
        if snapshot is None:
            _log.warning("the version that ended the run cannot be restored: no state kept", version=verdict.version)
            return False
        if has_diverged:
            publisher.drop_diverged(PUBLISH_S)
        else:
            publisher.publish()
            if publisher.flush(PUBLISH_S):
                self._verdicts.tag_last_trained(publisher.version)
        self._state.roll_back(snapshot)
        _log.info("rolled back to the version that ended the run", version=verdict.version, learner_steps=steps)
        return True

    def close(self) -> None:
        """Stop watching. May be called twice."""
        self._verdicts.close()


class SnapshotHistory:
    """As many of the newest snapshots as fit in 256 MiB, 2 to 64, besides the one under evaluation.

    The evaluator reports which version it took a moment after it took it; until then the newest ones wait. Written
    by the training thread alone.
    """

    def __init__(self, take_snapshot: Callable[[], LearnerSnapshot], max_bytes: int = MAX_BYTES) -> None:
        """Start empty.

        Args:
            take_snapshot: Returns a copy of the present state.
            max_bytes: Bytes that the snapshots may take.
        """
        self._take_snapshot, self._max_bytes = take_snapshot, max_bytes
        self._snapshots: dict[int, LearnerSnapshot] = {}
        self._capacity = 0

    def add(self, evaluated: int | None) -> None:
        """Add a snapshot of the present state, and drop the oldest beyond the capacity.

        Args:
            evaluated: Updates behind the version under evaluation, whose snapshot stays; None for none.
        """
        snapshot = self._take_snapshot()
        self._capacity = self._capacity or max(
            _MIN_SNAPSHOTS, min(_MAX_SNAPSHOTS, self._max_bytes // max(snapshot.size_bytes, 1))
        )
        self._snapshots.pop(snapshot.learner_steps, None)  # so that it is the newest
        self._snapshots[snapshot.learner_steps] = snapshot
        old = [steps for steps in self._snapshots if steps != evaluated]
        for steps in old[: -self._capacity]:
            del self._snapshots[steps]

    def find(self, learner_steps: int) -> LearnerSnapshot | None:
        """Return the snapshot after so many updates; None if it is not kept."""
        return self._snapshots.get(learner_steps)


class VerdictWatcher:
    """A thread that polls the evaluator's tags at the parameter server; retries when the server is unavailable.

    A verdict that was there at the start is that of an earlier session, which this one resumes.
    """

    def __init__(self, address: str, fencing_token: int, on_verdict: Callable[[], None]) -> None:
        """Take the tags as they are and start polling.

        Args:
            address: Address of the parameter server.
            fencing_token: Of this learner as a publisher; only its own versions are reported.
            on_verdict: Called in the thread, once, when the run has been decided.

        Raises:
            Unavailable: The server does not answer.
        """
        self._client = ParamsClient(address, deadline_s=_DEADLINE_S)
        self._fencing_token, self._on_verdict = fencing_token, on_verdict
        self.evaluated: int | None = None
        """Updates behind the version under evaluation; None if it is not this learner's."""
        self._verdict: Version | None = None
        self._closed = threading.Event()
        try:
            self._old = self._client.list_versions().tags.get(VERDICT, 0)
        except BaseException:
            self._client.close()
            raise
        self._thread = threading.Thread(target=self._run, name="verdicts", daemon=True)
        self._thread.start()

    def decided(self) -> Version | None:
        """End the thread, poll a last time, and return the version that ended the run; None if none has.

        If the server is away by then, it is the version that the thread was told of.
        """
        self._stop()
        return self._poll() or self._verdict

    def tag_last_trained(self, number: int) -> None:
        """Tag where training stood when the verdict came; not an error if the server is unavailable."""
        try:
            self._client.set_tag(LAST_TRAINED, number)
        except TidemillError as error:
            _log.warning("cannot set a tag", tag=LAST_TRAINED, version=number, reason=str(error))

    def close(self) -> None:
        """End the thread and the connection. May be called twice."""
        self._stop()
        self._client.close()

    def _stop(self) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._closed.wait(_POLL_S):
            self._verdict = self._poll()
            if self._verdict is not None:
                self._on_verdict()
                return

    def _poll(self) -> Version | None:
        """Take the tags as they are now; return the version that ended the run, None if none has."""
        try:
            listed = self._client.list_versions()
        except TidemillError as error:
            _log.debug("cannot read the evaluator's tags", reason=str(error))
            return None
        evaluated = _tagged(listed, EVALUATED)
        is_own = evaluated is not None and evaluated.fencing_token == self._fencing_token
        self.evaluated = evaluated.metadata.learner_steps if evaluated is not None and is_own else None
        verdict = _tagged(listed, VERDICT)
        return verdict if verdict is not None and verdict.version != self._old else None


def _tagged(listed: VersionList, tag: str) -> Version | None:
    number = listed.tags.get(tag, 0)
    return next((version for version in listed.versions if version.version == number), None)
