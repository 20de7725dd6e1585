"""Batches of several tables, put together on the training device."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY

from retrace.config import RetraceConfig
from tests.support.demonstrations import demonstrations
from tests.support.learner_fakes import FakeAgent, given_to_dataset
from tests.support.naming import naming
from tidemill.config.sections import LearnerConfig
from tidemill.config.services import LearnerSettings
from tidemill.config.sources import SourceSettings
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.learner.status import SourceStatus
from tidemill.replay.sampling.replay_batch import ReplayBatch
from tidemill.replay.sampling.sample_decoder import ItemRows, Transform
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.transitions import FRAMES, ROWS
from tidemill.services.learner.data import dataset
from tidemill.services.learner.data.decoder import DEVICE_BATCH, WEIGHT, Batch, ToDevice
from tidemill.services.learner.data.device import DeviceBatch
from tidemill.services.learner.data.sources import SourceReports, joined_columns, refusing_actions, refusing_undecided
from tidemill.types import WindowSpec

_FRAMES = torch.arange(60.0).reshape(20, 3)


def _part(table: int, items: int, largest: float, **columns: Any) -> ReplayBatch:  # noqa: ANN401 - tensors
    own = {"action": torch.full((items,), float(table)), WEIGHT: torch.ones(items)} | columns
    return ReplayBatch(
        keys=np.arange(items, dtype=np.uint64) + 10 * table,
        probabilities=np.full(items, 0.1),
        lengths=np.full(items, 2),
        payloads=(),
        columns=own | {DEVICE_BATCH: DeviceBatch(own)},
        sizes={},
        weights=np.ones(items, np.float32),
        params_versions=np.full(items, 7 - table, np.uint64),
        tables=np.full(items, table),
        table_items=np.full(items, 100 + table),
        first_versions=np.full(items, 7 * (table == 0), np.uint64),
        steps=2,
        largest_weight=largest,
    )


def test_parts_are_joined_in_order_with_weights_by_the_largest_of_all() -> None:
    """The batch knows which items are whose; the policy lag and the table's size are those of the run's own table."""
    parts = [_part(0, 3, 2.0), _part(1, 2, 4.0), _part(2, 1, 1.0)]
    batch = Batch(ReplayBatch.joined(parts, joined_columns))
    assert batch.columns["action"].tolist() == [0, 0, 0, 1, 1, 2]
    assert batch.weight.tolist() == [0.5] * 3 + [1.0] * 2 + [0.25]
    assert batch.tables() == [(0, slice(0, 3)), (1, slice(3, 5)), (2, slice(5, 6))]
    assert batch.keys[batch.tables()[1][1]].tolist() == [10, 11]
    assert batch.params_versions.tolist() == [7.0] * 3
    assert (batch.replay.table_items[0], batch.largest_weight, batch.sizes) == (100, 4.0, (3, 2, 1))


def test_reports_count_what_each_source_gave() -> None:
    """Samples add up; items and age are those of the newest batch, and an age that is unknown is 0."""
    reports = SourceReports({"demos": SourceSettings(0.3), "yesterday": SourceSettings(0.2)})
    assert reports.read() == (SourceStatus("demos", 0.3), SourceStatus("yesterday", 0.2))
    whole = ReplayBatch.joined([_part(0, 3, 2.0), _part(1, 2, 4.0), _part(2, 1, 1.0)], joined_columns)
    reports.record(Batch(whole), now=8.0)
    table_s = np.array([1.0, 1.0, 1.0, 4.0, 6.0, np.nan], np.float32)
    reports.record(Batch(dataclasses.replace(whole, table_s=table_s, received_at=5.0)), now=8.0)
    assert reports.read() == (SourceStatus("demos", 0.3, 101, 4, 8.0), SourceStatus("yesterday", 0.2, 102, 2, 0.0))
    with_labels = {"source": "demos"}
    assert REGISTRY.get_sample_value("tidemill_learner_source_ratio", with_labels) == 0.3
    assert REGISTRY.get_sample_value("tidemill_learner_source_age_seconds", with_labels) == 8.0


def test_frames_of_each_table_become_observations() -> None:
    """Row numbers are those of a table's own frames; another table may have whole observations already."""
    rows = {"observation": torch.tensor([[1, 2], [3, 4]]), "bootstrap_observation": torch.tensor([[2, 3], [4, 5]])}
    shared = {FRAMES: _FRAMES, **{ROWS[name]: numbers for name, numbers in rows.items()}}
    whole = {name: 100 + _FRAMES[numbers] for name, numbers in rows.items()}
    joined = joined_columns([_part(0, 2, 1.0, **shared), _part(1, 2, 1.0, **whole)])
    for name, numbers in rows.items():
        assert joined[name].equal(torch.cat((_FRAMES[numbers], 100 + _FRAMES[numbers])))
    assert FRAMES not in joined


