"""A run whose actor has its network passed through by a service, which is killed and comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.launched import launched, learner_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def test_run_trains_by_an_inference_service_that_is_killed_once(config_file: Path, tmp_path: Path) -> None:
    """The actor waits for it and continues; every step is the service's."""
    folder = tmp_path / "runs" / "small"
    settings = ("--launcher.inference", "1", "--evaluator.min_interval_s", "1000")
    with launched("train", "--config", str(config_file), *settings) as cluster:
        for name in ("inference-0", "learner", "actor-0"):
            cluster.until(f"{name} is ready")
        with learner_of(folder) as learner:
            wait_until(lambda: learner.get_status().learner_steps > 40, "updates")
            seen = len(cluster.lines)
            os.kill(cluster.children()["inference"], signal.SIGKILL)
            cluster.until("was killed by signal 9", since=seen)
            cluster.until("inference-0 is ready", since=seen)
            reached = learner.get_status().env_steps
            # more than what was on its way
            wait_until(lambda: learner.get_status().env_steps > reached + 400, "environment steps by the new one")
        cluster.send(signal.SIGINT)
        assert cluster.wait() == 0, cluster.output
        assert cluster.children() == {}
    actor = (folder / "logs" / "actor-0.log").read_text()
    assert "inference service lost, waiting for it" in actor
    assert "inference service answers again" in actor
