"""When a run is over, and which seeds measure it."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from tidemill.config.digest import diverged_tag
from tidemill.config.run import RunSettings
from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import FatalError
from tidemill.params.run_end import RESULT, note_divergence, read_divergence
from tidemill.params.version import ParamsMetadata
from tidemill.services.evaluator import __main__ as service
from tidemill.services.evaluator.verdict import (
    confirmation_seeds,
    evaluation_seeds,
    limit_reached,
    reaches_target,
)


@pytest.mark.parametrize("earlier, code", [("", 2), ("config.yaml", 1), ("scores.csv", 1)])
def test_new_run_of_services_takes_no_seed_among_those_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], earlier: str, code: int
) -> None:
    """As one of `tidemill train`; a run that has such a seed continues with it."""
    monkeypatch.setattr(service, "keep_freed_memory", Mock(side_effect=FatalError("it would start")))
    (tmp_path / "mine").mkdir()
    if earlier:
        (tmp_path / "mine" / earlier).touch()
    words = ["--run.root", str(tmp_path), "--run.name", "mine", "--evaluator.seed", "80000001"]
    assert service.main(words) == code
    assert ("evaluator.seed is 80000001" in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize(
    "run, reached",
    [
        (RunSettings(), ""),
        (RunSettings(max_learner_steps=101), ""),
        (RunSettings(max_learner_steps=100), "run.max_learner_steps (100) reached"),
        (RunSettings(max_env_steps=1001), ""),
        (RunSettings(max_env_steps=1000), "run.max_env_steps (1,000) reached"),
        (RunSettings(max_wall_s=10.5), ""),
        (RunSettings(max_wall_s=10), "run.max_wall_s (10) reached"),
    ],
)
def test_limit_is_reached_by_the_first_counter_at_its_limit(run: RunSettings, reached: str) -> None:
    """A limit of 0 is none; a counter at its limit has reached it."""
    assert limit_reached(run, ParamsMetadata(learner_steps=100, env_steps=1000), 10.0) == reached


def test_target_is_reached_at_exactly_the_target_and_never_without_one() -> None:
    """A run without a target cannot be solved."""
    assert reaches_target(RunSettings(target_return=200.0), 200.0)
    assert not reaches_target(RunSettings(target_return=200.0), 199.99)
    assert not reaches_target(RunSettings(), 1e9)


def test_confirmations_never_share_a_seed_with_anything_before() -> None:
    """Each confirmation plays fresh seeds, none of which an evaluation or an earlier confirmation played."""
    played = [evaluation_seeds(10_000, 25), *(confirmation_seeds(10_000, 100, n) for n in range(50))]
    seeds = [seed for group in played for seed in group]
    assert len(seeds) == len(set(seeds)) == 25 + 50 * 100
    assert confirmation_seeds(10_000, 100, 2)[0] == 1_010_200
    assert confirmation_seeds(10_000, 50, 3, 1_010_300) == range(1_010_300, 1_010_350)


@pytest.mark.parametrize("marked, written, is_done", [(0, 1, True), (1, 0, True), (0, None, False), (None, 0, False)])
def test_result_of_either_end_with_the_same_settings_is_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: int | None, written: int | None, is_done: bool
) -> None:
    """Training may diverge while the last evaluation reaches the target: the evaluator leaves its result as it is."""
    config = EvaluatorConfig(run=RunSettings(root=str(tmp_path), name="mine", target_return=200.0, supervisor="engine"))
    tags = (config.run.end_tag, diverged_tag(config))
    config.run.folder.mkdir()
    (config.run.folder / RESULT).write_text(json.dumps({"mark": "other" if written is None else tags[written]}))
    marks = () if marked is None else (tags[marked],)
    monkeypatch.setattr(service, "RunEnd", lambda _, tag: Mock(is_marked=lambda: tag in marks))
    with ExitStack() as stack:
        assert service._RunEnds(config, threading.Event(), stack).is_done() == is_done
    assert (config.run.folder / RESULT).exists() == is_done


@pytest.mark.parametrize("earlier, noted", [("", "at update 2"), ("at update 1", "at update 2"), ("at update 1", "")])
def test_only_the_divergence_of_an_earlier_session_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: str, noted: str
) -> None:
    """The learner may note its own while a starting evaluator asks whether the run is over."""
    config = EvaluatorConfig(run=RunSettings(root=str(tmp_path), name="mine", supervisor="job"))
    config.run.folder.mkdir()
    if earlier:
        note_divergence(config.run.folder, earlier)

    def is_marked() -> bool:
        if noted:
            note_divergence(config.run.folder, noted)
        return False

    monkeypatch.setattr(service, "RunEnd", lambda *_: Mock(is_marked=is_marked))
    with ExitStack() as stack:
        assert not service._RunEnds(config, threading.Event(), stack).is_done()
    assert read_divergence(config.run.folder) == noted
