"""Relabelled transitions against a definition one step at a time, and the distribution of the goals that are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.distribution import fits
from tidemill.config.load import load_config
from tidemill.observation_parts import unpack
from tidemill.replay.codec import window_index
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.hindsight import ACHIEVED, DESIRED, Draws, HindsightAgent, relabelled
from tidemill.rl.transitions import transitions
from tidemill.types import EnvSpec, ObservationPart, WindowSpec

Array = NDArray[Any]
GAMMA, STREAM_GOAL = 0.9, -1.0

PARTS = tuple(ObservationPart(name, "float32", (1,)) for name in ("achieved_goal", "desired_goal", "observation"))
SPEC = EnvSpec((12,), "uint8", num_actions=3, observation_parts=PARTS)


class Distances:
    """Rewards minus the distance of two goals; their equality ends an episode if `ends`."""

    def __init__(self, *, ends: bool = True) -> None:
        self._ends = ends

    def reward(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Return minus the distances, [B]."""
        assert len(achieved) == len(desired) > 0
        return np.asarray(-np.abs(achieved - desired)[:, 0], np.float32)

    def terminated(self, achieved: Array, desired: Array) -> NDArray[np.bool_] | None:
        """Return a mask of the equal ones, [B]."""
        return np.asarray((achieved == desired)[:, 0]) if self._ends else None


