"""deploy/slurm on a real Slurm of several nodes: a node is lost, the time is up, the job is cancelled."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.slurm.cluster import SlurmCluster, slurm_cluster, why_not
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(2400)

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "deploy/slurm/tidemill.sbatch"
_NAME = "rehearsed"
_BOUND_S = 900.0
"""Eight processes that import torch start within 30 s on two quiet cores."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Six nodes. Without root or Slurm the tests are skipped and say why, unless TIDEMILL_REQUIRE_SLURM is set."""
    if reason := why_not():
        if os.environ.get("TIDEMILL_REQUIRE_SLURM"):
            pytest.fail(reason)
        pytest.skip(reason)
    monkeypatch.chdir(ROOT)
    with slurm_cluster(tmp_path / "slurm", 6) as cluster:
        yield cluster


class Job:
    """A submitted run of CartPole."""

    def __init__(self, cluster: SlurmCluster, folder: Path, *options: str, **variables: str) -> None:
        """Submit it: options of sbatch, and further variables of the script."""
        self._cluster, self.run_folder = cluster, folder / "runs" / _NAME
        self._output = folder / "job.log"
        words = ("--parsable", f"--job-name={_NAME}", f"--output={self._output}", *options, SCRIPT)
        settings = {
            "TIDEMILL_CONFIG": "configs/cartpole_dqn.yaml",
            "TIDEMILL_RUNS": str(folder / "runs"),
            "TIDEMILL_SECRETS": str(folder / "secrets"),
            "TIDEMILL_EVALUATOR_ARGS": "--evaluator.no-video",
        }
        self.number = cluster.run("sbatch", *words, variables=settings | variables).strip()

    def shown(self, field: str) -> str:
        """Return a property of the job in Slurm, such as JobState; empty while a busy controller does not answer."""
        said = self._asked("scontrol", "--oneliner", "show", "job", self.number)  # its first part comes first
        found = re.search(rf"\b{field}=(\S*)", said)
        assert found or not said, said
        return found[1] if found else ""

    def _asked(self, *command: str) -> str:
        try:
            return self._cluster.run(*command)
        except (AssertionError, subprocess.TimeoutExpired):
            return ""

    def nodes(self, part: int) -> list[str]:
        """Return the nodes of a part of the job, once it has some: the parts of a requeued one do not start at once."""
        listed = ""

        def has_nodes() -> bool:
            nonlocal listed
            listed = self._listed(part)
            return bool(listed)

        wait_until(has_nodes, f"nodes of part {part}", _BOUND_S, describe=self.report)
        return self._cluster.run("scontrol", "show", "hostnames", listed).split()

    def _listed(self, part: int) -> str:
        lines = self._asked("squeue", "--noheader", f"--jobs={self.number}", "--format=%i %N").splitlines()
        parts = [line.split() for line in lines if line.startswith(f"{self.number}+{part} ")]
        return "".join(parts[0][1:]) if parts else ""

    def wait_for_checkpoint(self, more: int) -> None:
        """Wait until the learner has written so many more checkpoints."""
        before = self.log("learner").count("checkpoint written")
        wait_until(
            lambda: self.log("learner").count("checkpoint written") >= before + more,
            "a checkpoint",
            _BOUND_S,
            longest_pause_s=0.5,
            describe=self.report,
        )

    def wait_for(self, state: str, *, restarts: int = 0) -> None:
        """Wait until the job has a state, after so many restarts."""
        wait_until(
            lambda: self.shown("JobState") == state and self.shown("Restarts") == str(restarts),
            f"{state} after {restarts} restarts",
            _BOUND_S,
            longest_pause_s=1.0,
            describe=self.report,
        )

    def steps(self) -> list[int]:
        """Return the updates that the learner's log names, in order."""
        return [int(number.replace("_", "")) for number in re.findall(r"\blearner_steps=([\d_]+)", self.log("learner"))]

    def restored(self) -> list[int]:
        """Return the updates of each checkpoint that a learner has continued from."""
        return [
            int(number.replace(",", ""))
            for number in re.findall(r"restored .*?: ([\d,]+) updates", self.log("learner"))
        ]

    def log(self, service: str) -> str:
        """Return the log of a service's first task."""
        file = self.run_folder / "logs" / f"{service}-0.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def report(self) -> str:
        """Return the ends of all logs."""
        files = [self._output, *sorted((self.run_folder / "logs").glob("*.log"))]
        texts = [f"--- {file.name}\n{file.read_text(errors='replace')[-2500:]}" for file in files if file.exists()]
        shown = self._cluster.run("scontrol", "show", "job", self.number)
        return "\n".join([shown, *texts, self._cluster.logs()])


