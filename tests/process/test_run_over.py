"""Learner and evaluator where something else than `tidemill train` keeps them running: an engine, or Kubernetes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import urllib.request

import pytest

from tests.support.free_ports import free_address
from tests.support.learner_cluster import LearnerCluster, Process
from tests.support.naming import naming
from tests.support.scraped import scrape
from tests.support.waiting import wait_until
from tidemill.config.run import RunSettings
from tidemill.errors import FailedPrecondition
from tidemill.learner.status import LearnerState
from tidemill.params.version import BEST
from tidemill.programs.idle import DIVERGED, INTERRUPTED

_WAIT_S = 400.0  # torch is imported again and again, on a machine that may be busy

pytestmark = pytest.mark.timeout(900)


def _newest(cluster: LearnerCluster) -> int:
    return cluster.params_client().list_versions().versions[-1].version


def _page(address: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def _metric(address: str, name: str) -> float | None:
    """Return a sample; None without one or without an answer."""
    with contextlib.suppress(OSError):
        return scrape(address).get(name)
    return None


def _wait_for_rest(address: str, process: Process) -> None:
    def idles() -> bool:
        assert process.is_running, process.text()
        return _metric(address, "tidemill_resting") == 1.0

    wait_until(idles, "idling", _WAIT_S)
    assert _page(address, "healthz") == "SERVING\n"


def _wait_for_last_event(process: Process, event: str) -> None:
    """Wait until an event is in the last line of a log of JSON."""
    wait_until(lambda: json.loads(process.text().splitlines()[-1])["event"] == event, event)


def test_learner_of_a_job_ends_with_zero_only_at_the_end_of_its_run(cluster: LearnerCluster) -> None:
    """Kubernetes takes 0 for the end of the Job: a pod that is moved must not say so, and one at its limit must."""
    job = ("--run.supervisor", "job", "--run.max-learner-steps", "1000000")
    learner = cluster.start_learner_process(*job)
    cluster.wait_for_status(lambda s: s.learner_steps > 0, "an update")
    learner.signal(signal.SIGTERM)
    assert learner.wait() == INTERRUPTED, learner.text()
    assert cluster.start_learner_process("--run.supervisor", "job", "--run.max-learner-steps", "1").wait(_WAIT_S) == 0
    tags = cluster.params_client().list_versions().tags
    assert [tag for tag in tags if tag.startswith("ended-")]


def test_learner_that_an_engine_starts_again_after_its_run_rests(cluster: LearnerCluster) -> None:
    """At its limit it idles, in good health; started again it does nothing, unless the limit is another one."""
    address = free_address()
    engine = ("--run.supervisor", "engine", "--learner.server.metrics-address", address)
    newest = set()
    for _ in range(2):
        learner = cluster.start_learner_process(*engine, "--run.max-learner-steps", "100")
        _wait_for_rest(address, learner)
        assert "tidemill_learner_steps_total" not in _page(address, "metrics")  # the memory is given back, too
        status = cluster.wait_for_status(lambda s: s.params_version > 0, "the version it ended with")
        assert (status.state, status.learner_steps) == (LearnerState.ENDED, 100)
        assert status.end == f"ended with version {_newest(cluster)}"
        newest.add(_newest(cluster))
        learner.signal(signal.SIGTERM)
        assert learner.wait() == 0, learner.text()
    assert len(newest) == 1
    learner = cluster.start_learner_process(*engine, "--run.max-learner-steps", "200")
    _wait_for_rest(address, learner)
    assert _newest(cluster) > max(newest)


def test_learner_that_is_stopped_under_an_engine_says_so_and_hears_of_the_end(cluster: LearnerCluster) -> None:
    """The run can continue, unless another process marks its end meanwhile."""
    learner = cluster.start_learner_process("--run.supervisor", "engine")
    cluster.wait_for_status(lambda s: s.learner_steps > 0, "an update")
    cluster.learner_client().stop("enough")
    status = cluster.wait_for_status(lambda s: s.state is LearnerState.ENDED and s.params_version > 0, "the stop")
    assert status.end.startswith(f"stopped with version {_newest(cluster)}; "), learner.text()
    assert status.learner_steps > 0
    with pytest.raises(FailedPrecondition, match=naming("start the learner again")):
        cluster.learner_client().resume()
    cluster.params_client().set_tag(RunSettings(name="test").end_tag, _newest(cluster))
    cluster.wait_for_status(lambda s: s.end == f"ended with version {_newest(cluster)}", "the end")


def _start_evaluator(cluster: LearnerCluster, address: str, *words: str) -> Process:
    own = {
        "--run.root": str(cluster.folder),
        "--run.name": "test",
        "--run.supervisor": "engine",
        "--cluster.params": cluster.params,
        "--agent.algorithm": "dqn",
        "--agent.network": "mlp",
        "--agent.hidden-sizes": "16",
        "--env.id": "CartPole-v1",
        "--evaluator.episodes": "1",
        "--evaluator.confirm-episodes": "0",
        "--evaluator.server.metrics-address": address,
    }
    arguments = [word for pair in own.items() for word in pair]
    return cluster.start("tidemill.services.evaluator", [*arguments, "--evaluator.no-video", *words])


def test_verdict_of_the_evaluator_ends_the_learner(cluster: LearnerCluster) -> None:
    """When the target is reached learner and evaluator rest without anybody's help, and stay so when started again.

    The newest parameters are then the best ones, which the verdict names.
    """
    target, addresses = ("--run.target-return", "1"), (free_address(), free_address())
    settings = ("--run.supervisor", "engine", "--learner.server.metrics-address", addresses[0], *target)
    learner = cluster.start_learner_process(*settings)
    result, written = cluster.folder / "test" / "result.json", set()
    for _ in range(2):
        evaluator = _start_evaluator(cluster, addresses[1], *target, "--log.json")
        _wait_for_rest(addresses[1], evaluator)
        _wait_for_last_event(evaluator, "run is over, idling until stopped")  # written once metrics are served
        verdict = json.loads(result.read_text())
        assert verdict["solved"] is True
        written.add(result.stat().st_mtime_ns)
        evaluator.signal(signal.SIGTERM)
        assert evaluator.wait() == 0, evaluator.text()
    assert len(written) == 1
    _wait_for_rest(addresses[0], learner)
    assert verdict["end"].startswith(f"target 1 reached, mean return {verdict['mean_return']:.1f}, version ")
    status = cluster.wait_for_status(lambda s: s.params_version > 0, "the version it ended with")
    assert (status.state, status.end) == (LearnerState.ENDED, verdict["end"])
    listed = cluster.params_client().list_versions()
    best = next(version for version in listed.versions if version.version == listed.tags[BEST])
    assert best.version == verdict["params_version"]
    assert best.encodings == listed.versions[-1].encodings
    wait_until(lambda: _metric(addresses[0], f'tidemill_run_end_info{{end="{verdict["end"]}"}}') == 1.0, "the end")
    assert re.search("reason='the (run is over|evaluator has ended the run)'", learner.text())  # as it has heard first


def test_limit_of_the_learner_ends_the_evaluator(cluster: LearnerCluster) -> None:
    """The evaluator measures the last version, writes the result and idles; a run that continues keeps it aside.

    So does one that is started after the end: it does not take the result of the earlier end for that of this one.
    """
    addresses = free_address(), free_address()
    settings = ("--run.supervisor", "engine", "--learner.server.metrics-address", addresses[0])
    for steps in ("100", "200"):
        limit = ("--run.max-learner-steps", steps)
        learner = cluster.start_learner_process(*settings, *limit)
        if steps == "200":
            _wait_for_rest(addresses[0], learner)
            assert cluster.wait_for_status(lambda s: s.params_version > 0, "the end").end.startswith(
                "ended with version"
            )
        evaluator = _start_evaluator(cluster, addresses[1], *limit)
        for address, process in zip(addresses, (learner, evaluator), strict=True):
            _wait_for_rest(address, process)
            process.signal(signal.SIGTERM)
            assert process.wait() == 0, process.text()
    results = [json.loads((cluster.folder / "test" / name).read_text()) for name in ("result-1.json", "result.json")]
    assert [result["learner_steps"] for result in results] == [100, 200]
    assert results[0]["reason"] == "run.max_learner_steps (100) reached"


def test_run_that_diverged_has_failed_and_continues_with_other_settings(cluster: LearnerCluster) -> None:
    """Neither the learner nor the evaluator ends with 0, also when they are started again as they were."""
    job = ("--run.supervisor", "job", "--run.max-learner-steps", "200", "--agent.n-step", "1")
    folder, written = cluster.folder / "test", set()
    for rate, code in (("1e30", DIVERGED), ("1e30", DIVERGED), ("1e-3", 0)):
        settings = (*job, "--agent.learning-rate", rate)
        learner = cluster.start_learner_process(*settings)
        if code == 0:  # an evaluator that comes late does not take the result of the divergence for this end's
            assert learner.wait(_WAIT_S) == code, learner.text()
        evaluator = _start_evaluator(cluster, free_address(), *settings)
        assert learner.wait(_WAIT_S) == code, learner.text()
        assert evaluator.wait(_WAIT_S) == code, evaluator.text()
        written.add((folder / "result.json").stat().st_mtime_ns)
    assert len(written) == 2
    results = [json.loads((folder / name).read_text()) for name in ("result-1.json", "result.json")]
    assert "training has diverged at update" in results[0]["reason"]
    assert (results[1]["reason"], results[1]["learner_steps"]) == ("run.max_learner_steps (200) reached", 200)


def test_stop_ends_the_run_of_a_job(cluster: LearnerCluster) -> None:
    """The evaluator measures the last version and ends, too: nothing would start the learner again."""
    job = ("--run.supervisor", "job")
    learner = cluster.start_learner_process(*job)
    cluster.wait_for_status(lambda s: s.learner_steps > 0, "an update")
    evaluator = _start_evaluator(cluster, free_address(), *job)
    cluster.learner_client().stop("enough")
    assert (learner.wait(_WAIT_S), evaluator.wait(_WAIT_S)) == (0, 0), evaluator.text()
    assert json.loads((cluster.folder / "test" / "result.json").read_text())["reason"] == "training has ended"
