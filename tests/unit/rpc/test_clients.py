"""What the clients of all services refuse when they are made, and which deadlines they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_service import local_server
from tidemill.errors import InvalidArgument, Unavailable
from tidemill.learner.client import LearnerClient
from tidemill.params.client import ParamsClient
from tidemill.params.watcher import ParamsWatcher
from tidemill.replay.client import ReplayClient

_NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there

_Client = ReplayClient | ParamsClient | LearnerClient


@pytest.mark.parametrize("make", [ReplayClient, ParamsClient, ParamsWatcher, LearnerClient])
def test_address_that_is_none_is_refused(make: Callable[..., object]) -> None:
    """When the client is made, with what an address looks like: calls would fail, or be repeated without end."""
    for address in ("localhost", "http://host:7403", "host:70000"):
        with pytest.raises(InvalidArgument, match=naming("address 'HOST:PORT'", repr(address))):
            make(address)
    with pytest.raises(TypeError, match=naming("address 7402 'HOST:PORT'")):
        make(7402)


@pytest.mark.parametrize("deadline_s", [0, -1.0, math.nan])
@pytest.mark.parametrize("make", [ReplayClient, ParamsClient, LearnerClient])
def test_deadline_that_has_passed_is_refused(make: Callable[..., _Client], deadline_s: float) -> None:
    """Every call would end as if the server did not answer."""
    with pytest.raises(InvalidArgument, match=naming("deadline_s", deadline_s, 0)):
        make(_NOBODY, deadline_s=deadline_s)


def test_deadline_of_a_transfer_that_has_passed_is_refused() -> None:
    """As any other."""
    with pytest.raises(InvalidArgument, match=naming("transfer_deadline_s -1 0")):
        ParamsClient(_NOBODY, transfer_deadline_s=-1)
    with closing(LearnerClient(_NOBODY)) as learner, pytest.raises(InvalidArgument, match=naming("deadline_s 0")):
        learner.save_checkpoint(deadline_s=0.0)


@pytest.mark.parametrize("deadline_s", [math.inf, 1e10])
def test_deadline_beyond_every_clock_never_comes(deadline_s: float) -> None:
    """GRPC would take it for one that has passed."""
    with local_server() as server, ReplayClient(server.address, deadline_s=deadline_s) as client:
        client.wait_for_ready(deadline_s)
        assert client.list_tables() == ()


def test_version_may_be_a_number_of_numpy() -> None:
    """A number that no version has is refused, and so is what is neither a number nor a tag."""
    with closing(ParamsClient(_NOBODY)) as client:
        with pytest.raises(Unavailable):
            client.fetch(np.int64(3))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=naming("selector -1 1")):
            client.fetch(-1)
        with pytest.raises(TypeError, match=naming("selector")):
            client.fetch(3.0)  # type: ignore[arg-type]
