"""Episodes that clients play, as rows: equal to those of an actor, and never more than was seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.naming import naming
from tidemill.errors import InvalidArgument
from tidemill.inference.wire import Answer
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import SplitPolicy
from tidemill.rl.agents.on_policy import ActorCriticPolicy
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig, PQNConfig
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import AgentConfig, extra_columns_of
from tidemill.services.inference.episode import Episode, Row
from tidemill.simulator.wire import SeenStep
from tidemill.types import ColumnSpec, EnvSpec

_SPEC = EnvSpec((1,), "float32", num_actions=3, frame_stack=2)
_DQN = DQNConfig(network="mlp", hidden_sizes=(4,))


def _episode(first_step: int = 0) -> Episode:
    return Episode(_SPEC, 0, (), first_step)


def _seen(step: int, **others: object) -> SeenStep:
    return SeenStep(step, np.array([step], np.float32), reward=float(step), **others)  # type: ignore[arg-type]


def _play(episode: Episode, *steps: SeenStep, algorithm: AgentConfig = _DQN, spec: EnvSpec = _SPEC) -> list[Row]:
    policy = build_policy(algorithm, spec)
    assert isinstance(policy, SplitPolicy)
    rows: list[Row] = []
    for seen in steps:
        acted = None
        if (policy_input := episode.see(seen)) is not None:
            arrays = {name: tensor.numpy() for name, tensor in policy.forward(policy_input).items()}
            acted = episode.act(seen, policy_input, Answer(3, 0, 0, arrays), policy, env_steps=0)
        rows += episode.advance(seen, acted)
    return rows


def _told(rows: list[Row]) -> list[tuple[float, float, str]]:
    """Return observation, reward and flags of each row: first, terminated, truncated, reset."""
    found = []
    for row in rows:
        names = ("is_first", "terminated", "truncated")
        flags = "".join(name[3 if name == "is_first" else 1] for name in names if row.columns[name])
        flags += "" if row.is_decision else "-"
        found.append((float(row.columns["observation"][0]), float(row.columns["reward"]), flags))
    return found


def test_terminated_episode_has_a_row_for_each_decision_and_its_last_observation() -> None:
    """Each holds the reward that its action brought; the last observation is not acted on, but may be a goal."""
    rows = _play(_episode(), _seen(0), _seen(1), _seen(2), _seen(3, terminated=True))
    assert _told(rows) == [(0.0, 1.0, "f"), (1.0, 2.0, ""), (2.0, 3.0, "e"), (3.0, 0.0, "-")]
    assert {row.params_version for row in rows} == {3}
    assert rows[-1].beside["is_reset_step"]
    assert rows[-1].beside.keys() == rows[0].beside.keys()


def test_every_action_is_legal_at_the_last_observation_of_a_terminated_episode() -> None:
    """The client sends no mask there, and nothing is chosen."""
    spec = EnvSpec((1,), "float32", num_actions=3, frame_stack=2, masks_actions=True)
    mask = np.array([True, False, True])
    rows = _play(Episode(spec, 0, ()), _seen(0, action_mask=mask), _seen(1, terminated=True), spec=spec)
    assert _told(rows) == [(0.0, 1.0, "fe"), (1.0, 0.0, "-")]
    assert [row.columns["action_mask"].tolist() for row in rows] == [mask.tolist(), [True] * 3]


def test_truncated_episode_ends_with_its_last_observation() -> None:
    """As rows of an actor do: learners bootstrap from it."""
    rows = _play(_episode(), _seen(0), _seen(1), _seen(2, truncated=True))
    assert _told(rows) == [(0.0, 1.0, "f"), (1.0, 2.0, "r"), (2.0, 0.0, "-")]
    assert rows[-1].beside["is_reset_step"]
    assert rows[-1].beside.keys() == rows[0].beside.keys()


def test_client_that_is_gone_leaves_a_truncated_episode() -> None:
    """Of what it was seen to do, the last whole step is where it is cut, and nothing is made up."""
    episode = _episode()
    rows = _play(episode, _seen(0), _seen(1), _seen(2))
    assert _told(rows) == [(0.0, 1.0, "f")]  # the newest complete row waits
    assert _told(episode.abandon()) == [(1.0, 2.0, "r"), (2.0, 0.0, "-")]
    assert episode.is_over
    assert episode.abandon() == []


def test_client_that_is_gone_after_one_observation_leaves_nothing() -> None:
    """It has done nothing whose outcome is known."""
    episode = _episode()
    assert _play(episode, _seen(0)) == []
    assert episode.abandon() == []


def test_continued_episode_begins_a_stream_behind_what_is_stored() -> None:
    """Its first step stands first, as the stacks of the learner have it; the reward before it is stored already."""
    rows = _play(_episode(5), _seen(5), _seen(6), _seen(7, terminated=True))
    assert _told(rows) == [(5.0, 6.0, "f"), (6.0, 7.0, "e"), (7.0, 0.0, "-")]


def test_clipped_rewards_are_learned_from_and_seen_but_not_counted() -> None:
    """As in an actor's Atari games: the policy gets their signs, the return is the client's."""
    episode = Episode(_SPEC, 0, (), clips_rewards=True)
    rows = _play(episode, _seen(0), _seen(1), _seen(2))
    policy_input = episode.see(_seen(3))
    assert policy_input is not None
    assert policy_input.last_reward.tolist() == [1.0]
    rows += episode.abandon()
    assert [reward for _, reward, _ in _told(rows)] == [1.0, 1.0, 0.0]
    assert episode.episode_return == 6.0


def test_step_out_of_order_is_refused() -> None:
    """By its number, and nothing changes."""
    episode = _episode()
    _play(episode, _seen(0))
    for wrong in (0, 2):
        with pytest.raises(InvalidArgument, match=naming("step", wrong, 1)):
            episode.see(_seen(wrong))
    assert _told(_play(episode, _seen(1, terminated=True))) == [(0.0, 1.0, "fe"), (1.0, 0.0, "-")]


def test_reported_action_is_stored_with_its_own_priority_inputs() -> None:
    """In the place of the policy's choice, whose parameters then have no part in it."""
    row, _ = _play(_episode(), _seen(0, reported=np.array(2)), _seen(1, terminated=True))
    assert row.columns["action"] == 2
    assert row.params_version == 0
    policy = build_policy(_DQN, _SPEC)
    assert isinstance(policy, SplitPolicy)
    stack = np.zeros((1, 2, 1), np.float32)
    none = np.zeros(1, np.float32)
    seen = PolicyInput(stack, np.ones(1, bool), np.zeros(1, np.int64), none, np.zeros((1, 0), np.float32))
    numbers = policy.forward(seen)["q"]
    torch.testing.assert_close(torch.from_numpy(row.beside["chosen"]), numbers[0, 2])


