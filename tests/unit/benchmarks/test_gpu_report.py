"""The report of a GPU machine: whatever becomes of a step, it is written down and leaves nothing behind."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from benchmarks import gpu_report
from benchmarks.gpu_report import STEPS, Step, run_step
from tests.support.waiting import crowd


def step(program: str, limit_s: float = 30.0) -> Step:
    """Return a step that runs a program."""
    return Step("one", "a program", ("-c", program), (), limit_s, ("found",))


def test_rows_and_the_end_of_the_output_are_kept(tmp_path: Path) -> None:
    """A step's rows come from the file that its benchmark writes where the report asks for it."""
    program = (
        "from benchmarks.rows import row, write; write('found', [row('rate', '1/s', [1.0, 3.0, 2.0])]); print('end')"
    )
    finding = run_step(step(program), False, 60.0, tmp_path / "one")
    assert finding.outcome == "passed"
    assert [(found["name"], found["ours"]) for found in finding.rows] == [("rate", 2.0)]
    assert finding.said[-1] == "end"


def test_failed_step_is_reported_with_its_error(tmp_path: Path) -> None:
    """Its exit code and the last lines say why; there are no rows."""
    finding = run_step(step("raise SystemExit('no such thing')"), False, 60.0, tmp_path / "one")
    assert finding.outcome == "failed (1)"
    assert finding.said == ["no such thing"]
    assert finding.rows == []


def test_step_out_of_time_ends_with_all_its_processes(tmp_path: Path) -> None:
    """A child of the step that would have lived on is ended, too."""
    program = (
        "import subprocess, sys, time;"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    for limit_s in (3.0, 10.0 * crowd()):  # the longer one where both need more than the first to start
        started = time.monotonic()
        finding = run_step(step(program), False, limit_s, tmp_path / f"{limit_s:g}")
        assert finding.outcome == "out of time"
        assert time.monotonic() - started < limit_s + 27.0
        if (tmp_path / "pid").exists():
            break
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        _wait_for_end(pid)


def test_no_step_begins_without_time(tmp_path: Path) -> None:
    """What the steps before have used up is not taken from the machine's lease."""
    assert run_step(step("print()"), False, 0.0, tmp_path / "one").outcome == "no time was left"


def test_report_is_written_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON and Markdown name the machine, every step, and say that tiny sizes do not count as results."""
    argv = ["gpu_report", "test", "--tiny", "--only", "ranks", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", argv)
    assert gpu_report.main() == 0
    document = json.loads((tmp_path / "gpu-test.json").read_text())
    assert document["tiny"]
    assert [(found["name"], found["outcome"]) for found in document["steps"]] == [("ranks", "passed")]
    assert "nothing here is a result" in (tmp_path / "gpu-test.md").read_text()


def test_steps_fit_into_the_time_of_a_lease() -> None:
    """If each takes three quarters of its limit, the last and longest still has ten of the forty minutes."""
    *others, pong = STEPS
    assert pong.name == "pong"
    assert 0.75 * sum(step.limit_s for step in others) <= 30 * 60


def _wait_for_end(pid: int) -> None:
    """Raise ProcessLookupError once a process is gone; a container without an init may keep it as a zombie."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.05)
