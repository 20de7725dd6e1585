"""Every episode of the protocol counts exactly once, however long it is."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.faulty_envs import OverwritingEnv
from tests.support.naming import naming
from tests.unit.evaluator.line_env import LineEnv
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.interface import VectorStep
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.services.evaluator.protocol import EpisodesFailed, EvalPolicy, EvalProtocol, Evaluation


def _protocol(num_slots: int, period: int = 10) -> EvalProtocol:
    return EvalProtocol(lambda: GymnasiumVectorEnv(lambda: LineEnv(period), 1), num_slots)


def _zeros(policy_input: PolicyInput) -> PolicyOutput:
    return PolicyOutput(np.zeros(len(policy_input), np.int64))


def _play(protocol: EvalProtocol, seeds: range) -> Evaluation:
    evaluation = protocol.play(EvalPolicy(_zeros), seeds)
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

    def act(policy_input: PolicyInput) -> PolicyOutput:
        sizes.append(len(policy_input))
        return _zeros(policy_input)

    assert _protocol(3, period=3).play(EvalPolicy(act), range(3)) is not None
    assert sizes == [3, 2, 1]  # episodes of 1, 2 and 3 steps


def test_play_keeps_rows_for_a_policy_whose_noise_lasts() -> None:
    """A row is one slot to the end: what has ended holds its place, and a row restarts with its own episode."""
    rows: list[list[tuple[int, bool]]] = []

    def act(policy_input: PolicyInput) -> PolicyOutput:
        seeds = policy_input.observation[:, 0].astype(int).tolist()
        rows.append(list(zip(seeds, policy_input.is_first.tolist(), strict=True)))
        return _zeros(policy_input)

    evaluation = _protocol(3, period=4).play(EvalPolicy(act, keeps_rows=True), range(4))
    assert evaluation is not None
    assert evaluation.returns.tolist() == [1, 2, 3, 4]
    # episodes of 1, 2 and 3 steps, and of 4 in the slot of the first
    assert [[seed for seed, _ in row] for row in rows] == [[0, 1, 2], [3, 1, 2], [3, 1, 2], [3, 1, 2], [3, 1, 2]]
    assert [row[0][1] for row in rows] == [True, True, False, False, False]
    assert [row[2][1] for row in rows[:3]] == [True, False, False]


def test_play_gives_each_slot_its_own_action() -> None:
    """Actions go back to the slot whose observation asked for them: odd seeds act 1 and earn 2 per step."""

    def act(policy_input: PolicyInput) -> PolicyOutput:
        return PolicyOutput(policy_input.observation[:, 0].astype(np.int64) % 2)

    evaluation = _protocol(4).play(EvalPolicy(act), range(8))
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

    def act(policy_input: PolicyInput) -> PolicyOutput:
        acted.append(1)
        return _zeros(policy_input)

    assert _protocol(2).play(EvalPolicy(act), range(5, 10), is_stopped) is None
    assert len(acted) == 3


def test_play_hands_each_slot_its_own_recurrent_state_back() -> None:
    """A policy that counts its steps of an episode finds the count in its next input, reset by nobody else."""
    counts: list[list[float]] = []

    def act(policy_input: PolicyInput) -> PolicyOutput:
        memory = np.where(policy_input.is_first[:, None], np.float32(0), policy_input.recurrent_state) + np.float32(1)
        counts.append(memory[:, 0].tolist())
        return PolicyOutput(np.zeros(len(policy_input), np.int64), recurrent_state=memory)

    assert _protocol(2).play(EvalPolicy(act, recurrent_state_size=1), [0, 2, 1]) is not None
    # episodes of 1, 3 and 2 steps: the second slot's count continues when the first begins its next episode
    assert counts == [[1.0, 1.0], [1.0, 2.0], [2.0, 3.0]]


def test_play_tells_the_policy_what_it_did_and_got() -> None:
    """Each policy_input after the first of an episode has the last action and its raw reward."""
    seen: list[tuple[bool, int, float]] = []

    def act(policy_input: PolicyInput) -> PolicyOutput:
        seen.append(
            (bool(policy_input.is_first[0]), int(policy_input.last_action[0]), float(policy_input.last_reward[0]))
        )
        return PolicyOutput(np.ones(1, np.int64))

    assert _protocol(1).play(EvalPolicy(act), [2]) is not None
    assert seen == [(True, 0, 0.0), (False, 1, 2.0), (False, 1, 2.0)]


def test_environment_that_writes_to_its_actions_changes_none() -> None:
    """What a policy is told of its last step is what it chose."""
    seen: list[int] = []

    def act(policy_input: PolicyInput) -> PolicyOutput:
        seen.extend(policy_input.last_action.tolist())
        return PolicyOutput(np.ones(1, np.int64))

    EvalProtocol(lambda: OverwritingEnv(1), 1).play(EvalPolicy(act), range(1))
    assert len(seen) > 1
    assert set(seen[1:]) == {1}


def _epsilon(num_slots: int, epsilon: float, seeds: range) -> Evaluation:
    evaluation = _protocol(num_slots, period=50).play(EvalPolicy(_zeros, epsilon=epsilon, num_actions=2), seeds)
    assert evaluation is not None
    return evaluation


def test_play_takes_a_share_of_random_actions() -> None:
    """At epsilon .4 half of the random actions are 1: of 40 episodes' 1,020 steps a fifth, give or take."""
    evaluation = _epsilon(4, 0.4, range(40))
    share = (evaluation.returns - evaluation.lengths).sum() / evaluation.lengths.sum()
    assert share == pytest.approx(0.2, abs=0.05)
    assert _epsilon(4, 0.0, range(40)).returns.sum() == evaluation.lengths.sum()


