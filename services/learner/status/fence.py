"""Checks, before anything of a learner is stored, that no newer learner took over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidemill.errors import FailedPrecondition, Reason, TidemillError
from tidemill.params.publisher import StalePublisher


@contextmanager
def superseded() -> Iterator[None]:
    """Raise the replay service's refusal of an older fencing token as StalePublisher."""
    try:
        yield
    except FailedPrecondition as error:
        if error.reason in (Reason.FENCING_TOKEN_SUPERSEDED, None):  # None: a server that does not send reasons yet
            raise StalePublisher(str(error), reason=error.reason) from error
        raise


class Fence:
    """Lets the publisher's fencing token pass and no older one; safe to use from several threads.

    A learner that was frozen while another took its place finds out here, before it writes. The parameter server is the
    one authority; while it cannot be asked a learner continues, and what it writes bears its fencing token.
    """

    def __init__(self, newest_token: Callable[[], int], fencing_token: int) -> None:
        """Create a fence.

        Args:
            newest_token: Returns the newest fencing token handed out; bounded in time.
            fencing_token: This learner's.
        """
        self._newest_token, self._fencing_token = newest_token, fencing_token
        self._newer = 0

    def check(self) -> None:
        """Return if no newer learner took over, as far as is known.

        Raises:
            StalePublisher: A newer learner took over; also from then on.
        """
        if not self._newer:
            self._ask()
        if self._newer:
            raise StalePublisher(
                f"fencing token {self._fencing_token} was superseded by {self._newer}: "
                "another learner trains this run now"
            )

    def _ask(self) -> None:
        try:
            newest = self._newest_token()
        except TidemillError:
            newest = 0
        self._newer = newest if newest > self._fencing_token else 0
