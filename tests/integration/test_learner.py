"""The learner beside a real replay service and parameter server."""

from __future__ import annotations

import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from prometheus_client import REGISTRY

from tests.support.feeder import TABLE
from tests.support.learner_cluster import LearnerCluster, is_serving, learner_cluster
from tests.support.naming import naming
from tests.support.security import become, guarded
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, FatalError
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.params.blob import unpack
from tidemill.params.version import LATEST
from tidemill.rl.agents.dqn import DQNAgent
from tidemill.rpc.background import BackgroundServer
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.data.device import DevicePrefetcher
from tidemill.services.learner.publishing import PolicyPublisher
from tidemill.services.learner.status.progress import Progress
from tidemill.services.tools.certs import make


def _trains_after_100_updates(status: LearnerStatus) -> bool:
    """One that has waited 0.2 s for a batch says WAITING until the next one."""
    return status.learner_steps >= 100 and status.state is LearnerState.TRAINING


def test_learner_trains_publishes_and_updates_priorities(cluster: LearnerCluster) -> None:
    """Without data it waits with a first version published; with data steps, versions and priorities grow."""
    cluster.start_learner()
    waiting = cluster.wait_for_status(lambda s: s.state is LearnerState.WAITING, "the learner waits for data")
    assert (waiting.learner_steps, waiting.fencing_token, waiting.restored) == (0, 1, "")
    params = cluster.params_client()
    wait_until(lambda: bool(params.list_versions().versions), "a first version for the actors")
    cluster.feed()
    status = cluster.wait_for_status(_trains_after_100_updates, "100 updates, and training")
    assert status.env_steps >= 64
    wait_until(lambda: len(params.list_versions().versions) >= 5, "a version every 10 steps")
    newest = params.list_versions().versions[-1]
    assert newest.metadata.algorithm == "dqn"
    assert newest.metadata.learner_steps % 10 == 0
    assert len(newest.metadata.config_digest) == 64
    fetched = params.fetch(LATEST)
    assert fetched is not None
    assert all(array.size for array in unpack(fetched.blob).values())
    replay = cluster.replay_client()
    wait_until(lambda: replay.describe_table(TABLE).priority_updates > 0, "priorities arrive")
    described = replay.describe_table(TABLE)
    assert described.unknown_keys == 0
    cluster.wait_for_status(lambda s: "loss" in s.metrics and s.steps_per_s > 0, "metrics and rates")


def _sample(name: str) -> float:
    """Return a metric of the learner of this process, by its name."""
    value = REGISTRY.get_sample_value(name)
    assert value is not None, name
    return value


def test_learner_trains_from_observations_on_its_device(cluster: LearnerCluster) -> None:
    """Each step is uploaded once, however often its items are trained on."""
    uploaded = "tidemill_learner_mirror_rows_uploaded_total"
    before = _sample(uploaded)
    cluster.start_learner("--learner.mirror-device", "device")
    cluster.feed()
    cluster.wait_for_status(_trains_after_100_updates, "100 updates, and training")
    assert _sample("tidemill_learner_mirror_device_bytes") > 0
    used = _sample(uploaded) - before  # before the table is asked, which grows meanwhile
    stored = cluster.replay_client().describe_table(TABLE).inserts + 1  # no item begins with the first step
    assert 0 < used <= stored + 16


def test_updates_per_env_step_are_held(cluster: LearnerCluster) -> None:
    """With 0.5 updates per decision neither side gets ahead by more than the buffer of 20 updates plus one call.

    While both are at work the table says so, in one look; when they have come to rest the learner has trained on all it
    drew, the buffer and the call that passed it.
    """
    held = ("--table.error-buffer-updates", "20", "--agent.batch-size", "32", "--learner.batches-per-sample", "1")
    cluster.start_learner("--learner.updates-per-env-step", "0.5", *held)
    cluster.feed(chunks_per_s=20)
    replay, least = cluster.replay_client(), 64
    for decisions in range(100, 601, 100):
        cluster.wait_for_status(lambda s, due=decisions: s.env_steps >= due, f"{decisions} decisions")  # type: ignore[misc]
        ahead = replay.describe_table(TABLE).limiter_diff / 32  # in updates; a call is 16 decisions or an update
        assert -(20 + 1) <= ahead <= 20 + 8
    status, table = cluster.rested(32)
    assert 20 < status.learner_steps - 0.5 * (table.inserts - least) <= 20 + 1


