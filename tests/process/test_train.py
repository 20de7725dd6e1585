"""The whole cluster of real processes: trained to a limit, stopped, killed in parts, resumed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.launched import BOUND_S, ROOT, Launched, ended, launched, learner_of, services_of, tidemill
from tests.support.processes import children_of, runs
from tests.support.ranks import workers
from tests.support.status_page import press, shown, states
from tests.support.waiting import wait_until
from tidemill.errors import Unavailable
from tidemill.params.blob import unpack
from tidemill.params.stored import read_params
from tidemill.scores import read_scores

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

_SERVICES = {"replay", "paramserver", "learner", "actor", "evaluator"}


def _is_training(cluster: Launched) -> None:
    for name in ("replay(-0)?", "paramserver", "learner", "actor-0", "evaluator"):
        cluster.until(f"{name} is ready")
    cluster.until("evaluation  mean")


def _takes_steps(folder: Path, when: str) -> None:
    """Wait until the learner has taken further updates."""
    with learner_of(folder) as learner:

        def steps() -> int:
            with contextlib.suppress(Unavailable):
                return learner.get_status().learner_steps
            return 0

        reached = steps()
        wait_until(lambda: steps() > reached + 40, f"updates {when}")


def test_train_ends_at_its_limit_with_everything_a_run_leaves(config_file: Path, tmp_path: Path) -> None:
    """At run.max_learner_steps the learner ends, the evaluator measures its last version, and no process is left."""
    limits = ("--run.max_learner_steps", "300", "--evaluator.video", "true", "--evaluator.video-max-steps", "20")
    with launched("train", "--config", str(config_file), *limits) as cluster:
        assert cluster.wait() == 0
        assert cluster.children() == {}
    folder = tmp_path / "runs" / "small"
    result = json.loads((folder / "result.json").read_text())
    assert (result["solved"], result["learner_steps"], result["episodes"]) == (False, 300, 2)
    assert result["reason"] == "run.max_learner_steps (300) reached"
    scores = read_scores(folder / "scores.csv")
    versions = [score.params_version for score in scores]
    assert versions == sorted(set(versions))
    assert scores[-1].learner_steps == 300
    for name in ("config.yaml", "env_spec.json", "plots/learning_curve.png", "videos/best.mp4", "logs/learner.log"):
        assert (folder / name).stat().st_size > 0
    assert not (folder / "cluster.yaml").exists()
    assert "small: finished" in cluster.output
    code, said = ended("train", "--config", str(config_file))
    assert code == 1
    assert "already holds a run" in said
    assert "policy.safetensors" in tidemill("export", str(folder), "--out", str(tmp_path / "policy"))
    folder.rename(tmp_path / "elsewhere")  # what was exported needs nothing of the run
    assert "mean " in tidemill("evaluate", str(tmp_path / "policy"), "--episodes", "3")


_TRAIN = (sys.executable, "-m", "tidemill.services.launcher", "train")


@contextlib.contextmanager
def _full_disk() -> Iterator[int]:
    with Path("/dev/full").open("w") as file:
        yield file.fileno()


@contextlib.contextmanager
def _full_pipe() -> Iterator[int]:
    """Yield the end of a pipe whose reader is there and takes nothing."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(select.PIPE_BUF))
        os.set_blocking(writer, True)
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("output", [_full_disk, _full_pipe])
def test_run_goes_to_its_end_when_nobody_can_be_told(
    config_file: Path, tmp_path: Path, output: Callable[[], AbstractContextManager[int]]
) -> None:
    """Standard output takes nothing and standard error is closed, when an actor dies and there is much to say."""
    slow = ("--actor.max_env_steps_per_s", "100")  # so that the actor is there for 13 s
    command = [*_TRAIN, "--config", str(config_file), "--run.max_learner_steps", "300", *slow]
    with output() as file:
        train = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=file, cwd=ROOT, start_new_session=True
        )
        try:
            folder = tmp_path / "runs" / "small"
            log, actors = folder / "logs" / "actor-0.log", list[int]()

            def acts() -> bool:
                actors[:] = [pid for name, pid in services_of(train.pid).items() if name == "actor"]
                return bool(actors) and log.exists() and "acting starts" in log.read_text()

            wait_until(acts, "an actor")
            os.kill(actors[0], signal.SIGKILL)
            assert train.wait(200) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(train.pid, signal.SIGKILL)
    assert json.loads((folder / "result.json").read_text())["learner_steps"] == 300