def test_run_that_loses_nodes_is_requeued_and_ends_solved(cluster: SlurmCluster, tmp_path: Path) -> None:
    """First a learner's machine dies, then that of the services and the script: the run continues on those left.

    The job has three parts, so that learners are on two nodes, and actors on another. Only its last start has a target
    that can be reached, so that no earlier one is over before it loses its node.
    """
    config = tmp_path / "run.yaml"
    _aim(config, 501)
    job = Job(
        cluster,
        tmp_path,
        *("--cpus-per-task=8", ":", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=8", ":", "--ntasks=2"),
        TIDEMILL_CONFIG=str(config),
        TIDEMILL_RUN_ARGS="--run.max-wall-s 1800",
        TIDEMILL_LEARNER_ARGS="--learner.checkpoint-every-s 1",
    )
    lost = []
    for part, restarts, next_target in ((1, 0, 501), (0, 1, 100)):
        job.wait_for_checkpoint(more=2)
        _aim(config, next_target)
        lost.append(job.nodes(part)[-1])
        cluster.nodes[lost[-1]].lose()
        job.wait_for("RUNNING", restarts=restarts + 1)
        assert not set(lost) & {node for each in range(3) for node in job.nodes(each)}
    job.wait_for("COMPLETED", restarts=2)
    assert len(job.restored()) == 2, job.report()
    assert job.restored()[0] < job.restored()[1]
    result = json.loads((job.run_folder / "result.json").read_text())
    assert result["solved"], result
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700


def test_run_that_is_cancelled_or_preempted_or_out_of_time_continues(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Each leaves a checkpoint of its last update, though none is written before, and the next start restores it."""
    endless = {
        "TIDEMILL_ACTORS": "1",
        "TIDEMILL_RUN_ARGS": "--run.target-return none --run.max-wall-s 0",
        "TIDEMILL_LEARNER_ARGS": "--learner.checkpoint-every-s 0 --learner.log-every-s 1",
    }
    job = Job(cluster, tmp_path, "--nodes=3", **endless)
    _train(job, 0)
    cluster.run("scancel", job.number)
    job.wait_for("CANCELLED")
    wait_until(lambda: "stopped" in job.log("learner"), "the learner has stopped", 60.0, describe=job.report)
    cancelled_at = job.steps()[-1]
    assert f"learner_steps={cancelled_at}" in _last_line(job.log("learner"), "checkpoint written"), job.report()

    again = Job(cluster, tmp_path, "--nodes=3", **endless)
    _train(again, cancelled_at)
    assert again.restored() == [cancelled_at]
    cluster.run("scancel", "--batch", "--signal=USR1", again.number)  # as Slurm does before the time limit
    again.wait_for("RUNNING", restarts=1)
    wait_until(lambda: len(again.restored()) == 2, "the third start", _BOUND_S, describe=again.report)
    assert again.restored()[1] > cancelled_at
    assert f"learner_steps={again.restored()[1]}" in _last_line(again.log("learner"), "checkpoint written")

    urgent = ("--partition=urgent", "--nodes=6", "--exclusive", f"--output={tmp_path / 'urgent.log'}")
    cluster.run("sbatch", *urgent, "--wrap=sleep 5")  # preempts it
    again.wait_for("RUNNING", restarts=2)
    wait_until(lambda: len(again.restored()) == 3, "the fourth start", _BOUND_S, describe=again.report)
    assert f"learner_steps={again.restored()[2]}" in _last_line(again.log("learner"), "checkpoint written")
    cluster.run("scancel", again.number)
    again.wait_for("CANCELLED", restarts=2)


def _aim(config: Path, target: int) -> None:
    """Write the settings of CartPole, whose episodes return 500 at most, with another target."""
    settings = yaml.safe_load(Path("configs/cartpole_dqn.yaml").read_text())
    settings["run"]["target_return"] = target
    config.write_text(yaml.safe_dump(settings))


def _train(job: Job, before: int) -> None:
    """Wait until the learner has made a few hundred updates more."""
    wait_until(
        lambda: max(job.steps(), default=0) > before + 300,
        f"updates beyond {before + 300}",
        _BOUND_S,
        longest_pause_s=0.5,
        describe=job.report,
    )


def _last_line(text: str, what: str) -> str:
    return [line for line in text.splitlines() if what in line][-1]