def test_pause_checkpoint_resume_and_stop(cluster: LearnerCluster) -> None:
    """Each control does what it says, and the learner ends properly."""
    learner = cluster.start_learner("--learner.checkpoint-every-s", "0")
    cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps > 0, "training")
    client = cluster.learner_client()
    client.pause()
    paused = cluster.wait_for_status(lambda s: s.state is LearnerState.PAUSED, "the pause")
    saved = client.save_checkpoint()
    assert saved.learner_steps == paused.learner_steps
    assert Path(saved.path).exists()
    assert client.get_status().checkpoint_steps == saved.learner_steps
    assert client.get_status().learner_steps == paused.learner_steps
    client.resume()
    cluster.wait_for_status(lambda s: s.learner_steps > paused.learner_steps, "training continues")
    client.stop("the test is over")
    assert learner.wait() is None


def test_sigterm_saves_and_a_new_process_resumes(cluster: LearnerCluster) -> None:
    """SIGTERM publishes, checkpoints and exits 0; the next learner continues from that very step."""
    process = cluster.start_learner_process("--learner.checkpoint-every-s", "0", module="tests.support.patient_learner")
    feeder = cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps >= 50, "50 updates")
    feeder.close()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    newest = cluster.params_client().list_versions().versions[-1]
    steps = newest.metadata.learner_steps
    resumed = cluster.start_learner("--run.max-learner-steps", str(steps))  # so that it trains no further
    assert resumed.wait() is None
    versions = cluster.params_client()
    last = versions.list_versions().versions[-1]
    assert (last.fencing_token, last.metadata.learner_steps) == (2, steps)
    stored = cluster.replay_client().describe_table(TABLE).env_steps
    assert newest.metadata.env_steps <= last.metadata.env_steps <= stored  # it may have heard of a newer count
    before, after = (versions.fetch(number) for number in (newest.version, last.version))
    assert before is not None
    assert after is not None
    for name, array in unpack(before.blob).items():
        assert (array == unpack(after.blob)[name]).all(), name


@pytest.mark.parametrize("supervisor", ["launcher", "job", "engine"])
def test_learner_that_cannot_save_when_interrupted_fails(supervisor: str, cluster: LearnerCluster) -> None:
    """Whoever started it hears that updates are lost. An engine would count it as a failure of the run."""
    learner = cluster.start_learner("--learner.checkpoint-every-s", "0", "--run.supervisor", supervisor)
    cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps > 0, "training")
    cluster.checkpoints.write_text("no folder")
    learner.terminate()
    error = learner.wait()
    if supervisor != "engine":
        assert isinstance(error, FatalError)
        assert re.match(naming("checkpoint not written", cluster.checkpoints), str(error))
    else:
        assert error is None


def test_resumed_learner_trains_on(cluster: LearnerCluster) -> None:
    """It says what was restored, counts on from there and still has the table that the service kept."""
    first = cluster.start_learner("--run.max-learner-steps", "50")
    cluster.feed()
    assert first.wait() is None
    cluster.start_learner()
    status = cluster.wait_for_status(lambda s: s.learner_steps > 60, "training continues")
    assert status.restored.startswith("checkpoint-000001-00000001: 50 updates")
    assert "the table holds" in status.restored
    assert (status.fencing_token, status.checkpoint_steps) == (2, 50)


def test_learner_that_continues_on_another_device_says_so(cluster: LearnerCluster) -> None:
    """As with `learner.device: auto` where the GPU is lost; the log alone named the CPU."""
    first = cluster.start_learner("--run.max-learner-steps", "5")
    cluster.feed()
    assert first.wait() is None
    store = CheckpointStore(cluster.checkpoints, keep=1)
    found = store.newest()
    assert found is not None
    checkpoint = found[1]
    store.write(replace(checkpoint, written_by={**checkpoint.written_by, "device": "cuda"}))
    cluster.start_learner()
    status = cluster.wait_for_status(lambda s: bool(s.restored), "the restart")
    assert ", with device cuda then, cpu now" in status.restored


def test_replay_service_restarted_empty_is_filled_and_used_again(cluster: LearnerCluster, tmp_path: Path) -> None:
    """The table is created again, the learner waits for data and trains on; decisions keep counting."""
    cluster.close()
    replay = cluster.start_replay()
    cluster.start_params()
    cluster.start_learner("--table.min-size", "500")
    cluster.feed()
    before = cluster.wait_for_status(lambda s: s.learner_steps >= 50, "training")
    replay.signal(signal.SIGKILL)
    replay.wait()
    cluster.wait_for_status(lambda s: s.state is LearnerState.WAITING, "the loss is noticed")
    cluster.start_replay()
    after = cluster.wait_for_status(
        lambda s: s.state is LearnerState.TRAINING and s.learner_steps > before.learner_steps + 200,
        "training continues",
    )
    assert after.env_steps >= before.env_steps + 500


