"""`tidemill log`: a run's records reach a logger of one's own, Weights & Biases and MLflow."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.extras import needs_extra, run_with_extras
from tests.support.launched import BOUND_S, launched
from tests.support.small_run import small_run
from tidemill.parent import PARENT_VARIABLE
from tidemill.services.launcher.run.folder import RunFolder
from tidemill.services.launcher.run.loggers import LoggerProcesses

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_LOG = ("-m", "tidemill.services.launcher", "log")
_needs_packages = needs_extra()

_LOGGER = """
import json
import tidemill

class Recorder(tidemill.RunLogger):
    def __init__(self, run):
        self.id = run.id or "first"
        self.file = (run.folder / "sent.jsonl").open("a")

    def log(self, step, scalars, time_s):
        print(json.dumps({"step": step, **scalars}), file=self.file, flush=True)

    def finish(self, result):
        print(json.dumps({"result": result, "id": self.id}), file=self.file, flush=True)
"""

_OFFLINE_RECORDS = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record

data = open(sys.argv[1], "rb").read()
position, parts = 7, b""  # behind the file's own header; then blocks of 32 KiB, as LevelDB's log has them
while position + 7 <= len(data):
    length, kind = struct.unpack_from("<HB", data, position + 4)
    if 32768 - position % 32768 < 7 or not kind:
        position += 32768 - position % 32768
        continue
    parts += data[position + 7 : position + 7 + length]
    position += 7 + length
    if kind in (1, 4):  # a whole record, or the last part of one
        record, parts = Record.FromString(parts), b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            print(json.dumps({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}))
"""

_MLFLOW_RECORDS = """
import json, sys
from mlflow.tracking import MlflowClient

client = MlflowClient()
run = client.get_run(sys.argv[1])
history = client.get_metric_history(sys.argv[1], "learner/loss")
print(json.dumps({
    "loss": [(point.step, point.value) for point in history], "gamma": run.data.params["agent.gamma"],
    "mean": run.data.metrics["evaluation/mean"], "result": run.data.tags["result.mean_return"],
    "status": run.info.status,
}))
"""


def test_run_is_sent_while_it_trains_and_after_it_was_resumed(tmp_path: Path) -> None:
    """`launcher.loggers` starts the processes; they end with the run, have its result, and continue it."""
    (tmp_path / "recorder.py").write_text(_LOGGER)
    _write_config(tmp_path, "recorder:Recorder")
    folder = tmp_path / "runs" / "small"
    with launched("train", "--config", "small.yaml", "--run.max_learner_steps", "60", cwd=tmp_path) as train:
        assert train.wait() == 0, train.output
    sent = _lines(folder / "sent.jsonl")
    assert sent[-1]["id"] == "first"
    assert sent[-1]["result"]["learner_steps"] == 60
    assert any("learner/loss" in line for line in sent)
    assert any("evaluation/mean" in line for line in sent)
    with launched("resume", str(folder), "--run.max_learner_steps", "120", cwd=tmp_path) as resumed:
        assert resumed.wait() == 0, resumed.output
    again = _lines(folder / "sent.jsonl")
    assert again[: len(sent)] == sent
    assert again[-1]["result"]["learner_steps"] == 120
    assert again.count(sent[0]) == 1


def test_logger_is_sent_a_run_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep has told its launcher who its parent is; that is not the logger's parent."""
    (tmp_path / "recorder.py").write_text(_LOGGER)
    run = _ended_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getppid()))
    with LoggerProcesses() as loggers:
        with RunFolder.open(run) as folder:
            loggers.start(("recorder:Recorder",), folder)
        assert loggers.wait(BOUND_S) == []
    assert _lines(run / "sent.jsonl")


def test_logger_that_is_missing_is_known_before_anything_starts(tmp_path: Path) -> None:
    """The message says what to install or what is allowed; no folder is left."""
    _write_config(tmp_path, "wandbb")
    with launched("train", "--config", "small.yaml", cwd=tmp_path) as train:
        assert train.wait() == 2, train.output
    assert "launcher.loggers is 'wandbb', allowed: mlflow, wandb, or module:name" in train.output
    assert not (tmp_path / "runs").exists()


@_needs_packages
def test_run_is_sent_to_weights_and_biases(tmp_path: Path) -> None:
    """Offline: its files have every point over updates."""
    run = _ended_run(tmp_path)
    assert "4 points sent to wandb" in _with_packages(
        "-m", "tidemill.services.launcher", "log", str(run), "--to", "wandb"
    )
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    points = [json.loads(line) for line in _with_packages("-c", _OFFLINE_RECORDS, str(file)).splitlines()]
    losses = [(point["learner_steps"], point["learner/loss"]) for point in points if "learner/loss" in point]
    assert losses == [(100, 0.5), (200, 0.25), (300, 0.125)]
    assert [point["evaluation/mean"] for point in points if "evaluation/mean" in point] == [12.5]


@_needs_packages
def test_run_is_sent_to_mlflow(tmp_path: Path) -> None:
    """To a store of files: settings, every point, and the result of a finished run."""
    run = _ended_run(tmp_path)
    store = {"MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    _with_packages(*_LOG, str(run), "--to", "mlflow", **store)
    id_there = json.loads((run / "loggers" / "mlflow.json").read_text())["id"]
    assert json.loads(_with_packages("-c", _MLFLOW_RECORDS, id_there, **store)) == {
        "loss": [[100, 0.5], [200, 0.25], [300, 0.125]],
        "gamma": "0.5",
        "mean": 12.5,
        "result": "12.5",
        "status": "FINISHED",
    }


def _write_config(folder: Path, logger: str) -> None:
    (folder / "small.yaml").write_text(yaml.safe_dump(small_run(run={"name": "small"}, launcher={"loggers": [logger]})))


def _ended_run(folder: Path) -> Path:
    """Write the records of a run that has ended; return its folder."""
    run = folder / "ended"
    run.mkdir()
    (run / "config.yaml").write_text("agent: {gamma: 0.5}\n")
    points = ((100, 0.5), (200, 0.25), (300, 0.125))
    lines = [json.dumps({"time": 1.7e9 + step, "step": step, "learner/loss": loss}) for step, loss in points]
    (run / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    (run / "scores.csv").write_text(
        "wall_s,learner_steps,env_steps,params_version,episodes,mean,std,min,max,median,mean_length,human_normalised\n"
        "1.5,200,400,3,10,12.5,1.0,11.0,14.0,12.0,50.0,\n"
    )
    (run / "result.json").write_text(json.dumps({"mean_return": 12.5, "solved": False}))
    return run


def _with_packages(*arguments: str, **variables: str) -> str:
    """Run Python with the loggers' packages at hand, and nothing to reach them by; return its output."""
    closed = {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    answer = run_with_extras(*arguments, **closed, **variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
