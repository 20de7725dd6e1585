"""The run that `--to mlflow` makes: in which experiment, and only as a whole. The package is a stand-in."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tidemill.loggers.interface import LoggedRun
from tidemill.loggers.mlflow import MlflowLogger

_RUN = LoggedRun("small", Path("runs/small"), {"agent": {"gamma": 0.5}})


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The client of a tracking server, which has no experiment yet."""
    made = Mock()
    made.get_experiment_by_name.return_value = None
    made.create_experiment.side_effect = lambda name: f"made-{name}"
    made.create_run.return_value.info.run_id = "there"
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=Mock(), Param=Mock(), RunTag=Mock()))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=lambda: made))
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.mark.parametrize(
    "variables, experiment",
    [
        ({}, "made-tidemill"),
        ({"MLFLOW_EXPERIMENT_NAME": "mine"}, "made-mine"),
        ({"MLFLOW_EXPERIMENT_ID": "7"}, "7"),
        ({"MLFLOW_EXPERIMENT_NAME": "mine", "MLFLOW_EXPERIMENT_ID": "7"}, "made-mine"),
    ],
)
def test_experiment_is_that_of_the_variables_of_mlflow(
    client: Mock, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], experiment: str
) -> None:
    """The name counts before the id, as in mlflow."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert MlflowLogger(_RUN).id == "there"
    client.create_run.assert_called_once_with(experiment, run_name="small")
    client.delete_run.assert_not_called()


def test_run_without_a_result_is_not_left_running(client: Mock) -> None:
    """One that was interrupted or failed is killed there until it is continued; one that has ended stays finished."""
    MlflowLogger(_RUN).close()
    client.set_terminated.assert_called_once_with("there", "KILLED")
    client.set_terminated.side_effect = ConnectionError("gone")
    MlflowLogger(_RUN).close()  # the error that ended it is told, not this one
    client.set_terminated = Mock()
    continued = MlflowLogger(dataclasses.replace(_RUN, id="there"))
    client.update_run.assert_called_once_with("there", status="RUNNING")
    continued.finish({"solved": True})
    continued.close()
    client.set_terminated.assert_called_once_with("there", "FINISHED")


def test_run_that_still_runs_is_left_running(client: Mock) -> None:
    """Where `tidemill log` was stopped by hand, or ended with an error."""
    logger = MlflowLogger(_RUN)
    logger.run_continues = True
    logger.close()
    client.set_terminated.assert_not_called()


def test_settings_whose_names_become_one_are_told_apart(client: Mock) -> None:
    """MLflow refuses a second value of a parameter. Also where a setting is named as another would be."""
    entities, long = sys.modules["mlflow.entities"], "x" * 250
    MlflowLogger(dataclasses.replace(_RUN, config={"a[": 1, "a]": 2, "a__2": 3, "a(": 4, long: 5, f"{long}y": 6}))
    names = [call.args[0] for call in entities.Param.call_args_list]
    assert names == ["a_", "a__2", "a__2_2", "a__3", long, f"{long[:242]}_2"]


def test_names_that_mlflow_refuses_are_sent_with_other_letters(client: Mock) -> None:
    """A metric or a setting of the user's own would end each `tidemill log` at the same place."""
    entities = sys.modules["mlflow.entities"]
    run = dataclasses.replace(_RUN, config={"env": {"kwargs": {"a[b]": 1}}})
    MlflowLogger(run).log(3, {"learner/q(s,a)": 0.5, "learner/loss: é-1.0": 2.0, "learner//" + "x" * 300: 1.0}, 1.0)
    entities.Param.assert_called_once_with("env.kwargs.a_b_", "1")
    assert [call.args for call in entities.Metric.call_args_list] == [
        ("learner/q_s_a_", 0.5, 1000, 3),
        ("learner/loss: é-1.0", 2.0, 1000, 3),
        ("learner/_/" + "x" * 240, 1.0, 1000, 3),
    ]


@pytest.mark.parametrize("can_delete", [True, False])
def test_run_whose_settings_are_refused_is_deleted(client: Mock, *, can_delete: bool) -> None:
    """The next attempt makes another; the reason is raised also if the server can no longer be reached."""
    client.log_batch.side_effect = ValueError("refused")
    client.delete_run.side_effect = None if can_delete else ConnectionError("gone")
    with pytest.raises(ValueError, match="refused"):
        MlflowLogger(_RUN)
    client.delete_run.assert_called_once_with("there")