def test_run_reaches_its_end_with_an_environment_that_hangs(config_file: Path, tmp_path: Path) -> None:
    """Actor and evaluator end when a step does not return, and are restarted with the reason on screen."""
    vector = "tests.support.envs:hanging_vector"
    hangs = (
        "--env.vector",
        vector,
        "--env.kwargs",
        "call",
        "150",
        "--env.step-timeout-s",
        "2",
        "--evaluator.video",
        "false",
    )
    limit = ("--run.max_env_steps", "2000", "--table.min-size", "50")
    with launched("train", "--config", str(config_file), *hangs, *limit) as cluster:
        name = re.escape(f"env.vector '{vector}'")
        cluster.until(rf"actor-0: {name} has not returned from step for 2\.\d s.*; restarting in 0\.1 s")
        assert cluster.wait() == 0
    result = json.loads((tmp_path / "runs" / "small" / "result.json").read_text())
    assert result["reason"].startswith("run.max_env_steps (2,000) reached")  # the last evaluation may hang, too


def test_run_ends_although_a_step_may_take_for_ever(config_file: Path, tmp_path: Path) -> None:
    """With `env.step_timeout_s` 0 a step that hangs holds up neither the limit of the run nor its result."""
    hangs = ("--env.id", "tests.support.envs:hanging", "--env.kwargs", "call", "40", "--env.step-timeout-s", "0")
    limit = ("--run.max_wall_s", "8", "--evaluator.last_timeout_s", "1", "--evaluator.episodes", "6")
    with launched("train", "--config", str(config_file), *hangs, *limit) as cluster:
        assert cluster.wait() == 0
    result = json.loads((tmp_path / "runs" / "small" / "result.json").read_text())
    assert result["reason"].startswith("run.max_wall_s (8) reached")


def test_run_has_its_result_although_its_renderer_kills_the_process(config_file: Path, tmp_path: Path) -> None:
    """The evaluator is restarted and writes it without a video."""
    draws = ("--env.id", "tests.support.envs:killed_by_drawing", "--evaluator.video")
    limit = ("--run.max_env_steps", "1000", "--table.min-size", "50")
    with launched("train", "--config", str(config_file), *draws, *limit) as cluster:
        cluster.until("evaluator was killed by signal 9")
        assert cluster.wait() == 0
    result = json.loads((tmp_path / "runs" / "small" / "result.json").read_text())
    assert result["video"] is None
    assert result["reason"].startswith("run.max_env_steps (1,000) reached")


_WANDERER = """
import os, gymnasium
class Wanderer(gymnasium.Wrapper):
    def __init__(self, **settings):
        super().__init__(gymnasium.make("CartPole-v1", **settings))
    def reset(self, **settings):
        os.chdir("/")
        return super().reset(**settings)
"""


def test_environment_may_change_the_working_directory(config_file: Path, tmp_path: Path) -> None:
    """A run whose root is relative stays where it was begun, with all of its files."""
    (tmp_path / "wanderer.py").write_text(_WANDERER)
    options = ["--env.id", "wanderer:Wanderer", "--run.root", "here", "--run.max-learner-steps", "100"]
    with launched("train", "--config", str(config_file), *options, cwd=tmp_path) as cluster:
        assert cluster.wait() == 0, cluster.output
    folder = tmp_path / "here" / "small"
    assert json.loads((folder / "result.json").read_text())["learner_steps"] == 100
    assert list((folder / "checkpoints").glob("*.safetensors"))


_SIMULATED = """
import pathlib, subprocess, gymnasium
class Simulated(gymnasium.Wrapper):
    def __init__(self, folder, **settings):
        super().__init__(gymnasium.make("CartPole-v1", **settings))
        for has_session in (False, True):
            simulator = subprocess.Popen(["sleep", "1000"], start_new_session=has_session)
            pathlib.Path(folder, str(simulator.pid)).touch()
"""


