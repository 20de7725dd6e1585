"""Human-normalised scores."""

from __future__ import annotations

import pytest

from tidemill.envs.atari_env import game_ids
from tidemill.envs.atari_scores import RANDOM_AND_HUMAN, human_normalised


@pytest.mark.parametrize(
    "env_id, score, expected",
    [
        ("ALE/Pong-v5", -20.7, 0.0),
        ("ALE/Pong-v5", 14.6, 1.0),
        ("ALE/Breakout", 30.3, 28.6 / 28.8),
        ("ALE/Asterix-v5", 41268.0, (41268.0 - 210.0) / 8293.3),
        ("ALE/WizardOfWor-v5", 563.5 + 2 * 4193.0, 2.0),
        ("ALE/Zaxxon-v5", -9108.3, -1.0),
    ],
)
def test_score_is_measured_from_random_play_to_people(env_id: str, score: float, expected: float) -> None:
    """0 is random play and 1 is a person; above and below continue in a line."""
    assert human_normalised(env_id, score) == pytest.approx(expected)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pong-v5", "ALE/Adventure-v5"])
def test_score_without_figures_stays_raw(env_id: str) -> None:
    """No figure is made up: a game outside the 57 has none, and no other environment has."""
    assert human_normalised(env_id, 10.0) is None


def test_figures_are_of_the_57_games_that_the_emulator_has() -> None:
    """Each is spelled as the emulator's id, and people beat random play in every one."""
    assert len(RANDOM_AND_HUMAN) == 57
    assert {f"ale/{name}-v5".lower() for name in RANDOM_AND_HUMAN} <= {game.lower() for game in game_ids()}
    assert all(human > random for random, human in RANDOM_AND_HUMAN.values())