def test_frozen_replay_service_does_not_hang_the_learner(cluster: LearnerCluster) -> None:
    """While the service is stopped the learner answers its callers and ends properly when asked to."""
    cluster.close()
    replay = cluster.start_replay()
    cluster.start_params()
    learner = cluster.start_learner()
    cluster.feed()
    cluster.wait_for_status(lambda s: s.learner_steps >= 50, "training")
    replay.signal(signal.SIGSTOP)
    cluster.wait_for_status(lambda s: s.state is LearnerState.WAITING, "the learner waits")
    learner.terminate()
    assert learner.wait() is None


def test_frozen_parameter_server_does_not_hang_the_learner(cluster: LearnerCluster) -> None:
    """Frozen in the middle of a publish, it holds up neither training nor the end of the process."""
    cluster.close()
    cluster.start_replay()
    params = cluster.start_params()
    process = cluster.start_learner_process("--agent.hidden-sizes", "512", "512", "--learner.publish-every", "1")
    cluster.feed()
    before = cluster.wait_for_status(lambda s: s.learner_steps >= 20, "training")
    params.signal(signal.SIGSTOP)
    cluster.wait_for_status(lambda s: s.learner_steps >= before.learner_steps + 50, "steps meanwhile")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert list(cluster.checkpoints.glob("*.safetensors"))


def test_checkpoint_of_another_network_stops_the_start(cluster: LearnerCluster) -> None:
    """A run whose network changed is refused with the tensor's name and both shapes."""
    first = cluster.start_learner("--run.max-learner-steps", "5")
    cluster.feed()
    assert first.wait() is None
    refusal = cluster.start_learner("--agent.hidden-sizes", "32").wait()
    assert isinstance(refusal, FatalError)
    for word in ("16", "32", "run.name"):
        assert word in str(refusal)


@pytest.mark.parametrize(
    "asker, call",
    [(PolicyPublisher, "publish"), (DevicePrefetcher, "start"), (DQNAgent, "update")],
    ids=["version", "batch", "update"],
)
def test_learner_that_a_full_gpu_refuses_says_what_is_free(
    asker: type, call: str, cluster: LearnerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what to do, in one line, whatever asks for memory: a first version, a decoding thread, an update."""

    def refuse(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB.")

    monkeypatch.setattr(asker, call, refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**29, 79 * 2**30))
    learner = cluster.start_learner()
    cluster.feed()
    error = learner.wait()
    assert isinstance(error, FatalError)
    assert re.search(naming("0.5 79.0 GiB agent.batch_size learner.mirror_device host"), str(error))
    assert "\n" not in str(error)


def test_absent_service_is_told_in_one_line(tmp_path: Path) -> None:
    """A learner whose replay service never comes exits with status 1 and names the setting."""
    with learner_cluster(tmp_path) as cluster:
        process = cluster.start_learner_process("--cluster.connect-timeout-s", "1")
        assert process.wait() == 1
        assert "nothing answers at cluster.replay" in process.text().splitlines()[-1]


def test_service_that_tls_does_not_let_in_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner with the CA of another cluster says so, not that nothing answers alone."""
    make(tmp_path / "own")
    make(tmp_path / "other")
    with BackgroundServer("replay", guarded(tmp_path / "own")) as server, learner_cluster(tmp_path) as cluster:
        become(monkeypatch, ca=tmp_path / "other" / "ca.pem")
        options = ["--cluster.replay", server.start(), "--cluster.connect-timeout-s", "1"]
        process = cluster.start_learner_process(*options)
        assert process.wait() == 1
        assert "TLS failed: the server's certificate is not of the CA" in process.text().splitlines()[-1]


def test_health_follows_the_learner(cluster: LearnerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serving once it is ready, and requests are refused while it stops."""
    refused, finish = threading.Event(), Progress.finish

    def finish_later(progress: Progress) -> None:
        assert refused.wait(WAIT_S)
        finish(progress)

    monkeypatch.setattr(Progress, "finish", finish_later)
    learner = cluster.start_learner()
    wait_until(lambda: is_serving(cluster.learner), "the learner serves")
    client = cluster.learner_client()
    client.pause()
    client.stop("over")
    with pytest.raises(FailedPrecondition, match=naming("stopping")):
        client.pause()
    refused.set()
    assert learner.wait() is None


def test_limit_of_decisions_holds_before_the_first_batch(cluster: LearnerCluster) -> None:
    """A table that is too small to be sampled is asked what it holds: status, rates and limits count from the start."""
    learner = cluster.start_learner_process("--table.min-size", "5000", "--run.max-env-steps", "200")
    cluster.wait_for_status(lambda s: s.state is LearnerState.WAITING, "the learner waits for data")
    cluster.feed()
    assert learner.wait(60) == 0, learner.text()
    assert "run.max_env_steps (200) reached" in learner.text()
    assert cluster.replay_client().describe_table(TABLE).samples == 0