@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGTERM, signal.SIGINT)], ids=str)
def test_simulators_end_with_the_run_however_it_ends(
    config_file: Path, tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    """A process that an environment started and never ended is killed, in another session too, however the run ends."""
    (tmp_path / "simulated.py").write_text(_SIMULATED)
    simulators = tmp_path / "simulators"
    simulators.mkdir()
    env = ("--env.id", "simulated:Simulated", "--env.kwargs", "folder", str(simulators))
    with launched("train", "--config", str(config_file), *env, cwd=tmp_path) as cluster:
        cluster.until("actor-0 is ready")
        cluster.until("evaluation ")
        for number in signals:
            cluster.send(number)
        cluster.wait()
    started = [int(file.name) for file in simulators.iterdir()]
    assert len(started) >= 10  # two of each of four environments, and of the check before
    wait_until(lambda: not any(runs(pid) for pid in started), "the end of the simulators")


_SCRIPT = """
import sys, tidemill
with tidemill.Cluster(sys.argv[1]) as cluster:
    cluster.status(timeout_s=200.0)
    print("running", flush=True)
    cluster.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_script_that_ends_ends_its_cluster_in_order(config_file: Path, tmp_path: Path, number: signal.Signals) -> None:
    """A Ctrl-C, which the whole process group of the terminal gets, counts once; one that is killed leaves nothing."""
    folder = tmp_path / "runs" / "small"
    script = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(config_file)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert script.stdout is not None
        assert script.stdout.readline() == "running\n"
        _takes_steps(folder, "of the script's cluster")
        (launcher,) = children_of(script.pid)
        processes = list(services_of(launcher).values())
        os.killpg(script.pid, number)
        script.communicate(timeout=BOUND_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
    wait_until(lambda: not (folder / "cluster.yaml").exists(), "the launcher's end", BOUND_S)
    assert len(processes) >= 5
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "the end of every process", BOUND_S)
    assert list((folder / "checkpoints").glob("checkpoint-*.safetensors"))
    assert "stopped" in (folder / "logs" / "learner.log").read_text()


def test_run_is_watched_steered_stopped_and_resumed_from_its_checkpoint(config_file: Path, tmp_path: Path) -> None:
    """The printed page and that of `tidemill page RUN` show what the cluster does; both, and `ctl`, control it.

    SIGTERM ends everything in order without a result, but with a learning curve. Resume refuses another network and
    writes nothing; as the run was, it continues with steps, versions, time and scores.
    """
    folder = tmp_path / "runs" / "small"
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(launched("train", "--config", str(config_file)))
        url = cluster.until(r"http://127\.0\.0\.1:").split("| ")[1]
        _is_training(cluster)
        _shows_a_run(url)
        said = tidemill("status", str(folder))
        assert "training" in said
        assert re.search(r"^replay +unix:///\S+/replay.sock$", said, re.MULTILINE)
        other = stack.enter_context(launched("page", str(folder)))
        assert "paused" in press(other.until(r"http://127\.0\.0\.1:").strip(), "pause")
        wait_until(lambda: shown(url)["state"] == "paused", "a paused learner on the page")
        assert "continues" in press(url, "resume")
        tidemill("ctl", "pause", str(folder))
        with learner_of(folder) as learner:
            wait_until(lambda: learner.get_status().state.name == "PAUSED", "the learner pauses")
        tidemill("ctl", "resume", str(folder))
        assert "checkpoint of" in press(url, "checkpoint")
        assert "checkpoint of" in tidemill("ctl", "checkpoint", str(folder))
        cluster.send(signal.SIGTERM)
        assert cluster.wait() == 0
        assert cluster.children() == {}
        assert "stopped as asked" in cluster.output
        assert other.wait() == 0, other.output
        assert f"{folder} has ended; its curves: " in other.output
    assert not (folder / "result.json").exists()
    assert (folder / "plots" / "learning_curve.png").stat().st_size > 0
    before, settings = read_scores(folder / "scores.csv")[-1], (folder / "config.yaml").read_bytes()
    code, said = ended("resume", str(folder), "--agent.hidden-sizes", "48")
    assert code == 2
    assert re.search(r"cannot continue with agent.hidden_sizes \[48\] .*: its checkpoint holds networks", said)
    assert (folder / "config.yaml").read_bytes() == settings
    (folder / "config.yaml").write_bytes(re.sub(rb"(?m)^  n_step: .*", b"  n_step: 5", settings))
    code, said = ended("resume", str(folder))
    assert code == 2
    assert "cannot continue with agent.n_step 5 " in said
    (folder / "config.yaml").write_bytes(settings)
    with launched("resume", str(folder)) as resumed:
        url = resumed.until(r"http://127\.0\.0\.1:").split("| ")[1]
        assert "from the log" in resumed.until("replay")
        resumed.until("learner restored checkpoint")
        resumed.until("evaluation  mean", count=2)
        wait_until(
            lambda: shown(url)["state"] == "training", "the learner answers; a version from before is evaluated, too"
        )
        assert "stopping" in press(url, "stop")
        assert resumed.wait() == 0
        assert resumed.children() == {}
    after = read_scores(folder / "scores.csv")[-1]
    assert after.params_version > before.params_version
    assert after.learner_steps >= before.learner_steps
    assert after.wall_s > before.wall_s


def _shows_a_run(url: str) -> None:
    """Look at the page of a run that trains."""
    rates = ("learner_steps_per_s", "env_steps_per_s")
    wait_until(lambda: all(shown(url)[rate] > 0 for rate in rates), "rates on the page")
    page = shown(url)
    assert states(url)["learner"] == "serving"
    assert page["scores"]
    assert page["logs"]["learner"]
    assert page["policy_lag"] >= 0


def test_run_outlives_its_services_which_end_with_its_launcher(config_file: Path, tmp_path: Path) -> None:
    """Whichever process is killed comes back, and updates and evaluations continue; the learner resumes.

    Among them are one of two replay shards, and the inference service that the actor acts by. Without its launcher
    every service ends by itself, also one that is frozen, and the server that forks them.
    """
    folder = tmp_path / "runs" / "small"
    settings = ("--replay.shards", "2", "--launcher.inference", "1")
    with launched("train", "--config", str(config_file), *settings) as cluster:
        _is_training(cluster)
        tidemill("ctl", "checkpoint", str(folder))
        for name in ("actor", "inference", "evaluator", "replay", "paramserver", "learner"):
            seen = len(cluster.lines)
            pid = cluster.children()[name]
            os.kill(pid, signal.SIGKILL)
            cluster.until("was killed by signal 9", since=seen)
            cluster.until(rf"{name}(-\d)? is ready", since=seen)
            _takes_steps(folder, f"after {name} was killed")
            cluster.until("evaluation  mean", since=len(cluster.lines))
        with learner_of(folder) as learner:
            assert learner.get_status().restored.startswith("checkpoint")
        pid = cluster.process.pid
        assert set(services_of(pid)) >= _SERVICES | {"inference", "tidemill.programs.fork_server"}
        os.kill(services_of(pid)["actor"], signal.SIGSTOP)
        cluster.send(signal.SIGKILL)
        cluster.process.wait(60)
        wait_until(lambda: not services_of(pid), "every service has ended")


def test_killed_launcher_leaves_no_rank_of_the_learner(config_file: Path) -> None:
    """Several learners are children of a child: they end with it, frozen or not."""
    with launched("train", "--config", str(config_file), "--launcher.learners", "2") as cluster:
        cluster.until("learner is ready")
        torchrun = cluster.children()["learner.torchrun"]
        ranks = workers(torchrun)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGSTOP)
        cluster.send(signal.SIGKILL)
        try:
            wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), "every rank has ended")
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)


def test_run_that_diverges_says_so_and_is_resumed(config_file: Path, tmp_path: Path) -> None:
    """Nothing that is not finite is saved, published or resumed from: SAC whose parameters become infinite at once."""
    sac = ("--env.id", "Pendulum-v1", "--agent.algorithm", "sac", "--agent.hidden-sizes", "16")
    config = {"env": {"num_envs": 4}, "agent": {"algorithm": "sac", "network": "mlp", "batch_size": 16}}
    document = yaml.safe_load(config_file.read_text()) | config
    config_file.write_text(yaml.safe_dump(document))
    limits = ("--run.max-learner-steps", "300", "--evaluator.video", "false")
    with launched("train", "--config", str(config_file), *sac, *limits, "--agent.learning-rate", "1e30") as cluster:
        assert cluster.wait() == 1
        assert re.search(r"small: training has diverged at update \d+: .*loss ", cluster.output)
        assert "restarting" not in cluster.output
    folder = tmp_path / "runs" / "small"
    assert "has diverged at update" in json.loads((folder / "result.json").read_text())["reason"]
    newest = read_params(folder / "params")
    assert newest is not None
    assert all(np.isfinite(array).all() for array in unpack(newest.blob).values())
    with launched("resume", str(folder), "--agent.learning-rate", "1e-3") as cluster:
        assert cluster.wait() == 0
    result = json.loads((folder / "result.json").read_text())
    assert (result["reason"], result["learner_steps"]) == ("run.max_learner_steps (300) reached", 300)
