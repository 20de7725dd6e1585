"""A learner that was stopped and started again is, bit for bit, the one that was not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.process.resumed_updates import train
from tests.support.batches import DISTINCT_CASES
from tests.support.forked_service import fork_service
from tests.support.launched import ROOT
from tidemill.programs.fork_server import Order

_CASES = [name for name, (_, env_spec) in DISTINCT_CASES.items() if env_spec.observation_dtype != "uint8"]
"""Every algorithm and option; images only change the first layers."""


_EXAMPLES = str(ROOT / "examples")
"""Where the second process works: its networks are found there, as a user's are."""

_HALF = 11
"""Updates: more than the period of any case's target networks."""


@pytest.mark.timeout(1800)
def test_updates_in_one_process_equal_those_in_two(tmp_path: Path) -> None:
    """The same recorded batches leave the same state: parameters, targets, optimizers, counters, generators."""
    assert {"dqn", "r2d2", "sac"} <= set(_CASES)
    straight = {case: train(case, tmp_path / "first", _HALF, seed=1, on_to=2 * _HALF) for case in _CASES}
    log = tmp_path / "log"
    with log.open("wb") as output:
        words = [str(tmp_path / "first"), str(2 * _HALF), *_CASES]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = fork_service(Order("tests.process.resumed_updates", words, environment, _EXAMPLES), output)
        assert process.wait(1500) == 0, log.read_text()
    for case, state in straight.items():
        assert (tmp_path / "first" / f"{case}.state").read_bytes() == state, case
