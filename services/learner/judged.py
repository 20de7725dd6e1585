"""A learner that goes back to the version that ended the run, so that what is resumed is what was measured."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from tidemill.services.learner.held import HeldStates
from tidemill.services.learner.publishing import PolicyPublisher
from tidemill.services.learner.resume import Resumable
from tidemill.services.learner.verdict import Verdicts

PUBLISH_S = 20.0
"""Longest wait for the server's word on each of the last two versions; a moment ago it answered."""

_log = structlog.get_logger()


class Judged:
    """Keeps the states that a verdict may fall on; belongs to the training thread."""

    def __init__(self, address: str, generation: int, resumable: Resumable, on_verdict: Callable[[], None]) -> None:
        """Look for a verdict from now on.

        Args:
            address: Address of the parameter server.
            generation: Of this learner as a publisher.
            resumable: The learner's state.
            on_verdict: Called in another thread, once, when the run has been decided.

        Raises:
            Unavailable: The server does not answer.
        """
        self._generation, self._resumable = generation, resumable
        self._states = HeldStates(resumable.hold)
        self._verdicts = Verdicts(address, generation, on_verdict)

    def keep(self) -> None:
        """Keep the state behind the version that is being published."""
        self._states.keep(self._verdicts.evaluated)

    def go_back(self, publisher: PolicyPublisher) -> bool:
        """Become what the learner was at the version that ended the run, if that is known and kept.

        Where training stood is published before, as `last_trained`. The caller publishes and saves what comes back.

        Returns:
            Whether it did.

        Raises:
            StalePublisher: A newer learner publishes now.
        """
        verdict = self._verdicts.decided()
        if verdict is None:
            return False
        steps = verdict.metadata.learner_steps
        held = self._states.find(steps) if verdict.generation == self._generation else None
        if held is None:
            _log.warning("the state behind the version that ended the run is not kept", version=verdict.version)
            return False
        publisher.publish()
        if publisher.flush(PUBLISH_S):
            self._verdicts.tag_last_trained(publisher.version)
        self._resumable.go_back(held)
        _log.info("went back to the version that ended the run", version=verdict.version, learner_steps=steps)
        return True

    def close(self) -> None:
        """End the looking. May be called twice."""
        self._verdicts.close()