_BOX = EnvSpec((1,), "float32", action_shape=(2,), frame_stack=2)
_CHOICES = EnvSpec((1,), "float32", action_shape=(2,), action_sizes=(2, 3), frame_stack=2)


_MLP: dict[str, Any] = {"network": "mlp", "hidden_sizes": (4,)}


@pytest.mark.parametrize(
    "config, spec, action",
    [
        (PPOConfig(**_MLP), _SPEC, 2),
        (PPOConfig(**_MLP), _BOX, [0.25, -0.5]),
        (PPOConfig(**_MLP), _CHOICES, [1, 2]),
        (IMPALAConfig(**_MLP), _SPEC, 2),
        (PQNConfig(**_MLP), _SPEC, 2),
    ],
)
def test_reported_action_is_stored_by_an_algorithm_of_rollouts(
    config: AgentConfig, spec: EnvSpec, action: int | list[float]
) -> None:
    """Of a policy with probabilities with that of the action, as a simulator of a restarted service repeats it."""
    reported = np.array(action, spec.action_dtype)
    episode = Episode(spec, 0, extra_columns_of(config, spec))
    steps = (_seen(0, reported=reported), _seen(1, terminated=True))
    row, _ = _play(episode, *steps, algorithm=config, spec=spec)
    assert row.columns["action"].tolist() == action
    policy = build_policy(config, spec)
    if isinstance(policy, ActorCriticPolicy):
        stack, none = np.zeros((1, 2, 1), np.float32), np.zeros(1, np.float32)
        seen = PolicyInput(stack, np.ones(1, bool), np.zeros(1, np.int64), none, np.zeros((1, 0), np.float32))
        numbers = policy.forward(seen)
        distribution = policy._network.with_legal(numbers["head"], None, numbers.get("log_std"))
        expected = distribution.log_prob(torch.from_numpy(reported[None]))
        torch.testing.assert_close(torch.from_numpy(row.columns["log_prob"][None]), expected)


def test_reported_action_that_is_not_legal_is_refused_by_a_policy_with_probabilities() -> None:
    """Its probability is 0, from which nothing can be learned."""
    spec = EnvSpec((1,), "float32", num_actions=3, frame_stack=2, masks_actions=True)
    config = PPOConfig(**_MLP)
    episode = Episode(spec, 0, extra_columns_of(config, spec))
    seen = _seen(0, reported=np.array(2), action_mask=np.array([True, True, False]))
    with pytest.raises(InvalidArgument, match=naming("action [2] mask")):
        _play(episode, seen, algorithm=config, spec=spec)


class _Handing:
    """A policy that hands out the stack that it saw."""

    def choose(self, policy_input: PolicyInput, numbers: object, env_steps: int) -> PolicyOutput:
        """Return action 0."""
        seen = policy_input.observation
        return PolicyOutput(np.zeros(1, np.int64), priority_inputs={"stack": seen}, extras={"newest": seen[:, -1]})


def test_row_has_what_its_own_policy_saw() -> None:
    """It is made when the next step has written over the stack."""
    episode, policy, rows = Episode(_SPEC, 0, (ColumnSpec("newest", "float32", (1,)),)), _Handing(), []
    for seen in (_seen(0), _seen(1), _seen(2), _seen(3, terminated=True)):
        policy_input, acted = episode.see(seen), None
        if policy_input is not None:
            acted = episode.act(seen, policy_input, Answer(3, 0, 0, {}), policy, env_steps=0)  # type: ignore[arg-type]
        rows += episode.advance(seen, acted)
    assert [row.columns["newest"].tolist() for row in rows[:3]] == [[0.0], [1.0], [2.0]]
    assert [row.beside["stack"].tolist() for row in rows[:3]] == [[[0.0], [0.0]], [[0.0], [1.0]], [[1.0], [2.0]]]


def test_evaluation_stores_nothing() -> None:
    """It is played by the action that the answer holds."""
    episode = _episode()
    seen = _seen(0, evaluate=True)
    policy_input = episode.see(seen)
    assert policy_input is not None
    answer = Answer(3, 0, 0, {"action": np.array([1.0], np.float32)})
    policy = build_policy(_DQN, _SPEC)
    assert isinstance(policy, SplitPolicy)
    acted = episode.act(seen, policy_input, answer, policy, env_steps=0)
    assert acted.output.action.tolist() == [1]
    assert acted.output.action.dtype == np.int64
    assert episode.advance(seen, acted) == []
    assert episode.see(_seen(1, terminated=True)) is None
    assert episode.advance(_seen(1, terminated=True), None) == []
    assert (episode.is_over, episode.episode_return) == (True, 1.0)
