"""`tidemill sweep`: trials as real runs; killed in the middle, continued, and ended by what cannot work."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.launched import BOUND_S, ROOT, launched, services_of
from tests.support.small_run import small_run
from tests.support.waiting import crowd, wait_until
from tidemill.parent import PARENT_VARIABLE
from tidemill.services.launcher.run.folder import RunFolder, is_running

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def _write(folder: Path, *, slowdown: float = 1.0, **sweep: Any) -> None:  # noqa: ANN401 - what YAML holds
    pace = {"max_env_steps_per_s": 100.0 / slowdown}
    (folder / "base.yaml").write_text(yaml.safe_dump(small_run(actor=pace)))
    settings = {"run.max_learner_steps": 60}
    (folder / "sizes.yaml").write_text(yaml.safe_dump({"base": "base.yaml", "settings": settings} | sweep))


def _slowdown() -> float:
    """Return how much slower actors decide on a busy machine, where all else takes longer as well."""
    return min(crowd(), 3.0)


def _gpus_of_learners(sweep_pid: int) -> set[str]:
    """Return the GPUs that CUDA may see in the learner of each run of a sweep."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, KeyError):  # it ended, or has no learner
            if f"{PARENT_VARIABLE}={sweep_pid}".encode() in file.read_bytes().split(b"\0"):
                learner = Path(f"/proc/{services_of(int(file.parent.name))['learner']}/environ").read_bytes()
                found |= set(re.findall(r"CUDA_VISIBLE_DEVICES=([^\0]*)", learner.decode()))
    return found


def _acts(run: Path) -> bool:
    log = run / "logs" / "actor-0.log"
    return log.exists() and "acting starts" in log.read_text()


def test_sweep_that_was_killed_is_continued(tmp_path: Path) -> None:
    """SIGKILL ends its runs too; what had ended is not run again, and the results have every trial."""
    _write(tmp_path, method="grid", space={"agent.hidden_sizes": [[8], [16]]})
    folder = tmp_path / "sweeps" / "sizes"
    with launched("sweep", "sizes.yaml", cwd=tmp_path) as first:
        assert "hidden_sizes [8]" in first.until("trial 0 of 2, seed 1: ")
        under_way = folder / "trial-0001" / "seed-1"
        wait_until(lambda: is_running(under_way), "the second run has begun")
        first.send(signal.SIGKILL)
        first.wait()
    wait_until(lambda: not is_running(under_way), "its run ends with the sweep")
    ended = (folder / "trial-0000" / "seed-1" / "result.json").stat().st_mtime_ns
    with launched("sweep", "sizes.yaml", "--out", str(folder), cwd=tmp_path) as second:
        assert second.wait() == 0, second.output
    assert "trial 0 of 2, seed 1: " not in second.output
    assert (folder / "trial-0000" / "seed-1" / "result.json").stat().st_mtime_ns == ended
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert sorted((row["trial"], row["state"]) for row in rows) == [("0", "done"), ("1", "done")]
    assert all(row["seed_1"] for row in rows)
    assert (folder / "results.png").exists()
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("trial-*/seed-*/result.json"))]
    assert [(result["seed"], result["learner_steps"]) for result in results] == [(1, 60)] * 2


def test_run_that_has_not_ended_yet_is_awaited(tmp_path: Path) -> None:
    """As one of a sweep that was killed just now; the sweep says so, and continues the run after its end."""
    _write(tmp_path, method="grid", space={"agent.hidden_sizes": [[8]]})
    run = tmp_path / "here" / "trial-0000" / "seed-1"
    run.mkdir(parents=True)
    held = RunFolder(run)
    with launched("sweep", "sizes.yaml", "--out", "here", cwd=tmp_path) as sweep:
        with held:
            sweep.until("seed-1 is still running")
        assert sweep.wait() == 0, sweep.output
    assert (run / "result.json").exists()


