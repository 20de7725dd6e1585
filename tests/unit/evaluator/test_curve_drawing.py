"""Learning curves are drawn by another process, or in this one if it has imported matplotlib."""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from tidemill.config.run import RunSettings
from tidemill.config.sections import EvaluatorConfig
from tidemill.services.evaluator.curve_drawing import CURVE, CurveDrawing

_SCORES = (
    "wall_s,learner_steps,env_steps,params_version,episodes,mean,std,min,max,median,mean_length,human_normalised\n"
    "1.5,200,400,3,10,12.5,1.0,11.0,14.0,12.0,50.0,\n"
)


@pytest.fixture
def config(tmp_path: Path) -> EvaluatorConfig:
    """The settings of a run with one evaluation."""
    config = EvaluatorConfig(run=RunSettings(root=str(tmp_path), name="drawn"))
    config.run.folder.mkdir(parents=True)
    (config.run.folder / "scores.csv").write_text(_SCORES)
    return config


@pytest.fixture(params=[True, False], ids=["here", "process"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw in this process, which then starts none, or in another, as without matplotlib."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a process was started")

    if request.param:
        importlib.import_module("matplotlib.figure")
        monkeypatch.setattr(subprocess, "Popen", refuse)
    else:
        monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)


@pytest.mark.usefixtures("where")
def test_curve_is_drawn(config: EvaluatorConfig) -> None:
    """The picture is in the run's folder."""
    drawing = CurveDrawing(config)
    drawing.start()
    assert drawing.finish() == str(CURVE)
    assert (config.run.folder / CURVE).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("where")
def test_drawing_that_fails_leaves_no_picture(config: EvaluatorConfig) -> None:
    """The log has the reason."""
    (config.run.folder / "plots").touch()
    drawing = CurveDrawing(config)
    drawing.start()
    with capture_logs() as logs:
        assert drawing.finish() is None
    assert [(line["event"], "plots" in line["reason"]) for line in logs] == [("learning curve not drawn", True)]
    (config.run.folder / "plots").unlink()
    drawing.start()
    assert drawing.finish() == str(CURVE)  # as the report is written again after a disk was full


@pytest.mark.usefixtures("where")
def test_prepared_drawing_has_what_was_evaluated_since(config: EvaluatorConfig) -> None:
    """It is prepared before the last evaluation is complete: nothing is read until it is told to draw."""
    scores = config.run.folder / "scores.csv"
    scores.rename(later := config.run.folder / "later.csv")
    drawing = CurveDrawing(config)
    drawing.prepare()
    drawing.prepare()
    time.sleep(0.1)
    later.rename(scores)
    drawing.start()
    assert drawing.finish() == str(CURVE)


def test_drawing_waits_for_nobody_else_who_holds_its_input(
    config: EvaluatorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a vector environment are forked while it is prepared, and outlive the report."""
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    drawing = CurveDrawing(config)
    drawing.prepare()
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600.0,), daemon=True)
    worker.start()
    try:
        drawing.start()
        assert drawing.finish() == str(CURVE)
    finally:
        worker.kill()
        worker.join(60.0)