def test_weight_of_a_source_multiplies_those_of_its_items() -> None:
    """The run's own items keep theirs."""
    transform = ToDevice(FakeAgent(), torch.device("cpu"), weights=(1.0, 0.25))
    for table, expected in ((0, [1.0, 0.5]), (1, [0.25, 0.125])):
        rows = ItemRows(
            columns={"reward": np.zeros(3, np.float32)},
            index=np.array([[0, 1], [1, 2]]),
            weights=np.array([1.0, 0.5], np.float32),
            payloads=(),
            table=table,
        )
        assert transform(rows)[WEIGHT].tolist() == expected


_LAST_OBSERVATION = 3
"""Row of it in two episodes of three and two decisions: 0 1 2 (3) 4 5 (6)."""


_ENDS = {
    "terminated": np.array([0, 0, 1, 0, 0, 0, 0], np.bool_),
    "truncated": np.array([0, 0, 0, 0, 0, 1, 0], np.bool_),
    "is_first": np.array([1, 0, 0, 0, 1, 0, 0], np.bool_),
}


def _items(table: int, *first_rows: int) -> ItemRows:
    """Return items of three rows from each of some rows on; from -1 on one that is padded where its stream starts."""
    return ItemRows(
        columns=_ENDS,
        index=np.maximum(np.array(first_rows)[:, None] + np.arange(3), 0),
        weights=np.ones(len(first_rows), np.float32),
        payloads=(),
        table=table,
    )


@pytest.mark.parametrize("table", [0, 1, 2])
def test_item_of_a_source_that_acts_at_a_last_observation_is_refused(table: int) -> None:
    """With a history of 1 the second row is the first action; the run's own items are not looked at."""
    names = ("demos", "yesterday")
    transform = refusing_undecided(lambda rows: {"index": rows.index}, names, 1)
    decisions = _items(table, -1, 0, 1, 3, 4)
    assert transform(decisions)["index"] is decisions.index
    wrong = _items(table, 0, _LAST_OBSERVATION - 1)
    if table == 0:
        assert transform(wrong)["index"] is wrong.index
        return
    with pytest.raises(ConfigError, match=naming(f"learner.sources.{names[table - 1]} --history 1 --item-steps 2")):
        transform(wrong)


def test_padded_item_may_begin_with_the_end_of_an_episode() -> None:
    """A source whose first rows were evicted begins anywhere."""
    columns = {
        "terminated": np.ones(3, np.bool_),
        "truncated": np.zeros(3, np.bool_),
        "is_first": np.zeros(3, np.bool_),
    }
    rows = dataclasses.replace(_items(1, -1), columns=columns)
    assert refusing_undecided(lambda rows: {"index": rows.index}, ("demos",), 1)(rows)["index"] is rows.index


def test_items_without_a_history_are_not_looked_at() -> None:
    """Nor those of a run without sources: the transform is left as it is."""
    transform = ToDevice(FakeAgent(), torch.device("cpu"))
    assert refusing_undecided(transform, ("demos",), 0) is transform
    assert refusing_undecided(transform, (), 3) is transform


@pytest.mark.parametrize("table", [0, 1])
@pytest.mark.parametrize(
    "options, wrong, says",
    [
        ((), np.array([[0, 1], [-1, 1.5]], np.float32), "1.5 [-1, 1]"),
        ((), np.array([[0, 1], [-1, np.nan]], np.float32), "nan [-1, 1]"),
        ((3,), np.array([0, 3]), "3 [0, 2]"),
        ((3,), np.array([-1, 2]), "-1 [0, 2]"),
        ((2, 4), np.array([[1, 3], [2, 3]]), "2 [0, 1]"),
    ],
)
def test_action_of_a_source_that_no_agent_takes_is_refused(
    table: int, options: tuple[int, ...], wrong: np.ndarray[Any, Any], says: str
) -> None:
    """Such as one in the environment's own unit; the run's own items are not looked at."""
    transform = refusing_actions(lambda rows: {"index": rows.index}, ("demos",), options, slice(1))
    rows = dataclasses.replace(_items(table, 0), columns=_ENDS | {"action": wrong}, index=np.array([[0, 1], [1, 0]]))
    if table == 0:
        assert transform(rows)["index"] is rows.index
        return
    with pytest.raises(ConfigError, match=naming(f"learner.sources.demos {says}")):
        transform(rows)
    good = dataclasses.replace(rows, columns=_ENDS | {"action": np.repeat(wrong[:1] * (wrong[0] > 0), 2, axis=0)})
    assert transform(good)["index"] is rows.index


