"""A run that suffers for seconds what `make chaos` does to one for an hour, and what is said of its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fault_report import check
from tests.chaos.memory import Life, slope_mib_per_h
from tests.chaos.soak import quickstart, soak
from tests.support.small_run import small_run

_HOUR_S = 3600.0


def test_run_suffers_and_reaches_its_target(tmp_path: Path) -> None:
    """With a target that it cannot miss, a run under faults continues, ends well, and loses and doubles nothing."""
    settings = small_run(run={"target_return": 5.0}, learner={"checkpoint_every_s": 1.0})
    report = soak(tmp_path, 0.2, 3, settings, longest_pause_s=1.0)
    check(report, faults=report.faults)
    assert report.faults > 0
    assert report.figures["score"] >= 5.0  # type: ignore[operator]
    assert {"launcher", "learner", "actor", "replay", "paramserver"} <= report.figures["memory"].keys()  # type: ignore[attr-defined]


def test_soak_of_an_hour_is_of_the_quickstart() -> None:
    """With its target, and without a limit."""
    settings = quickstart()
    assert settings["run"] == {"name": "quickstart", "target_return": 200}
    assert settings["agent"]["algorithm"] == "sac"


def test_slope_is_that_of_each_life_however_high_it_lies() -> None:
    """Two processes, of 100 MiB and of 300, that grow by 6 MiB an hour: 6, and not the step between them."""
    first = Life([0.0, 600.0, 1200.0], [100.0, 101.0, 102.0])
    second = Life([1300.0, 1900.0, 2500.0], [300.0, 301.0, 302.0])
    assert slope_mib_per_h([first, second]) == pytest.approx(6.0)
    assert slope_mib_per_h([first]) == pytest.approx(6.0)
    assert slope_mib_per_h([Life([5.0], [7.0]), Life()]) is None


def test_life_is_counted_from_the_end_of_its_warm_up() -> None:
    """Memory that a process takes in its first minute does not count as growth."""
    life = Life([0.0, 30.0, 60.0, 90.0], [1.0, 50.0, 60.0, 60.0]).after(60.0)
    assert (life.seconds, life.mib, life.length_s) == ([60.0, 90.0], [60.0, 60.0], 30.0)
    assert Life([0.0, 1.0], [1.0, 2.0]).after(60.0).length_s == 0.0