def test_play_draws_random_actions_by_the_episodes_seed_alone() -> None:
    """However many slots there are, and whatever was played before, a seed's episode is the same."""
    alone = _epsilon(1, 0.5, range(10, 30))
    assert _epsilon(7, 0.5, range(10, 30)).returns.tolist() == alone.returns.tolist()
    assert _epsilon(7, 0.5, range(12, 20)).returns.tolist() == alone.returns.tolist()[2:10]


def test_play_draws_random_actions_among_the_legal_ones() -> None:
    """An environment that fails at an illegal action is played to its end by random actions alone."""
    settings = EnvSettings("tests.support.envs:masked", action_mask="info.action_mask")
    protocol = EvalProtocol(lambda: make_env(settings, 1, training=False), 3)
    evaluation = protocol.play(EvalPolicy(_zeros, epsilon=1.0, num_actions=4), range(20))
    assert evaluation is not None
    assert evaluation.lengths.tolist() == [6] * 20
    assert len(set(evaluation.returns)) > 1


def test_evaluation_names_its_seeds() -> None:
    """In the order of returns and lengths."""
    assert _play(_protocol(3), range(5, 9)).seeds == (5, 6, 7, 8)


class _FailingEnv(LineEnv):
    """Raises at the first step of seed 3, and in the reset of seed 5."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start, or fail."""
        if seed == 5:
            raise RuntimeError("seed 5 fails")
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Continue, or fail."""
        if self._seed == 3:
            raise RuntimeError("seed 3 fails")
        return super().step(action)


@pytest.mark.parametrize("num_slots", [1, 3])
def test_play_leaves_out_episodes_whose_environment_fails(num_slots: int) -> None:
    """The others are measured in a new environment; of the failed ones nothing counts."""
    protocol = EvalProtocol(lambda: GymnasiumVectorEnv(_FailingEnv, 1), num_slots)
    evaluation = _play(protocol, range(8))
    assert evaluation.seeds == (0, 1, 2, 4, 6, 7)
    assert evaluation.returns.tolist() == [1, 2, 3, 5, 7, 8]
    assert evaluation.failed == 2
    with pytest.raises(EpisodesFailed, match=r"seed [35] fails"):
        protocol.play(EvalPolicy(_zeros), [3, 5])


def test_play_survives_an_environment_that_cannot_be_made_again() -> None:
    """That episode is left out, too; the next one tries again."""
    made: list[int] = []

    def make() -> GymnasiumVectorEnv:
        made.append(len(made))
        if len(made) == 2:
            raise RuntimeError("no licence left")
        return GymnasiumVectorEnv(_FailingEnv, 1)

    protocol = EvalProtocol(make, 1)
    evaluation = _play(protocol, range(5))
    assert (evaluation.failed, evaluation.seeds) == (2, (0, 1, 2))
    assert len(made) == 2
    assert _play(protocol, range(3)).failed == 0


class _LeavingEnv(GymnasiumVectorEnv):
    """A batch that asks for the end of the process in the reset of seed 1 and in the first step of seed 3."""

    def __init__(self) -> None:
        super().__init__(LineEnv, 1)
        self._played = 0

    def reset(self, seed: int) -> NDArray[Any]:
        """Start, or leave."""
        self._played = seed
        if seed == 1:
            sys.exit(2)
        return super().reset(seed)

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Continue, or leave."""
        if self._played == 3:
            sys.exit(2)
        return super().step(action)


def test_play_leaves_out_episodes_whose_environment_asks_for_the_end_of_the_process() -> None:
    """The process is not the environment's own."""
    evaluation = _play(EvalProtocol(_LeavingEnv, 2), range(6))
    assert (evaluation.failed, evaluation.seeds) == (2, (0, 2, 4, 5))