def test_action_that_no_agent_learns_from_may_be_anything() -> None:
    """That of an episode's last observation, and of a row in no item; a recurrent agent learns from all rows."""
    action = np.array([0.5, np.nan, 9.0], np.float32)
    rows = dataclasses.replace(_items(1, 0), columns=_ENDS | {"action": action}, index=np.array([[0, 1]]))
    first, every = (refusing_actions(lambda rows: {"index": rows.index}, ("demos",), (), at) for at in (slice(1), None))
    assert first(rows)["index"] is rows.index
    with pytest.raises(ConfigError, match="nan"):
        every(rows)


def _transform_of(config: LearnerConfig, monkeypatch: pytest.MonkeyPatch) -> Transform:
    """Return the transform of a learner's dataset, which hands out the columns and the index it is given."""
    monkeypatch.setattr(dataset, "ToDevice", lambda *_: lambda rows: {"index": rows.index, **rows.columns})
    agent = SimpleNamespace(window=WindowSpec(history=1, steps=1), recurrent_state_size=0)
    given = given_to_dataset(monkeypatch, config, agent, demonstrations(), action_options=(2,))
    transform: Transform = given["transform"]
    return transform


@pytest.mark.parametrize(
    "env, table, learnt",
    [
        (EnvSettings("ALE/Pong-v5"), 1, [1.0, -1.0, 0.0]),
        (EnvSettings("ALE/Pong-v5"), 0, [7.0, -0.5, 0.0]),  # the run's own, as it has stored them
        (EnvSettings("ALE/Pong-v5", clip_rewards=False), 1, [7.0, -0.5, 0.0]),
        (EnvSettings("Pendulum-v1"), 1, [7.0, -0.5, 0.0]),
    ],
)
def test_rewards_of_a_source_are_clipped_as_those_of_the_run(
    env: EnvSettings, table: int, learnt: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that mixes raw rewards with signs has the values of neither; the decoded columns stay as they are."""
    config = LearnerConfig(env=env, learner=LearnerSettings(sources={"demos": SourceSettings(0.5)}))
    reward = np.array([7.0, -0.5, 0.0], np.float32)
    rows = dataclasses.replace(_items(table, 0), columns=_ENDS | {"action": np.zeros(7, int), "reward": reward})
    assert _transform_of(config, monkeypatch)(rows)["reward"].tolist() == learnt
    assert reward.tolist() == [7.0, -0.5, 0.0]


@pytest.mark.parametrize(
    "agent, first_row, wrong_row, is_refused",
    [
        (RetraceConfig(), 0, 2, True),
        (RetraceConfig(), 0, 0, False),  # before the first action
        (RetraceConfig(), _LAST_OBSERVATION - 2, _LAST_OBSERVATION, False),
        (RetraceConfig(), _LAST_OBSERVATION, _LAST_OBSERVATION + 2, True),
        (DQNConfig(), 0, 2, False),
    ],
)
def test_every_action_is_checked_for_an_algorithm_of_the_users(
    agent: Any,  # noqa: ANN401 - settings of any algorithm
    first_row: int,
    wrong_row: int,
    is_refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retrace trains on later actions of an item, too; the project's agents without memory on the first alone."""
    config = LearnerConfig(agent=agent, learner=LearnerSettings(sources={"demos": SourceSettings(0.5)}))
    transform = _transform_of(config, monkeypatch)
    rows = _items(1, first_row)
    rows = dataclasses.replace(rows, columns=_ENDS | {"action": 2 * (np.arange(7) == wrong_row)})
    with pytest.raises(ConfigError, match=naming("2 [0, 1]")) if is_refused else nullcontext():
        assert transform(rows)["index"] is rows.index


def test_gaussian_of_the_users_may_have_drawn_an_action_beyond_the_bounds() -> None:
    """Its run has stored it so; NaN it has not."""
    transform = refusing_actions(lambda rows: {"index": rows.index}, ("demos",), (), slice(1), may_exceed=True)
    rows = dataclasses.replace(
        _items(1, 0), columns=_ENDS | {"action": np.array([[1.7]], np.float32)}, index=np.array([[0]])
    )
    assert transform(rows)["index"] is rows.index
    with pytest.raises(ConfigError, match="nan"):
        transform(dataclasses.replace(rows, columns=_ENDS | {"action": np.array([[np.nan]], np.float32)}))
