"""`tidemill.train`: in an event loop, in a thread, without a terminal, interrupted, refused; and its notebook."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemill
from tests.support.forked_service import children
from tests.support.launched import BOUND_S, ROOT
from tests.support.naming import naming
from tests.support.processes import children_of
from tests.support.waiting import wait_until
from tidemill.config.load import load_run, write_document
from tidemill.errors import AlreadyExists, ConfigError, FatalError, TidemillError, Unavailable
from tidemill.programs.cluster import Cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

_NOTEBOOK = ROOT / "docs" / "tutorials" / "notebook.ipynb"
_SHORT: dict[str, Any] = {
    "run.max_learner_steps": 150,
    "env.num_envs": 4,
    "agent.network": "mlp",
    "agent.hidden_sizes": [16],
    "agent.batch_size": 16,
    "table.min_size": 100,
    "evaluator.episodes": 2,
    "evaluator.num_envs": 2,
    "evaluator.min_interval_s": 0.2,
    "evaluator.video_max_steps": 20,
}


async def test_call_in_a_running_event_loop_trains_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result has the curve, the best score, a policy that acts, and what a notebook shows of it."""
    settings = {**_SHORT, "run.root": str(tmp_path)}
    before = children()
    result = tidemill.train("CartPole-v1", algorithm="dqn", settings=settings)
    assert children() == before
    assert (result.exit_code, result.summary["learner_steps"]) == (0, 150)
    steps, score = result.curve
    assert steps.shape == score.shape
    assert steps.size
    assert result.best_score == score.max()
    assert result.policy(np.zeros(4, np.float32)) in (0, 1)
    result.policy.reset()
    assert result.policy(np.zeros((3, 4), np.float32)).shape == (3,)
    assert result.video is not None
    shown = result._repr_html_()
    assert shown.count("base64,") == 2
    assert str(result.folder) in shown
    said = capsys.readouterr().out
    assert "starting" in said
    assert said.rstrip().endswith(f"results are in {result.folder}")
    with pytest.raises(AlreadyExists, match="fresh=True"):
        tidemill.train("CartPole-v1", algorithm="dqn", settings=settings, progress=False)
    assert not (result.folder / "cluster.yaml").exists()


@pytest.mark.parametrize("after_s", [0.0, 0.4])
def test_interrupt_before_the_run_has_begun_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """There is no result so far to return; no process is left, and no folder."""

    def interrupted(cluster: Cluster, _: object) -> None:
        with contextlib.suppress(Unavailable):
            cluster.wait(after_s)
        raise KeyboardInterrupt

    monkeypatch.setattr("tidemill.programs.train._follow", interrupted)
    before = children()
    with pytest.raises(KeyboardInterrupt):
        tidemill.train("CartPole-v1", algorithm="dqn", settings={**_SHORT, "run.root": str(tmp_path)}, progress=False)
    assert children() == before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings, kind, words",
    [
        ({"learner.batch_sise": 1}, ConfigError, "learner.batch_sise"),
        ({"lerner.threads": 1}, ConfigError, "learner"),
        ({"run": 3}, ConfigError, "run is 3"),
        ({"agent.network": "nature"}, ConfigError, "agent.network"),
        ({"env.id": "json:nothing"}, ConfigError, "json:nothing"),
        ({"learner.callbacks": ["ends_at_once:Callback"]}, TidemillError, "told to fail"),
    ],
)
async def test_mistake_is_an_exception_of_the_project_also_in_a_thread(
    settings: dict[str, Any], kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the setting, or the last words of what failed; no process is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends_at_once.py").write_text("raise RuntimeError('told to fail')\n")
    given = {**_SHORT, "env.id": "CartPole-v1", "agent.algorithm": "dqn", **settings}
    before = children()
    with pytest.raises(kind, match=words):
        await asyncio.to_thread(tidemill.train, settings=given, progress=False)
    assert children() == before


def test_settings_that_are_no_mapping_are_refused() -> None:
    """The message shows one."""
    with pytest.raises(ConfigError, match=naming("settings [64] mapping")):
        tidemill.train("CartPole-v1", settings=[64])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="environment"):
        tidemill.train()


@pytest.mark.parametrize("view", ["auto", "quiet", "json"])
def test_run_that_fails_is_told_with_its_last_words(tmp_path: Path, view: str) -> None:
    """A service that ends again and again ends the call with the exception for it, whatever view is set."""
    settings = {
        **_SHORT,
        "run.root": str(tmp_path),
        "launcher.max_restarts": 0,
        "launcher.view": view,
        "learner.device": "cuda:77",
    }
    with pytest.raises((ConfigError, FatalError), match="cuda") as failure:
        tidemill.train("CartPole-v1", algorithm="dqn", settings=settings, progress=False)
    assert str(failure.value).startswith("run: learner refused")


