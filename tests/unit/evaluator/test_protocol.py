"""Every episode of the protocol counts exactly once, however long it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from services.evaluator.protocol import Evaluation, Protocol
from tests.unit.evaluator.line_env import LineEnv
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv


def _protocol(num_slots: int, period: int = 10) -> Protocol:
    return Protocol(lambda: GymnasiumVectorEnv(lambda: LineEnv(period), 1), num_slots)


def _zeros(observation: NDArray[Any]) -> NDArray[np.int64]:
    return np.zeros(len(observation), np.int64)


def _play(protocol: Protocol, seeds: range) -> Evaluation:
    evaluation = protocol.play(_zeros, seeds)
    assert evaluation is not None
    return evaluation


@pytest.mark.parametrize("num_slots", [1, 3, 7, 10, 25])
def test_play_counts_each_seed_once_with_any_number_of_slots(num_slots: int) -> None:
    """Seed s of 0 .. 19 brings 1 + s % 10, in the order of the seeds, whoever ends first."""
    evaluation = _play(_protocol(num_slots), range(20))
    assert evaluation.returns.tolist() == [1 + s % 10 for s in range(20)]
    assert evaluation.lengths.tolist() == [1 + s % 10 for s in range(20)]


def test_play_does_not_favour_short_episodes() -> None:
    """With 4 slots and 10 episodes of 1 to 10 steps the mean is 5.5; the first 10 to end would bring less."""
    evaluation = _play(_protocol(4), range(10))
    assert evaluation.mean == 5.5
    assert evaluation.median == 5.5
    assert evaluation.std == pytest.approx(np.sqrt(8.25))  # variance of 1 .. n is (n^2 - 1) / 12


def test_play_repeats_exactly_when_its_slots_are_used_again() -> None:
    """Nothing of one evaluation is left for the next."""
    protocol = _protocol(3)
    first = _play(protocol, range(5, 17))
    _play(protocol, range(100, 104))
    assert _play(protocol, range(5, 17)).returns.tolist() == first.returns.tolist()


def test_play_asks_the_policy_once_for_all_slots_that_play() -> None:
    """Inference is batched; slots that have no episode left are not asked about."""
    sizes: list[int] = []

    def act(observation: NDArray[Any]) -> NDArray[np.int64]:
        sizes.append(len(observation))
        return _zeros(observation)

    assert _protocol(3, period=3).play(act, range(3)) is not None
    assert sizes == [3, 2, 1]  # episodes of 1, 2 and 3 steps


def test_play_gives_each_slot_its_own_action() -> None:
    """Actions go back to the slot whose observation asked for them: odd seeds act 1 and earn 2 a step."""

    def act(observation: NDArray[Any]) -> NDArray[np.int64]:
        return observation[:, 0].astype(np.int64) % 2

    evaluation = _protocol(4).play(act, range(8))
    assert evaluation is not None
    assert evaluation.returns.tolist() == [(1 + s) * (1 + s % 2) for s in range(8)]


def test_play_ends_at_the_next_step_when_stopped() -> None:
    """A stopped evaluation has no result, and no further step is made."""
    steps = 0

    def is_stopped() -> bool:
        nonlocal steps
        steps += 1
        return steps > 3

    acted: list[int] = []

    def act(observation: NDArray[Any]) -> NDArray[np.int64]:
        acted.append(1)
        return _zeros(observation)

    assert _protocol(2).play(act, range(5, 10), is_stopped) is None
    assert len(acted) == 3