def test_runs_that_share_a_replay_service_outlive_it_and_the_sweep(tmp_path: Path) -> None:
    """Two runs at a time have a table each in one service, whose log brings their items back after either is killed.

    Each run has one of the two GPUs, to its learner.
    """
    settings = {"run.max_learner_steps": 600}  # at least 24 s: neither ends before the sweep is killed
    space = {"agent.hidden_sizes": [[8], [16]]}
    _write(tmp_path, method="grid", parallel=2, share_replay=True, settings=settings, space=space, slowdown=_slowdown())
    folder = tmp_path / "sweeps" / "sizes"
    log = folder / "replay.log"
    runs = [folder / f"trial-{trial:04d}" / "seed-1" for trial in (0, 1)]
    with launched("sweep", "sizes.yaml", cwd=tmp_path, environment={"CUDA_VISIBLE_DEVICES": "5,7"}) as first:
        wait_until(lambda: _gpus_of_learners(first.process.pid) == {"5", "7"}, "a GPU for each")
        wait_until(lambda: all(map(_acts, runs)), "both runs train")
        os.kill(first.children()["replay"], signal.SIGKILL)
        first.until("replay service ended with exit code -9, restarting")
        wait_until(lambda: log.read_text().count(" serving ") == 2, "it is there again")
        first.send(signal.SIGKILL)
        first.wait()
    wait_until(lambda: not any(map(is_running, runs)), "the runs end with the sweep")
    with launched("sweep", "sizes.yaml", cwd=tmp_path) as second:
        assert second.wait() == 0, second.output
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    assert [result["learner_steps"] for result in results] == [600] * 2
    assert len(re.findall(r" restored .* tables=2 ", log.read_text())) == 2
    assert not list(folder.glob("trial-*/seed-*/replay"))


def test_runs_that_share_a_replay_service_count_their_own_decisions(tmp_path: Path) -> None:
    """So that `run.max_env_steps` ends the second where it ended the first."""
    space = {"agent.hidden_sizes": [[8], [16]]}
    settings = {"run.max_env_steps": 600}
    _write(tmp_path, method="grid", share_replay=True, settings=settings, space=space, slowdown=_slowdown())
    with launched("sweep", "sizes.yaml", cwd=tmp_path) as sweep:
        assert sweep.wait() == 0, sweep.output
    files = sorted((tmp_path / "sweeps" / "sizes").glob("trial-*/seed-*/result.json"))
    results = [json.loads(file.read_text()) for file in files]
    assert len(results) == 2
    for result in results:
        assert result["learner_steps"] > 50
        assert 600 <= result["env_steps"] < 900  # until the learner looks again


def test_sweep_whose_runs_would_all_be_refused_starts_none(tmp_path: Path) -> None:
    """The reason is printed, and no folder is left."""
    space = {"env.kwargs": [{"no_such_argument": number} for number in range(5)]}
    _write(tmp_path, method="grid", space=space)
    with launched("sweep", "sizes.yaml", "--out", "here", cwd=tmp_path) as sweep:
        assert sweep.wait() == 2
    assert "no_such_argument" in sweep.output
    assert not (tmp_path / "here").exists()


def test_folder_of_another_sweep_is_left_alone(tmp_path: Path) -> None:
    """The message says where to look and what to do."""
    _write(tmp_path, space={"agent.n_step": [1, 2]})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sweep.yaml").write_text("base: another\n")
    with launched("sweep", "sizes.yaml", "--out", "here", cwd=tmp_path) as sweep:
        assert sweep.wait() == 2
    assert "here holds another sweep, see here/sweep.yaml; --out FOLDER puts this one elsewhere" in sweep.output


def test_sweep_that_is_hung_up_stops_in_order(tmp_path: Path) -> None:
    """As one that Ctrl-C stops: its run is saved, and the same command continues it."""
    _write(
        tmp_path, method="grid", space={"agent.hidden_sizes": [[8], [16]]}, settings={"run.max_learner_steps": 10**6}
    )
    run = tmp_path / "sweeps" / "sizes" / "trial-0000" / "seed-1"
    with launched("sweep", "sizes.yaml", cwd=tmp_path) as sweep:
        wait_until((run / "scores.csv").exists, "the first run trains")
        sweep.send(signal.SIGHUP)
        assert sweep.wait() == 0, sweep.output
    assert "stopped; the same command continues it" in sweep.output
    assert list(run.glob("checkpoints/*.safetensors"))


def test_sweep_continues_when_its_reader_leaves(tmp_path: Path) -> None:
    """As `| head -1` does: the other trials are run, and the results have all of them."""
    _write(tmp_path, method="grid", space={"agent.hidden_sizes": [[8], [16], [24]]})
    command = [sys.executable, "-m", "tidemill.services.launcher", "sweep", "sizes.yaml"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment) as sweep:
        assert sweep.stdout is not None
        assert sweep.stdout.readline().startswith("trial 0 of 3")
        sweep.stdout.close()
        assert sweep.wait(BOUND_S) == 0
    rows = csv.DictReader((tmp_path / "sweeps" / "sizes" / "results.csv").read_text().splitlines())
    assert [row["state"] for row in rows] == ["done"] * 3
