"""A learner at rest tells how its run has ended."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from tidemill.config.digest import diverged_tag
from tidemill.config.run import RunSettings
from tidemill.config.sections import LearnerConfig
from tidemill.errors import FatalError
from tidemill.params.run_end import RESULT
from tidemill.rpc.server import Health
from tidemill.rpc.settings import ServerSettings
from tidemill.services.learner import ended as service
from tidemill.services.learner.ended import RunThatEnded


def test_learner_that_diverged_tells_what_the_last_evaluation_found(tmp_path: Path) -> None:
    """That is written after the divergence, and may be that the run is solved; a result of another end is not told."""
    config = LearnerConfig(run=RunSettings(root=str(tmp_path), name="mine", target_return=200.0))
    ended = RunThatEnded(config)
    ended.ask(Mock(list_versions=Mock(return_value=Mock(tags={diverged_tag(config): 3}, versions=[]))))
    config.run.folder.mkdir()
    for mark, end in (("other", "ended"), (diverged_tag(config), "told"), (config.run.end_tag, "told")):
        (config.run.folder / RESULT).write_text(json.dumps({"end": "told", "mark": mark}))
        assert ended.status().end == end, mark


def test_learner_that_was_stopped_tells_its_newest_version_until_the_run_ends(tmp_path: Path) -> None:
    """Nothing marks the end of a run that can continue. The evaluator may mark it later, as at `run.max_wall_s`."""
    config = LearnerConfig(run=RunSettings(root=str(tmp_path), name="mine"))
    versions = [Mock(version=version, metadata=Mock(learner_steps=10 * version)) for version in (4, 5)]
    ended = RunThatEnded(config)
    for tags, end in (({}, "stopped with version 5; start "), ({config.run.end_tag: 4}, "ended with version 4")):
        ended.ask(Mock(list_versions=Mock(return_value=Mock(tags=tags, versions=versions))))
        status = ended.status()
        assert status.end.startswith(end)
        assert (status.params_version, status.learner_steps) == ((4, 40) if tags else (5, 50))


def test_learner_that_was_stopped_after_an_earlier_divergence_can_continue(tmp_path: Path) -> None:
    """The mark stays where other settings have trained on; it is not that of an end."""
    config = LearnerConfig(run=RunSettings(root=str(tmp_path), name="mine"))
    versions = [Mock(version=version, metadata=Mock(learner_steps=10 * version)) for version in (4, 5)]
    ended = RunThatEnded(config)
    ended.ask(Mock(list_versions=Mock(return_value=Mock(tags={diverged_tag(config): 4}, versions=versions))))
    assert ended.status().end.startswith("stopped with version 5; start ")


def test_learner_at_rest_is_in_good_health_before_a_probe_can_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asked in between would hear that the process is not serving."""
    was_serving: list[bool] = []

    def serve_metrics(_: ServerSettings, health: Health) -> str:
        was_serving.append(health.serving)
        raise FatalError("that is all")

    monkeypatch.setattr(service, "serve_metrics", serve_metrics)
    monkeypatch.setattr(service, "show_idling", lambda: None)  # its metric can be made once in a process
    assert service.main(["--learner.server.address", "127.0.0.1:0"]) == 1
    assert was_serving == [True]
