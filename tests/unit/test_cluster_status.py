"""A cluster's handle while its learner does not answer, while its run stops, and after its end."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TextIO
from unittest.mock import Mock

import pytest

from tests.support.naming import naming
from tidemill.errors import Unavailable
from tidemill.programs import cluster as handle
from tidemill.programs.cluster import Cluster
from tidemill.programs.result import RunResult
from tidemill.programs.train import _failure


def _cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Cluster, "is_running", True)
    cluster = Cluster({"run": {"name": "r", "root": str(folder)}})
    cluster.folder.mkdir()
    return cluster


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "'{file}' No such file or directory"),
        ("cluster: [", "'{file}' YAML"),
        ("cluster: {}", "{file} cluster.learner"),
        ("cluster: {learner: 'unix:///nowhere'}", "unix:/nowhere"),
    ],
)
def test_learner_that_does_not_answer_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, reason: str
) -> None:
    """`poll` has nothing, and `status` ends with the file or call that failed last."""
    cluster = _cluster(tmp_path, monkeypatch)
    file = cluster.folder / "cluster.yaml"
    if text is not None:
        file.write_text(text)
    assert cluster.poll() is None
    with pytest.raises(Unavailable, match=naming(reason.format(file=file))):
        cluster.status(timeout_s=0.01)


def test_fault_of_the_program_is_not_taken_for_a_late_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`poll` raises it."""
    cluster = _cluster(tmp_path, monkeypatch)
    (cluster.folder / "cluster.yaml").write_text("cluster: {learner: 'unix:///nowhere'}")

    def broken(address: str, deadline_s: float) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(handle, "LearnerClient", broken)
    with pytest.raises(ZeroDivisionError):
        cluster.poll()


def test_run_is_found_where_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook or script may change the working directory after that."""
    ended = Mock(poll=Mock(return_value=0), returncode=0)
    monkeypatch.setattr(subprocess, "Popen", Mock(return_value=ended))
    monkeypatch.chdir(tmp_path)
    with Cluster({"run": {"name": "r"}}) as cluster:
        monkeypatch.chdir("/")
        folder = tmp_path / "runs" / "r"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text('{"mean_return": 475.0}')
        assert cluster.result().summary == {"mean_return": 475.0}
        assert cluster.result().folder == folder


def test_output_is_kept_after_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the `with` block, where a result without a summary has no other reason."""

    def ended(command: object, *, stdout: TextIO, **_: object) -> Mock:
        stdout.write("refused: a reason\n")
        return Mock(poll=Mock(return_value=1), returncode=1)

    monkeypatch.setattr(subprocess, "Popen", ended)
    with Cluster({"run": {"name": "r", "root": str(tmp_path)}}) as cluster:
        cluster.wait()
    assert cluster.output() == ["refused: a reason"]


def test_stop_waits_as_long_as_the_settings_let_services_and_loggers_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that needs long to save is not killed before its launcher would do so."""
    cluster = Cluster({"run": {"name": "r", "root": str(tmp_path)}, "launcher": {"stop_timeout_s": 120.0}})
    process = Mock(poll=Mock(side_effect=[None, 0]), returncode=0)
    monkeypatch.setattr(cluster, "_process", process)
    assert cluster.stop().exit_code == 0
    assert process.wait.call_args.args[0] >= 4 * 120.0 + 60.0


def test_traceback_of_a_failed_run_keeps_its_indentation(tmp_path: Path) -> None:
    """Marks below a line of code are in their place."""
    trace = ["Traceback (most recent call last):", "    return 1 / 0", "           ~~^~~", "| a line of the program"]
    lines = ["[  1.0 s] actor-0 ended", *(f"           | {line}" for line in trace), "r: actor-0 failed"]
    message = str(_failure(RunResult(1, tmp_path / "r", {}), lines))
    assert message.splitlines() == ["r: actor-0 failed", *trace, f"The logs are in {tmp_path / 'r' / 'logs'}"]
