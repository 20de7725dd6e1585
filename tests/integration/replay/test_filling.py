"""Tables that are filled from a dataset: whole or not at all, and no item too few."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.proxy import Proxy
from tests.support.replay_service import LocalServer, lose_answer_of_creation
from tests.support.waiting import WAIT_S
from tidemill.errors import AlreadyExists, InvalidArgument, NotFound
from tidemill.replay import ReplayClient
from tidemill.replay.transfer.filling import Rows, fill_table


def _rows(episodes: int, steps: int, broken: bool = False) -> Rows:
    """Yield episodes of so many steps and the observation that follows; a broken dataset ends in the middle."""
    for _ in range(episodes):
        for number in range(steps + 1):
            row: dict[str, Any] = {"observation": np.array([number], np.float32), "reward": np.float32(1)}
            yield row, number == steps
    if broken:
        raise InvalidArgument("the file ends here")


def test_dataset_that_breaks_off_leaves_no_table(server: LocalServer) -> None:
    """A learner would train on a part of it, and the next try would be refused."""
    fill = partial(fill_table, server.address, "data", name="d", steps=12, item_steps=2, sampler=None, timeout_s=WAIT_S)
    with pytest.raises(InvalidArgument, match="ends here"):
        fill(_rows(2, 3, broken=True))
    with ReplayClient(server.address) as client:
        with pytest.raises(NotFound):
            client.describe_table("data")
        fill(_rows(2, 3))
        assert client.describe_table("data").items == 6


def test_items_of_one_step_have_room_for_every_row(server: LocalServer) -> None:
    """The last observation of an episode is one, too; the first items were evicted."""
    fill_table(
        server.address,
        "data",
        _rows(4, 3),
        name="d",
        steps=12,
        item_steps=1,
        sampler=None,
        timeout_s=WAIT_S,
    )
    with ReplayClient(server.address) as client:
        assert client.describe_table("data").items == 16


def test_creation_that_was_not_answered_is_no_table_of_another(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated call finds the table of the first one; a table of before is refused and left as it is."""
    with Proxy(server.address) as proxy:
        lose_answer_of_creation(monkeypatch, proxy, server)
        fill = partial(
            fill_table, proxy.address, "data", name="d", steps=12, item_steps=2, sampler=None, timeout_s=WAIT_S
        )
        fill(_rows(2, 3))
        with pytest.raises(AlreadyExists, match="data"):
            fill(_rows(4, 3))
    with ReplayClient(server.address) as client:
        assert client.describe_table("data").items == 6
