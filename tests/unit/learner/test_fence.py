"""The fence: who still trains, as far as is known."""

from __future__ import annotations

import pytest

from tests.support.naming import naming
from tidemill.errors import Unavailable
from tidemill.params.publisher import StalePublisher
from tidemill.services.learner.status.fence import Fence


class _Server:
    """Says which fencing token is the newest, or that it is away."""

    def __init__(self) -> None:
        self.newest: int | None = 2
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        if self.newest is None:
            raise Unavailable("away")
        return self.newest


def test_newest_token_passes() -> None:
    """Also beside a server that lost its count; each check asks."""
    server = _Server()
    fence = Fence(server, 2)
    fence.check()
    server.newest = 0
    fence.check()
    assert server.asked == 2


def test_older_fencing_token_is_refused_for_good() -> None:
    """The server is not asked again; the message names both fencing tokens."""
    server = _Server()
    server.newest = 3
    fence = Fence(server, 2)
    for _ in range(2):
        with pytest.raises(StalePublisher, match=naming("fencing 2 superseded 3")):
            fence.check()
    assert server.asked == 1


def test_learner_goes_on_while_the_server_cannot_be_asked() -> None:
    """An outage stops nothing; the server's return tells."""
    server = _Server()
    server.newest = None
    fence = Fence(server, 2)
    fence.check()
    server.newest = 3
    with pytest.raises(StalePublisher):
        fence.check()
