"""The cluster that tests of the learner have: a part of it that has failed is not waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support import feeder
from tests.support.learner_cluster import learner_cluster
from tests.support.waiting import noting_thread_errors

_BOUND_S = 30.0
"""Two servers are started, too."""


def test_missing_column_ends_the_wait_for_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in of the actor fails, so there will be no update; the message names the column."""
    whole = feeder._random_columns

    def without_reward(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {name: column for name, column in whole(rng).items() if name != "reward"}

    monkeypatch.setattr(feeder, "_random_columns", without_reward)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # pytest's, which would fail this test
    started = time.monotonic()
    with noting_thread_errors(), learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        cluster.start_params()
        cluster.feed()
        with pytest.raises(AssertionError, match=r"(?s)updates: it will not come.*reward"):
            cluster.wait_for_status(lambda status: status.learner_steps > 0, "updates")
    assert time.monotonic() - started < _BOUND_S


def test_learner_that_has_failed_ends_the_wait_for_its_updates(tmp_path: Path) -> None:
    """Its exception is in the message."""
    with learner_cluster(tmp_path) as cluster:
        cluster.start_replay()
        cluster.start_learner("--cluster.connect-timeout-s", "0.5")  # there is no parameter server
        with pytest.raises(AssertionError, match=r"(?s)updates: it will not come.*cluster\.params"):
            cluster.wait_for_status(lambda status: status.learner_steps > 0, "updates")


def test_process_that_has_failed_ends_the_wait_for_it(tmp_path: Path) -> None:
    """Its log is in the message."""
    with learner_cluster(tmp_path) as cluster:
        cluster.replay = "unix:///nowhere/at/all.sock"
        with pytest.raises(AssertionError, match=r"(?s)serves: it will not come.*nowhere"):
            cluster.start_replay()
