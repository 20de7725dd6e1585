"""The launcher's curves of actors and replay, as TensorBoard reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.support.event_files import scalars
from tests.support.replay_streams import make_config, make_replay
from tidemill.learner.status import POLICY_LAG, LearnerState, LearnerStatus
from tidemill.replay.table_config import TableDescription
from tidemill.services.launcher.view.curves import ClusterCurves
from tidemill.services.launcher.view.status import ClusterStatus
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.metrics import describe


def _table(**values: int) -> TableDescription:
    """Return the description of an empty table of 100 items, with other values."""
    replay = make_replay(make_config("replay"))
    return replace(describe(replay.find("replay"), replay, AdmissionQueue(lambda: 0.0), None), **values)  # type: ignore[arg-type]


def _status(
    env_steps: int,
    *tables: TableDescription | tuple[TableDescription, ...],
    answers: bool = True,
    state: LearnerState = LearnerState.TRAINING,
) -> ClusterStatus:
    """Return a status in which each shard has a table, or several."""
    learner = LearnerStatus(state, env_steps=env_steps, learner_steps=env_steps // 2, metrics={POLICY_LAG: 1.5})
    shards = tuple(each if isinstance(each, tuple) else (each,) for each in tables)
    return ClusterStatus(1.0, (), learner, env_steps_per_s=50.0, tables=shards, learner_answers=answers)


def test_shards_are_added_up_and_rates_are_of_the_time_between(tmp_path: Path) -> None:
    """Over agent decisions: how full the table is, what came and was drawn per second, what actors do together."""
    now_s = 0.0
    curves = ClusterCurves(tmp_path, "replay", 2.0, lambda: now_s)
    other = replace(_table(), config=make_config("other"), items=100)
    curves.add(_status(100, _table(items=10, inserts=10, samples=0), (_table(items=40, inserts=30, samples=0), other)))
    now_s = 1.0
    curves.add(_status(150, _table(items=99)))  # too early
    now_s = 4.0
    curves.add(_status(200, _table(items=50, inserts=50, samples=80), (_table(items=50, inserts=70, samples=0), other)))
    now_s = 8.0
    curves.add(_status(300, answers=False))
    curves.add(_status(0, state=LearnerState.STARTING))  # its counts are not restored yet
    curves.close()
    curves.add(_status(400))
    assert scalars(tmp_path / "tensorboard" / "cluster", "replay/fill") == [(100, 0.25), (200, 0.5)]
    assert scalars(tmp_path / "tensorboard" / "cluster", "replay/inserts_per_s") == [(100, 0.0), (200, 20.0)]
    assert scalars(tmp_path / "tensorboard" / "cluster", "replay/samples_per_s") == [(100, 0.0), (200, 20.0)]
    assert scalars(tmp_path / "tensorboard" / "cluster", "actors/env_steps_per_s") == [(100, 50.0), (200, 50.0)]
    assert scalars(tmp_path / "tensorboard" / "cluster", "actors/policy_lag") == [(100, 1.5), (200, 1.5)]
    lines = [json.loads(line) for line in (tmp_path / "curves" / "cluster.jsonl").read_text().splitlines()]
    assert [(line["step"], line["env_steps"], line["replay/fill"]) for line in lines] == [
        (50, 100, 0.25),
        (100, 200, 0.5),
    ]


def test_no_curves_are_written_where_none_are_wanted(tmp_path: Path) -> None:
    """`learner.tensorboard_every_s` of 0 writes no event file here either."""
    curves = ClusterCurves(tmp_path, "replay", 0.0)
    curves.add(_status(100, _table()))
    curves.close()
    assert not list(tmp_path.iterdir())


def test_points_that_cannot_be_written_are_dropped(tmp_path: Path) -> None:
    """A run does not end for want of them, and its curves continue once the disk takes them."""
    now_s = 0.0
    in_the_way = tmp_path / "tensorboard"
    in_the_way.write_text("no folder")
    curves = ClusterCurves(tmp_path, "replay", 1.0, lambda: now_s)
    curves.add(_status(100, _table()))
    assert in_the_way.read_text() == "no folder"
    in_the_way.unlink()
    now_s = 10.0
    curves.add(_status(200, _table()))
    curves.close()
    assert scalars(tmp_path / "tensorboard" / "cluster", "replay/fill") == [(200, 0.0)]


def test_rates_are_those_of_the_shards_that_answer(tmp_path: Path) -> None:
    """One that is back shows no growth of all that it has ever stored, and none of what another one has."""
    now_s = 0.0
    curves = ClusterCurves(tmp_path, "replay", 1.0, lambda: now_s)
    first, second = _table(inserts=5_000_000, samples=0), _table(inserts=1_000, samples=0)
    for step, shards in enumerate(
        (
            (first, second),
            (first, replace(second, inserts=1_100)),
            ((), replace(second, inserts=1_300)),
            (replace(first, inserts=5_000_100), replace(second, inserts=1_500)),
            (replace(first, inserts=0), replace(second, inserts=1_500)),  # its disk was lost, too
        )
    ):
        curves.add(_status(step, *shards))  # type: ignore[arg-type]
        now_s += 10.0
    curves.close()
    rates = scalars(tmp_path / "tensorboard" / "cluster", "replay/inserts_per_s")
    assert rates == [(0, 0.0), (1, 10.0), (2, 20.0), (3, 25.0), (4, 0.0)]
