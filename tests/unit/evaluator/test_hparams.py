"""The settings of runs as TensorBoard's own HParams page reads them."""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from tidemill.config.run import RunSettings
from tidemill.config.sections import EvaluatorConfig
from tidemill.params.version import ParamsMetadata, Version
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.services.evaluator.protocol import Evaluation
from tidemill.services.evaluator.run_logs import RunLogs


def _write(
    root: Path, name: str, seed: int, gamma: float, score: float, document: dict[str, Any] | None = None
) -> None:
    run = RunSettings(root=str(root), name=name, seed=seed)
    config = EvaluatorConfig(run=run, agent=SACConfig(gamma=gamma))
    if document is not None:
        run.folder.mkdir(parents=True)
        (run.folder / "config.yaml").write_text(yaml.safe_dump(document))
    logs = RunLogs(run, lambda: 0.0)
    logs.write_hparams(config)
    metadata = ParamsMetadata(learner_steps=50, env_steps=100)
    version = Version(5, 4, 1, datetime.datetime.now(datetime.UTC), metadata, ())
    logs.add(Evaluation(np.array([score]), np.array([1]), (1,)), version)
    logs.close()


def _rows(root: Path) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Return settings and scores of each run, as TensorBoard answers its page."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(root))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(root))
    context = backend_context.Context(TBContext(data_provider=provider, logdir=str(root)))
    request, experiment_id = RequestContext(), "x"
    runs_to_tags = context.hparams_metadata(request, experiment_id)
    experiment = context.experiment_from_metadata(request, experiment_id, True, runs_to_tags, [])
    wanted = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=9,
        aggregation_type=api_pb2.AGGREGATION_AVG,
        allowed_statuses=[api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING, api_pb2.STATUS_SUCCESS],
        col_params=[api_pb2.ColParams(metric=metric.name) for metric in experiment.metric_infos],
    )
    groups = list_session_groups.Handler(request, context, experiment_id, wanted).run().session_groups
    found = []
    for group in groups:
        settings = {name: value.number_value or value.string_value for name, value in group.hparams.items()}
        found.append((settings, {value.name.tag: value.value for value in group.metric_values}))
    assert all(
        re.fullmatch(r"(tuned-trial-000\d-seed-1|[ab]), \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", group.name) for group in groups
    )
    return sorted(found, key=lambda row: str(row[1]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_are_rows_with_their_settings_and_scores(tmp_path: Path) -> None:
    """Two runs that differ by seed and gamma are two rows of TensorBoard's table."""
    _write(tmp_path, "a", seed=1, gamma=0.9, score=10.0)
    _write(tmp_path, "b", seed=2, gamma=0.99, score=20.0)
    rows = _rows(tmp_path)
    assert [(row["run.seed"], row["agent.gamma"], scores["evaluation/return_mean"]) for row, scores in rows] == [
        (1.0, 0.9, 10.0),
        (2.0, 0.99, 20.0),
    ]
    settings = rows[0][0]
    assert settings["agent.algorithm"] == "sac"
    assert settings["agent.hidden_sizes"] == "[256, 256]"
    assert {f"agent.{field.name}" for field in dataclasses.fields(SACConfig)} - {"agent.network_settings"} <= set(
        settings
    )
    assert not {"run.name", "run.root"} & set(settings)
    assert not any(name.startswith("actor.server") for name in settings), "of this machine"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_runs_of_a_sweep_that_start_at_once_are_rows_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are called `seed-1`, and rows of one name and second are taken for one."""
    monkeypatch.setattr(time, "strftime", lambda *_: "2026-12-01 10:00:00")
    for number in range(2):
        _write(tmp_path / f"tuned/trial-000{number}", "seed-1", seed=1, gamma=0.9 + number / 100, score=float(number))
    assert [row["agent.gamma"] for row, _ in _rows(tmp_path)] == [0.9, 0.91]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_settings_of_other_processes_come_from_the_runs_file(tmp_path: Path) -> None:
    """The evaluator reads neither the table's nor the learner's."""
    document = {
        "run": {"seed": 7},
        "learner": {"publish_every": 5, "server": {"address": "x"}},
        "table": {"min_size": 9},
        "launcher": {"actors": 18, "view": "live"},
    }
    _write(tmp_path, "a", seed=7, gamma=0.9, score=1.0, document=document)
    ((settings, _),) = _rows(tmp_path)
    assert settings == {
        "run.seed": 7.0,
        "learner.publish_every": 5.0,
        "table.min_size": 9.0,
        "launcher.actors": 18.0,
    }