class Given(Draws):
    """Draws that a test chose, as shares of 1."""

    def __init__(self, chance: Array, step: Array) -> None:
        self._chance, self._step = chance, step

    def draw(self, content: Array, later: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the chances, and the steps by their share of those to draw from."""
        return self._chance, (self._step * later).astype(np.int64)


def stream(plan: list[tuple[int, str]]) -> dict[str, Array]:
    """Return the rows of episodes of so many actions; row t observes and achieves t, and its reward is 1000 + t."""
    first, terminated, truncated = [], [], []
    for length, end in plan:
        final = [False] * (end != "lost_life")  # the final observation step
        first += [True] + [False] * (length - 1) + final
        terminated += [False] * (length - 1) + [end != "truncated"] + final
        truncated += [False] * (length - 1) + [end == "truncated"] + final
    rows = np.arange(len(first), dtype=np.float32)
    return {
        "observation__observation": rows[:, None],
        ACHIEVED: rows[:, None],
        DESIRED: np.full((len(rows), 1), STREAM_GOAL, np.float32),
        "action": np.arange(len(rows)) % 3,
        "reward": 1000 + rows,
        "terminated": np.array(terminated),
        "truncated": np.array(truncated),
        "is_first": np.array(first),
    }


def windows(columns: dict[str, Array], history: int, steps: int) -> NDArray[np.int64]:
    """Return the rows of every item of a stream, none of which starts at a final observation step."""
    count = len(columns["action"])
    ended = columns["terminated"] | columns["truncated"]
    final = np.r_[False, ended[:-1]] & ~columns["is_first"]
    starts = np.array([start for start in range(count - steps) if not final[start]], np.int64)
    return np.asarray(np.maximum(starts[:, None] + np.arange(-history, steps + 1), 0))


def later_rows(columns: dict[str, Array], rows: list[int], history: int) -> list[int]:
    """Return the rows of an item whose goals may be taken: those after its action, to the end of the episode."""
    found = []
    for row in rows[history + 1 :]:
        if columns["is_first"][row]:
            break
        found.append(row)
    return found


ends = st.sampled_from(["terminated", "truncated", "lost_life"])
plans = st.lists(st.tuples(st.integers(1, 6), ends), min_size=4, max_size=8)


@settings(max_examples=150, deadline=None)
@given(plans, st.integers(1, 3), st.integers(1, 8), st.booleans(), st.integers(0, 1000))
def test_relabelled_batch_equals_a_reading_step_by_step(
    plan: list[tuple[int, str]], frame_stack: int, steps: int, ends: bool, seed: int
) -> None:
    """The goal of each chosen item in both observations and all of their stacks, its reward, its end; no other change.

    The observation's other parts, and the action, are those of the stream. A transition whose next observation is not
    stored keeps all it had.
    """
    columns, history = stream(plan), frame_stack - 1
    before = {name: column.copy() for name, column in columns.items()}
    index = windows(columns, history, steps)
    if not len(index):
        return
    rng = np.random.default_rng(seed)
    chance, share = rng.random(len(index)), rng.random(len(index))
    goals = Distances(ends=ends)
    rows = relabelled(columns, index, history, goals, 0.8, Given(chance, share))
    batch = transitions(*rows, frame_stack, 1, GAMMA)
    plain = transitions(columns, index[:, : history + 2], frame_stack, 1, GAMMA)
    for i, window in enumerate(index.tolist()):
        start, found = window[history], later_rows(columns, window, history)
        seen, after = (unpack(PARTS, batch[name][i]) for name in ("observation", "bootstrap_observation"))
        reward, goal = float(columns["reward"][start]), STREAM_GOAL
        terminated = bool(columns["terminated"][start])
        if chance[i] < 0.8 and found:
            goal = float(found[int(share[i] * len(found))])
            reward = -abs(goal - (start + 1))
            terminated = goal == start + 1 if ends else terminated
        assert (seen["desired_goal"] == goal).all()
        assert (after["desired_goal"] == goal).all()
        assert batch["n_step_return"][i] == reward
        assert batch["bootstrap_discount"][i] == pytest.approx(0 if terminated else GAMMA)
        for name, parts in (("observation", seen), ("bootstrap_observation", after)):
            expected = unpack(PARTS, plain[name][i])
            np.testing.assert_array_equal(parts["observation"], expected["observation"])
            np.testing.assert_array_equal(parts["achieved_goal"], expected["achieved_goal"])
    np.testing.assert_array_equal(batch["action"], plain["action"])
    for name, column in columns.items():
        np.testing.assert_array_equal(column, before[name])


def test_relabelled_batch_by_hand() -> None:
    """Rows 0 to 3 are an episode of three actions, cut; its last observation is row 3; rows 4 and on are the next one.

    From row 0 a goal of row 2 is 1 away from what was achieved, row 1, and the item continues; from row 2 only row 3 is
    left, which it achieved: reward 0, and the cut episode ends. The third item is not chosen.
    """
    columns = stream([(3, "truncated"), (6, "truncated")])
    index = np.array([[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [1, 2, 3, 4, 5]])
    draws = Given(np.array([0.79, 0.0, 0.8]), np.array([0.5, 0.99, 0.0]))
    batch = transitions(*relabelled(columns, index, 0, Distances(), 0.8, draws), 1, 1, GAMMA)
    assert batch["n_step_return"].tolist() == [-1.0, 0.0, 1001.0]
    assert batch["bootstrap_discount"].tolist() == pytest.approx([0.9, 0.0, 0.9])
    assert unpack(PARTS, batch["observation"])["desired_goal"].tolist() == [[2.0], [3.0], [STREAM_GOAL]]
    assert unpack(PARTS, batch["bootstrap_observation"])["desired_goal"].tolist() == [[2.0], [3.0], [STREAM_GOAL]]
    assert unpack(PARTS, batch["bootstrap_observation"])["observation"].tolist() == [[1.0], [3.0], [2.0]]


@pytest.mark.parametrize("length", [2, 3, 5])
def test_shorter_item_takes_goals_from_its_rows_alone(length: int) -> None:
    """A row that is repeated, in front or behind, is neither a step nor another goal."""
    columns = stream([(3, "truncated"), (4, "terminated"), (6, "truncated")])
    starts = np.array([0, 1, 2, 4, 5, 9])
    share = np.random.default_rng(0).random(len(starts))
    draws = Given(np.zeros(len(starts)), share)
    padded = window_index(starts, np.full(len(starts), length), 9, len(columns["action"]))
    found, found_rows = relabelled(columns, padded, 0, Distances(), 0.8, draws)
    whole = starts[:, None] + np.arange(length)
    expected, expected_rows = relabelled(columns, whole, 0, Distances(), 0.8, draws)
    np.testing.assert_array_equal(found_rows, expected_rows)
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column)


def test_goals_are_drawn_uniformly_from_the_rest_of_the_episode() -> None:
    """By chi-square, for 1 to 8 later observations; four of five items get one, and none is of the next episode."""
    columns, count = stream([(8, "truncated"), (30, "truncated")]), 4000
    draws = Draws(seed=3, batch_size=count)
    for start in range(8):
        index = np.tile(np.arange(start, start + 13), (count, 1))
        rows, _ = relabelled(columns, index, 0, Distances(), 0.8, draws)
        goals = rows[DESIRED].reshape(count, 2)[:, 0]
        changed = goals[goals != STREAM_GOAL]
        assert fits([len(changed), count - len(changed)], [0.8, 0.2])
        last = 8 - start
        seen = np.bincount(changed.astype(int), minlength=9)
        assert seen[: start + 1].sum() == 0
        assert seen[9:].sum() == 0
        if last > 1:
            assert fits(seen[start + 1 : 9], np.full(last, 1 / last))


def test_draws_depend_on_the_batch_alone() -> None:
    """Not on what is decoded with it or was before; other seeds and other batches draw others."""
    draws, later = Draws(seed=1, batch_size=64), np.full(128, 1000)
    content = np.arange(128, dtype=np.float32)
    together = draws.draw(content, later)
    apart = draws.draw(content[64:], later[64:])
    np.testing.assert_array_equal(together[0][64:], apart[0])
    np.testing.assert_array_equal(together[1][64:], apart[1])
    assert (together[1][:64] != apart[1]).any()
    assert (Draws(seed=2, batch_size=64).draw(content, later)[1] != together[1]).any()
    assert (draws.draw(content + 1, later)[1] != together[1]).any()


CONTINUOUS = EnvSpec((12,), "uint8", action_shape=(2,), observation_parts=PARTS)
AGENTS: list[tuple[EnvSpec, dict[str, Any]]] = [
    (SPEC, {"algorithm": "dqn", "n_step": 1, "network": "mlp", "dueling": False, "hidden_sizes": [8]}),
    (SPEC, {"algorithm": "sac_discrete", "hidden_sizes": [8]}),
    (CONTINUOUS, {"algorithm": "sac", "hidden_sizes": [8]}),
    (CONTINUOUS, {"algorithm": "sac", "hidden_sizes": [8], "quantiles": 5}),
    (CONTINUOUS, {"algorithm": "td3", "hidden_sizes": [8]}),
    (CONTINUOUS, {"algorithm": "ddpg", "n_step": 1, "actor_sizes": [8], "critic_sizes": [8, 8]}),
    (CONTINUOUS, {"algorithm": "d4pg", "n_step": 1, "actor_sizes": [8], "critic_sizes": [8, 8]}),
]


@pytest.mark.parametrize("spec, agent", AGENTS, ids=["dqn", "sac_discrete", "sac", "tqc", "td3", "ddpg", "d4pg"])
def test_every_algorithm_of_single_transitions_learns_from_relabelled_ones(
    spec: EnvSpec, agent: dict[str, Any]
) -> None:
    """Its batch has the columns, shapes and dtypes it always has; parameters change, are published and restored."""
    config = load_config({"agent": agent, "table": {"hindsight": 0.8}}).agent
    inner, plain = build_agent(config, spec, seed=1), build_agent(config, spec, seed=1)
    wrapped = HindsightAgent(inner, WindowSpec(0, 5), Distances(), 1.0, Draws(0, 16))
    columns = stream([(4, "truncated"), (3, "terminated"), (20, "truncated")])
    if not spec.num_actions:
        columns["action"] = np.zeros((len(columns["action"]), 2), np.float32)
    index = windows(columns, 0, 5)[:16]
    batch, usual = wrapped.decode(columns, index), plain.decode(columns, index[:, :2])
    assert {name: (column.shape, column.dtype) for name, column in batch.items()} == {
        name: (column.shape, column.dtype) for name, column in usual.items()
    }
    goals = unpack(PARTS, batch["observation"])["desired_goal"]
    assert (goals != STREAM_GOAL).all()
    tensors = {name: torch.from_numpy(column) for name, column in batch.items()}
    update = wrapped.update(tensors, torch.ones(len(index)))
    assert torch.isfinite(update.priority).all()
    restored = HindsightAgent(build_agent(config, spec, seed=2), WindowSpec(0, 5), Distances(), 1.0, Draws(0, 16))
    restored.load_state_dict(wrapped.state_dict())
    published, again = wrapped.policy_state(), restored.policy_state()
    assert all(torch.equal(published[name], again[name]) for name in published)
    first = plain.policy_state()
    assert any(not torch.equal(published[name], first[name]) for name in first)
