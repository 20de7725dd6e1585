"""Episodes out of a table's rows: whole, cut off, flushed in the middle, with and without a final observation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S
from tidemill.errors import InvalidArgument
from tidemill.replay import (
    ItemWindow,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    export_table,
    signature_like,
)
from tidemill.replay.transfer.episodes import Episode, Episodes
from tidemill.replay.transfer.exported_table import ExportedTable

_UNIFORM = SelectorConfig(SelectorKind.UNIFORM)


def _row(number: float, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - of any column
    row = {
        "observation": {"x": np.float32(number)},
        "action": int(number),
        "reward": np.float32(number / 2),
        "terminated": False,
        "truncated": False,
        "is_first": False,
    }
    return row | changes


def _table(step: dict[str, Any], item_steps: int = 2) -> TableConfig:
    return TableConfig("t", signature_like(step), _UNIFORM, max_items=1000, max_item_steps=item_steps)


def _episodes(server: LocalServer, folder: Path) -> list[Episode]:
    export_table(server.address, "t", folder)
    return list(Episodes(ExportedTable(folder)))


def _shown(episode: Episode) -> tuple[list[float], list[int], list[float], str]:
    """Return observations, actions, rewards, and how each step ended: `-`, `t`erminated or `c`ut (truncated)."""
    ends = zip(episode.terminated, episode.truncated, strict=True)
    return (
        episode.observations["observation__x"].tolist(),
        episode.actions["action"].tolist(),
        episode.rewards.tolist(),
        "".join("t" if terminated else "c" if truncated else "-" for terminated, truncated in ends),
    )


@pytest.mark.parametrize("flushed", [False, True])
def test_rows_of_actors_become_episodes(server: LocalServer, tmp_path: Path, flushed: bool) -> None:
    """By hand: truncated and terminated with a final observation, terminated without, cut off; flushes are not seen."""
    rows = [
        *(_row(10, is_first=True), _row(11), _row(12, truncated=True), _row(13)),
        *(_row(20, is_first=True), _row(21, terminated=True), _row(22)),
        *(_row(30, is_first=True), _row(31, terminated=True)),
        *(_row(40, is_first=True), _row(41), _row(42)),
    ]
    table = _table(rows[0])
    with ReplayWriter(server.address, table, windows=ItemWindow(2), chunk_length=4) as writer:
        for i, row in enumerate(rows):
            writer.append(row)
            if flushed and i in (1, 2, 4, 7, 10):
                writer.flush(WAIT_S)
    assert [_shown(episode) for episode in _episodes(server, tmp_path / "out")] == [
        ([10, 11, 12, 13], [10, 11, 12], [5, 5.5, 6], "--c"),
        ([20, 21, 22], [20, 21], [10, 10.5], "-t"),
        ([30, 31, 31], [30, 31], [15, 15.5], "-t"),
        ([40, 41, 42], [40, 41], [20, 20.5], "-c"),
    ]


def test_transitions_become_episodes(server: LocalServer, tmp_path: Path) -> None:
    """Rows that have their next observation; where it is not the following row's, an episode is cut off."""
    plain = {key: value for key, value in _row(0).items() if key != "is_first"}

    def transition(number: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - of any column
        row = {key: value for key, value in _row(number).items() if key in plain}
        return row | {"next_observation": {"x": np.float32(number + 1)}, "log_prob": 0.5} | changes

    numbers = [
        *(transition(1), transition(2, terminated=True)),
        transition(3, terminated=True),
        *(transition(5), transition(6), transition(9)),
    ]
    with ReplayWriter(server.address, _table(numbers[0], 1), windows=ItemWindow(1), chunk_length=2) as writer:
        for row in numbers:
            writer.append(row)
    episodes = _episodes(server, tmp_path / "out")
    assert [_shown(episode) for episode in episodes] == [
        ([1, 2, 3], [1, 2], [0.5, 1], "-t"),
        ([3, 4], [3], [1.5], "t"),
        ([5, 6, 7], [5, 6], [2.5, 3], "-c"),
        ([9, 10], [9], [4.5], "c"),
    ]
    assert episodes[0].others["log_prob"].tolist() == [0.5, 0.5]


def test_rows_that_left_the_table_cut_an_episode(server: LocalServer, tmp_path: Path) -> None:
    """Evicted steps are not made up: the rest of the episode is an episode by itself."""
    table = _table(_row(0))
    with ReplayWriter(server.address, table, windows=ItemWindow(2), chunk_length=2) as writer:
        for number in range(12):
            writer.append(_row(number, is_first=number == 0))
        writer.flush(WAIT_S)
    found = server.replay.find("t")
    found.delete_slots(np.array([4, 5, 6]))  # the items of rows 4-5, 5-6 and 6-7
    assert [_shown(episode)[1] for episode in _episodes(server, tmp_path / "out")] == [[0, 1, 2, 3], [7, 8, 9, 10]]


def test_table_without_a_column_is_refused(server: LocalServer, tmp_path: Path) -> None:
    """By name."""
    with ReplayWriter(server.address, _table({"observation": 0.0, "action": 0}), windows=ItemWindow(2)) as writer:
        writer.append({"observation": 0.0, "action": 0})
    with pytest.raises(InvalidArgument, match=naming("['reward', 'terminated', 'truncated']")):
        _episodes(server, tmp_path / "out")