class _UncountedEnv(GymnasiumVectorEnv):
    """A batch that names no episode that ended."""

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Leave them out."""
        return dataclasses.replace(super().step(action), episodes=())


class _CutEnv(_UncountedEnv):
    """One that cuts episodes and resets them in the same step."""

    def step(self, action: NDArray[Any]) -> VectorStep:
        """Reset where an episode ends."""
        step, false = super().step(action), np.zeros(1, np.bool_)
        return dataclasses.replace(
            step, terminated=false, truncated=step.terminated, is_first=step.terminated, is_reset_step=false
        )


@pytest.mark.parametrize("env", [_UncountedEnv, _CutEnv])
def test_play_ends_where_a_batch_names_no_episode_that_ended(env: type[_UncountedEnv]) -> None:
    """The message names what to fill, instead of one episode after another for ever."""
    protocol = EvalProtocol(lambda: env(LineEnv, 1), 2)
    with pytest.raises(EpisodesFailed, match=naming("VectorStep.episodes EpisodeSummary")):
        protocol.play(EvalPolicy(_zeros), range(3), is_stopped=iter([False] * 50 + [True]).__next__)


@pytest.mark.parametrize("error", [RuntimeError("no licence left"), SystemExit(2)])
def test_play_survives_a_first_environment_that_cannot_be_made(error: BaseException) -> None:
    """The episode that waits for it is left out; the next one tries again."""
    made: list[int] = []

    def make() -> GymnasiumVectorEnv:
        made.append(len(made))
        if len(made) == 1:
            raise error
        return GymnasiumVectorEnv(LineEnv, 1)

    evaluation = _play(EvalProtocol(make, 2), range(6))
    assert (evaluation.failed, evaluation.seeds, len(made)) == (1, (1, 2, 3, 4, 5), 3)


@pytest.mark.parametrize("error", [RuntimeError("no licence left"), ConfigError("env.id 'test': no licence left")])
@pytest.mark.parametrize("keeps_rows", [False, True])
def test_play_continues_in_fewer_slots_where_an_environment_cannot_be_made(keeps_rows: bool, error: Exception) -> None:
    """Those that work play every episode; one that fails later is left out, and its slot if there is no other."""
    made: list[int] = []

    def make() -> GymnasiumVectorEnv:
        made.append(len(made))
        if len(made) > 2:
            raise error
        return GymnasiumVectorEnv(_FailingEnv, 1)

    protocol = EvalProtocol(make, 3)
    policy = EvalPolicy(_zeros, keeps_rows=keeps_rows)
    evaluation = protocol.play(policy, [*range(3), *range(6, 23)])
    assert evaluation is not None
    assert (evaluation.failed, len(evaluation.returns), len(made)) == (0, 20, 3)
    evaluation = protocol.play(policy, [3, *range(6, 25)])
    assert evaluation is not None
    assert (evaluation.failed, len(evaluation.returns), len(made)) == (1, 19, 5)


def test_settings_without_an_environment_are_not_a_failed_episode() -> None:
    """Every episode would fail in the same way."""

    def make() -> GymnasiumVectorEnv:
        raise ConfigError("env.id is 'nothing'")

    with pytest.raises(ConfigError, match="nothing"):
        EvalProtocol(make, 2).play(EvalPolicy(_zeros), range(6))


def test_play_tells_how_many_episodes_have_ended() -> None:
    """Each end is told, also that of an episode that failed."""
    told: list[int] = []
    EvalProtocol(lambda: GymnasiumVectorEnv(_FailingEnv, 1), 2).play(
        EvalPolicy(_zeros), range(6), on_progress=told.append
    )
    assert told == sorted(told)
    assert told[-1] == 6


class _BrokenEnv(_FailingEnv):
    """Cannot be closed either, as a vector environment whose worker is dead."""

    def close(self) -> None:
        raise BrokenPipeError


def test_environment_that_cannot_be_closed_ends_nothing() -> None:
    """Neither when it is replaced nor when the last evaluation is over."""
    protocol = EvalProtocol(lambda: GymnasiumVectorEnv(_BrokenEnv, 1), 2)
    assert _play(protocol, range(6)).failed
    protocol.close()


@pytest.mark.parametrize("clips_rewards, seen", [(False, {0.0, 2.0}), (True, {0.0, 1.0})])
def test_policy_sees_rewards_as_in_training(clips_rewards: bool, seen: set[float]) -> None:
    """A recurrent policy that learned from their signs is asked with signs; the score is of the rewards."""
    rewards: set[float] = set()

    def act(policy_input: PolicyInput) -> PolicyOutput:
        rewards.update(policy_input.last_reward.tolist())
        return PolicyOutput(np.ones(len(policy_input), np.int64))

    protocol = EvalProtocol(lambda: GymnasiumVectorEnv(LineEnv, 1), 2)
    evaluation = protocol.play(EvalPolicy(act, clips_rewards=clips_rewards), range(2, 6))
    assert evaluation is not None
    assert evaluation.returns.tolist() == [2 * (1 + seed) for seed in range(2, 6)]
    assert rewards == seen