def test_result_of_a_run_that_was_refused_is_not_that_of_the_earlier_run(tmp_path: Path) -> None:
    """The folder keeps the earlier one's files, and the handle says what the launcher did."""
    config, _ = load_run(None, {**_SHORT, "run.root": str(tmp_path), "env.id": "CartPole-v1"})
    folder = config.run.folder
    folder.mkdir()
    write_document(config, folder / "config.yaml")
    (folder / "result.json").write_text('{"mean_return": 475.0}')
    with Cluster(config) as cluster:
        result = cluster.wait(timeout_s=BOUND_S)
        assert (result.exit_code, result.summary) == (1, {})
        assert "AlreadyExists" in "".join(cluster.output())


_SCRIPT = """
import json, sys, tidemill
result = tidemill.train("CartPole-v1", algorithm="dqn", settings=json.loads(sys.argv[1]))
print("kept", result.exit_code, result.curve.score.size > 0, flush=True)
"""


def test_interrupt_ends_the_run_in_order_and_keeps_its_result(tmp_path: Path) -> None:
    """One, to a program without a terminal: the call returns, everything is saved and no process is left."""
    settings = {**_SHORT, "run.root": str(tmp_path), "run.max_learner_steps": 0, "actor.max_env_steps_per_s": 100.0}
    script = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        scores = tmp_path / "run" / "scores.csv"
        wait_until(lambda: scores.exists() and len(scores.read_text().splitlines()) > 1, "an evaluation", 200)
        (launcher,) = children_of(script.pid)
        script.send_signal(signal.SIGINT)
        said, _ = script.communicate(timeout=200)
    finally:
        script.kill()
        script.wait()
    assert "the run has no end" in said
    assert "stopping" in said
    assert "kept 0 True" in said
    assert script.returncode == 0
    assert not Path(f"/proc/{launcher}").exists()
    assert list((tmp_path / "run" / "checkpoints").glob("checkpoint-*.safetensors"))


_UNGUARDED = """
from dataclasses import dataclass

import gymnasium, tidemill
from tidemill.rl.settings.q_learning import DQNConfig

def make():
    return gymnasium.make("CartPole-v1")

@dataclass(frozen=True)
class Own(DQNConfig):
    algorithm: str = "mine:Own"
    build_agent = build_policy = print

tidemill.train({!r}, algorithm={!r}, settings={{"run.max_learner_steps": 10}})
"""


@pytest.mark.parametrize("env, algorithm", [("mine:make", "dqn"), ("CartPole-v1", "mine:Own")])
def test_script_that_trains_when_it_is_imported_is_told(env: str, algorithm: str, tmp_path: Path) -> None:
    """Its run imports it for its environment or algorithm, and would start another run, which imports it, too."""
    (tmp_path / "mine.py").write_text(_UNGUARDED.format(env, algorithm))
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert re.search(naming("ConfigError", "mine:", 'if __name__ == "__main__":'), last)
    assert not (tmp_path / "runs").exists()


def test_run_of_a_script_that_ignores_interrupts_is_stopped_in_order(tmp_path: Path) -> None:
    """A shell starts `python my.py &` with SIGINT ignored, and the run inherits that."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        endless = {"run.root": str(tmp_path), "run.max_learner_steps": 0, "env.id": "CartPole-v1"}
        config, _ = load_run(None, {**_SHORT, **endless, "agent.algorithm": "dqn"})
        with Cluster(config) as cluster:
            wait_until(lambda: cluster.status(timeout_s=200.0).learner_steps > 0, "an update")
            assert cluster.stop().exit_code == 0
    finally:
        signal.signal(signal.SIGINT, heard)
    assert list((tmp_path / "run" / "checkpoints").glob("checkpoint-*.safetensors"))


def test_tutorial_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    """Its cells in one namespace, with a smaller budget; it is committed without outputs."""
    notebook = json.loads(_NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["nbformat"] == 4
    assert len(cells) >= 4
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    code = "\n".join("".join(cell["source"]) for cell in cells)
    code, count = re.subn(r'("run.max_env_steps": )[\d_]+', r"\g<1>2_000", code)
    assert count
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "results are in" in done.stdout
