"""Tables that are filled from a dataset: whole or not at all, and no item too few."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.naming import naming
from tests.support.proxy import Proxy
from tests.support.replay_service import LocalServer, local_server, lose_answer_of_creation
from tests.support.waiting import WAIT_S
from tidemill.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from tidemill.replay import ReplayClient
from tidemill.replay.codec import window_index
from tidemill.replay.transfer import minari
from tidemill.replay.transfer.env_columns import EnvColumns
from tidemill.replay.transfer.episodes import Episodes
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.transfer.exporting import export_table
from tidemill.replay.transfer.filling import Rows, fill_table
from tidemill.rl.transitions import transitions


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


@pytest.mark.parametrize(
    "stored_limit, steps, says", [(20_000, 2000, "--folder max_memory_mib"), (0, 1000, "1,000 2,000")]
)
def test_table_that_lost_its_first_items_is_removed(stored_limit: int, steps: int, says: str) -> None:
    """A learner would train on the last episodes alone: the memory is full, or the dataset longer than it says."""
    with local_server(stored_limit=stored_limit) as server, ReplayClient(server.address) as client:
        with pytest.raises(ResourceExhausted, match=naming(f"{server.address} 'd' {says}")):
            fill_table(
                server.address,
                "data",
                _rows(20, 100),
                name="d",
                steps=steps,
                item_steps=2,
                sampler=None,
                timeout_s=WAIT_S,
            )
        assert not client.list_tables()


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


def test_dataset_that_breaks_off_while_the_server_is_away_says_how_to_remove_the_table(server: LocalServer) -> None:
    """The next try would be refused, and a learner would train on a part of it."""
    with Proxy(server.address) as proxy, ExitStack() as away:

        def rows() -> Rows:
            yield from _rows(2, 3)
            away.enter_context(proxy.refusing())
            raise InvalidArgument("the file ends here")

        with pytest.raises(Unavailable, match=f"ends here.*tidemill replay drop {proxy.address} data"):
            fill_table(proxy.address, "data", rows(), name="d", steps=12, item_steps=2, sampler=None, timeout_s=1.0)


def test_creation_that_was_not_answered_is_no_table_of_another(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated call finds the table of the first one; a table of before is refused and left as it is."""
    with Proxy(server.address) as proxy:
        lose_answer_of_creation(monkeypatch, proxy, server)
        fill = partial(
            fill_table,
            proxy.address,
            "data",
            name="d",
            steps=12,
            item_steps=2,
            history=0,
            sampler=None,
            timeout_s=WAIT_S,
        )
        fill(_rows(2, 3))
        with pytest.raises(AlreadyExists, match=naming(f"tidemill replay drop {proxy.address} data")):
            fill(_rows(4, 3))
    with ReplayClient(server.address) as client:
        assert client.describe_table("data").items == 6


@pytest.mark.parametrize("item_steps, history", [(2, 0), (4, 0), (9, 0), (2, 1), (4, 2)])
def test_every_decision_has_the_item_that_an_actor_makes(
    server: LocalServer, tmp_path: Path, item_steps: int, history: int
) -> None:
    """The last decisions of an episode, and of all, too: returns and stacks are those within their episode.

    Decision d of an episode has reward 10 ** d, and gamma is 1: a return shows which rewards it sums.
    """
    lengths, ends = (3, 1, 5, 2), ("terminated", "truncated", "truncated", "terminated")

    def rows() -> Rows:
        for episode, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            for number in range(length + 1):
                row = {
                    "observation": np.array([episode, number], np.float32),
                    "action": number,
                    "reward": np.float32(10**number if number < length else 0),
                    "terminated": number == length - 1 and end == "terminated",
                    "truncated": number == length - 1 and end == "truncated",
                    "is_first": number == 0,
                }
                yield row, number == length

    fill_table(
        server.address,
        "data",
        rows(),
        name="d",
        steps=sum(lengths),
        item_steps=item_steps,
        history=history,
        sampler=None,
        timeout_s=WAIT_S,
    )
    export_table(server.address, "data", tmp_path / "data")
    exported = ExportedTable(tmp_path / "data")
    index = window_index(exported.first_rows, exported.lengths, item_steps + history, exported.steps)
    batch = transitions(exported.rows(0, exported.steps), index, history + 1, item_steps - 1, gamma=1.0)
    seen = [batch[name].reshape(len(index), history + 1, 2) for name in ("observation", "bootstrap_observation")]
    decisions = [(episode, number) for episode, length in enumerate(lengths) for number in range(length)]
    assert exported.items == len(decisions)
    for item, (episode, number) in enumerate(decisions):
        end = min(number + item_steps - 1, lengths[episode])
        terminated = end == lengths[episode] and ends[episode] == "terminated"
        assert batch["action"][item] == number
        assert batch["n_step_return"][item] == sum(10**step for step in range(number, end))
        assert batch["bootstrap_discount"][item] == (not terminated)
        for stack, newest in zip(seen, (number, end), strict=True):
            shown = [[episode, max(step, 0)] for step in range(newest - history, newest + 1)]
            np.testing.assert_array_equal(stack[item], shown)
    assert [len(episode.rewards) for episode in Episodes(exported)] == list(lengths)


def test_minari_episode_without_an_end_is_cut_at_its_last_step() -> None:
    """Items continue into the next episode: without an end, a return would also sum the rewards there."""
    no = np.zeros(2, np.bool_)
    episode = SimpleNamespace(
        observations=np.zeros((3, 1)), actions=np.zeros(2), rewards=np.ones(2), terminations=no, truncations=no
    )
    columns = EnvColumns(spaces.Box(0, 1, (1,)), spaces.Discrete(2), "env")
    rows = [row for row, _ in minari._rows(episode, columns, "walks-v0")]
    assert [bool(row["truncated"]) for row in rows] == [False, True, False]
    assert not any(row["terminated"] for row in rows)


@pytest.mark.parametrize("number", [1.5, -0.25, np.nan, np.inf])
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([3, 3]), spaces.MultiBinary(2)])
def test_minari_action_that_is_no_choice_is_refused_with_its_dataset(space: spaces.Space[Any], number: float) -> None:
    """Of choices that are stored as floats, whole ones are taken; the first other one is named."""
    actions = np.ones((2, *(space.shape or ())))
    observations = np.zeros((3, 1))
    columns = EnvColumns(spaces.Box(0, 1, (1,)), space, "run")
    assert (columns.actions(actions)["action"] == 1).all()
    actions[1] = number
    episode = SimpleNamespace(id=7, observations=observations, actions=actions, rewards=np.ones(2))
    with pytest.raises(InvalidArgument, match=naming("7 'walks-v0'", number)):
        next(minari._rows(episode, columns, "walks-v0"))
