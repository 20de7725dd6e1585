"""Services started by hand while what they need is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked_service import fork_read


@pytest.mark.parametrize("service, needs", [("actor", "replay"), ("evaluator", "params")])
def test_service_ends_with_one_line_when_what_it_needs_does_not_answer(
    service: str, needs: str, tmp_path: Path
) -> None:
    """It names setting, address and time as the learner does, asks the question to start with, and ends with 1."""
    settings = ("--env.id", "CartPole-v1", "--agent.algorithm", "dqn", "--cluster.connect-timeout-s", "0.5")
    addresses = ("--cluster.replay", "127.0.0.1:1", "--cluster.params", "127.0.0.1:1")
    process = fork_read(f"tidemill.services.{service}", (*settings, *addresses, "--run.root", str(tmp_path)))
    try:
        said, _ = process.communicate(200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    expected = f"nothing answers at cluster.{needs} (127.0.0.1:1) after 0.5 s: is the service running?"
    assert said.splitlines()[-1] == f"{service}: Unavailable: {expected}"
    assert "failed to connect" not in said
