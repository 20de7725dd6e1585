"""Services started by hand while what they need is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked_service import fork_read


@pytest.mark.parametrize("service, needs", [("actor", "replay"), ("evaluator", "params"), ("inference", "params")])
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
    assert said.splitlines()[-1] == f"{service}: {expected}"
    assert "failed to connect" not in said


@pytest.mark.parametrize("words", [("tables",), ("drop", "t"), ("export", "t", "--out", "here")])
def test_replay_command_without_a_server_asks_whether_it_runs(words: tuple[str, ...], tmp_path: Path) -> None:
    """In one line, with exit code 1."""
    name, *rest = words
    process = fork_read("tidemill.services.replay", (name, "127.0.0.1:1", *rest), directory=str(tmp_path))
    try:
        said, _ = process.communicate(200)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    (line,) = said.splitlines()
    asked = "the replay service does not answer: is it running at this address?"
    assert line.startswith(f"tidemill replay {name}: {asked}")
    assert "127.0.0.1:1" in line
    assert "disk" not in line
