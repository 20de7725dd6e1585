"""A video of an episode whose pictures are not as they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from tests.support.envs import CountingEnv
from tests.support.naming import naming
from tests.unit.evaluator.line_env import LineEnv
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.errors import FatalError
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.services.evaluator.protocol import EvalPolicy, EvalProtocol
from tidemill.services.evaluator.video import record_video


class _Resizing(CountingEnv):
    """Every third picture is larger."""

    render_mode = "rgb_array"

    def render(self) -> Any:  # noqa: ANN401 - gymnasium's
        """Return a picture."""
        return np.zeros((48, 64, 3) if self._step % 3 == 2 else (32, 32, 3), np.uint8)


def _act(policy_input: PolicyInput) -> PolicyOutput:
    return PolicyOutput(np.zeros(1, np.int64))


def test_environment_without_pictures_is_told(tmp_path: Path) -> None:
    """With what it needs; no folder is made."""
    env = GymnasiumVectorEnv(lambda: CountingEnv(length=8), 1)
    with pytest.raises(FatalError, match=naming("pictures", "rgb_array")):
        record_video(env, EvalPolicy(_act), 1, tmp_path / "videos/best.mp4", max_steps=20)
    assert not (tmp_path / "videos").exists()


def test_pictures_of_another_size_are_left_out(tmp_path: Path) -> None:
    """The video has the others, and the log says so once."""
    seen: list[NDArray[np.uint8]] = []
    env = GymnasiumVectorEnv(lambda: _Resizing(length=8), 1)
    with structlog.testing.capture_logs() as logs:
        summary = record_video(env, EvalPolicy(_act), 1, tmp_path / "best.mp4", max_steps=20, on_picture=seen.append)
    assert summary is not None
    assert summary.length == 8
    assert {picture.shape for picture in seen} == {(32, 32, 3)}
    assert (tmp_path / "best.mp4").stat().st_size > 0
    assert [line["event"] for line in logs] == ["skipping frames of another size"]


class _DrawnLineEnv(LineEnv):
    """One that draws."""

    render_mode = "rgb_array"

    def render(self) -> Any:  # noqa: ANN401 - gymnasium's
        """Return a picture."""
        return np.zeros((16, 16, 3), np.uint8)


def test_filmed_episode_is_the_one_that_was_measured(tmp_path: Path) -> None:
    """With random actions, too: those of the episode's seed."""
    policy = EvalPolicy(_act, epsilon=0.5, num_actions=2)
    measured = EvalProtocol(lambda: GymnasiumVectorEnv(lambda: _DrawnLineEnv(40), 1), 1).play(policy, [35])
    assert measured is not None
    env = GymnasiumVectorEnv(lambda: _DrawnLineEnv(40), 1)
    summary = record_video(env, policy, 35, tmp_path / "best.mp4", max_steps=100)
    assert summary is not None
    assert summary.episode_return == measured.returns[0] > summary.length == measured.lengths[0] == 36
