"""A short set of the faults of the network, and of clients that vanish, which `make chaos` causes at length."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.churn import churn
from tests.chaos.fault_report import check
from tests.chaos.links import harm_links
from tests.chaos.network import harm_params, harm_replay


def test_connections_cut_in_mid_message_lose_and_double_nothing(tmp_path: Path) -> None:
    """Between writers, learner and replay server: all that was sent is there once, and both continue."""
    check(harm_replay(tmp_path, "cut in mid-message", 1, seed=3, longest_s=1.0), faults=1)


def test_acknowledgements_of_the_parameter_server_that_are_lost_cost_a_pause(tmp_path: Path) -> None:
    """What was acknowledged is there with its bytes, and versions only grow."""
    check(harm_params(tmp_path, "acknowledgements lost", 1, seed=3, longest_s=0.5), faults=1)


def test_run_continues_whichever_link_fails(tmp_path: Path) -> None:
    """Of real processes: every step is stored once, as the environment gave it."""
    for report in harm_links(tmp_path, 1, seed=3, longest_s=0.5):
        check(report, faults=1)


def test_replay_server_keeps_nothing_of_actors_that_vanish() -> None:
    """No call, connection or thread is left of those that ended without a goodbye, and streams are bounded."""
    report = churn(40, 2, seed=3)
    check(report, faults=2 * 24)  # of 12 cohorts of 4, half
    assert report.acknowledged == 2 * 2 * 40 * 4
    assert report.figures["first wave"]["calls"] >= 40  # type: ignore[index]
