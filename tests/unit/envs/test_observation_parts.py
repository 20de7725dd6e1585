"""Dict and Tuple observations: their parts, their columns, and stacks of observations other than images."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.naming import naming
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.make import make_env, spec_of
from tidemill.envs.observations import flattened, observation_format
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, FatalError, InvalidArgument
from tidemill.observation_parts import gather_observations, observation_columns, pack, packed, unpack
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.rl.transitions import transitions
from tidemill.simulator.wire import observed
from tidemill.types import Codec, ColumnSpec, EnvSpec, ObservationPart, signature_of

PARTS = "tests.support.envs:parts"
EXPECTED = (
    ObservationPart("body__0", "float32", (2,)),
    ObservationPart("body__1", "float32", (2,)),
    ObservationPart("camera", "uint8", (2, 3)),
)
SETTINGS = {
    "single": EnvSettings(PARTS),
    **{
        mode: EnvSettings(vector="tests.support.envs:parts_vector", kwargs={"mode": mode})
        for mode in ("NextStep", "SameStep", "Disabled")
    },
}


def test_spec_names_the_parts_and_the_signature_their_columns() -> None:
    """Vectors before images, each by name; discrete parts one-hot; images compressed."""
    spec = spec_of(EnvSettings(PARTS))
    assert spec.observation_parts == EXPECTED
    assert (spec.observation_shape, spec.observation_dtype, spec.is_image) == ((22,), "uint8", False)
    assert signature_of(spec)[:3] == (
        ColumnSpec("observation__body__0", "float32", (2,)),
        ColumnSpec("observation__body__1", "float32", (2,)),
        ColumnSpec("observation__camera", "uint8", (2, 3), Codec.LZ4),
    )
    assert signature_of(spec)[3].name == "action"


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_observations_of_an_episode_are_exact(settings: EnvSettings) -> None:
    """Every part of every step of two environments, the last observation and the next episode's first included."""
    env = make_env(settings, 2, training=True)
    seen = [env.reset(0), *(env.step(np.zeros(2, np.int64)).observation for _ in range(5))]
    for observation, step in zip(seen, (0, 1, 2, 3, 0, 1), strict=True):
        gear = int(step % 3 == 1)
        columns = observation_columns(env.spec.observation_parts, observation)
        assert columns["observation__body__0"].tolist() == [[step / 2, -1.5]] * 2
        assert columns["observation__body__1"].tolist() == [[1 - gear, gear]] * 2
        assert columns["observation__camera"].tolist() == [[[255 * gear, step, step], [step] * 3]] * 2
    env.close()


def test_one_step_of_several_environments_is_the_same_through_any_door() -> None:
    """Batched and single environments pack alike."""
    bytes_of = [make_env(settings, 2, training=True).reset(0).tolist() for settings in SETTINGS.values()]
    assert all(each == bytes_of[0] for each in bytes_of)


@pytest.mark.parametrize("rows", [(), (3,), (2, 3)])
def test_parts_survive_packing(rows: tuple[int, ...]) -> None:
    """Any axes before them; and gathered from columns they are the same bytes, whatever order the columns have."""
    rng = np.random.default_rng(0)
    values = {part.name: rng.integers(256, size=(*rows, *part.shape)).astype(part.dtype) for part in EXPECTED}
    observation = pack(EXPECTED, values, rows)
    assert observation.shape == (*rows, 22)
    assert observation.dtype == np.uint8
    for name, part in unpack(EXPECTED, observation).items():
        assert np.array_equal(part, values[name])
    if len(rows) == 1:
        columns = observation_columns(EXPECTED, observation)
        index = np.array([[2, 0], [1, 1]])
        found = gather_observations({"action": np.zeros(3), **dict(reversed(columns.items()))}, index)
        assert np.array_equal(found, observation[index])


def test_nested_observation_is_packed_like_the_environments() -> None:
    """Of one environment and of several; bytes pass as they are; what is missing is named."""
    nested: dict[str, Any] = {"camera": np.ones((2, 3), np.uint8), "body": (np.array([1.0, 2.0]), np.array([0, 1]))}
    single = packed(EXPECTED, nested)
    assert single.shape == (22,)
    batch = {"camera": np.ones((4, 2, 3), np.uint8), "body": (np.full((4, 2), [1.0, 2.0]), np.full((4, 2), [0, 1]))}
    assert np.array_equal(packed(EXPECTED, batch), np.stack([single] * 4))
    assert packed(EXPECTED, single) is single
    with pytest.raises(InvalidArgument, match=naming("['camera'] ['body__0', 'body__1', 'camera']")):
        packed(EXPECTED, {"camera": nested["camera"]})
    with pytest.raises(InvalidArgument, match=naming("'camera' observation (2,) (2, 3)")):
        packed(EXPECTED, nested | {"camera": np.zeros(2)})


def test_list_or_array_is_taken_for_a_tuple() -> None:
    """As `Tuple.contains` of gymnasium does; also in the observations that a policy or a simulator gets."""
    body = spaces.Tuple((spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)))
    vector = np.array([1.0, 2.0], np.float32)
    for space, given, as_tuple in (
        (body, [vector, 1], (vector, 1)),
        (spaces.Dict(body=body), {"body": [vector, 1]}, {"body": (vector, 1)}),
        (spaces.Tuple([spaces.Discrete(2)] * 2), [1, 0], (1, 0)),
        (spaces.Dict(gears=spaces.Tuple([spaces.Discrete(2)] * 2)), {"gears": np.array([1, 0])}, {"gears": (1, 0)}),
    ):
        assert space.contains(given)
        seen = observation_format(space)
        row = seen.pack(as_tuple)
        assert np.array_equal(seen.pack(given), row)
        assert np.array_equal(packed(seen.parts, given, seen.part_spaces), row)
        assert np.array_equal(packed(seen.parts, [row, row], seen.part_spaces), [row, row])
    spec = EnvSpec((16,), "uint8", num_actions=2, observation_parts=observation_format(body).parts)
    assert np.array_equal(observed([vector, [0, 1]], spec), observation_format(body).pack((vector, 1)))


def test_number_that_is_not_finite_is_told_with_its_part() -> None:
    """The environment, the step and the part."""
    env = make_env(EnvSettings(PARTS, {"nan_step": 2}), 2, training=True)
    env.reset(0)
    env.step(np.zeros(2, np.int64))
    with pytest.raises(FatalError, match=naming("environment 0 2 observation.body__0 [ 1. nan]")):
        env.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    "part, message",
    [
        ({"a": spaces.Sequence(spaces.Discrete(2))}, "'a'"),
        (
            {"a.b": spaces.Discrete(2), "a_b": spaces.Discrete(2)},
            "'a_b'",
        ),
        ({"a" * 60: spaces.Discrete(2)}, "[a-z0-9_]{1,50}"),
    ],
)
def test_parts_that_cannot_be_stored_are_refused(part: dict[str, gymnasium.Space[Any]], message: str) -> None:
    """With the part and the reason."""
    with pytest.raises(ConfigError, match=naming(message)):
        observation_format(spaces.Dict(part))


class _Wrong(gymnasium.Env[Any, np.int64]):
    """Leaves a part of its observation out."""

    observation_space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed, options=options)
        return {"a": 1}, {}


def test_missing_part_is_told_with_its_place() -> None:
    """Which parts came, and which are allowed."""
    with pytest.raises(FatalError, match=naming("environment 0 0 observation ['a'] ['a', 'b']")):
        GymnasiumVectorEnv(_Wrong, 1).reset(0)


def test_stack_of_vectors_is_what_the_learner_rebuilds() -> None:
    """The policy sees the newest two observations, an episode's first one twice; the learner gathers the same."""
    settings = EnvSettings("tests.support.envs:counting", {"length": 3}, observation_stack=2)
    env = make_env(settings, 1, training=True)
    assert env.spec.frame_stack == 2
    builder, rows, stacks = PolicyInputBuilder(1, env.spec, 0), [], []
    observation, is_first = env.reset(0), np.ones(1, np.bool_)
    for _ in range(9):
        stacks.append(builder.build(observation, is_first).observation.copy())
        step = env.step(np.zeros(1, np.int64))
        rows.append((observation[0], 0, step.reward[0], step.terminated[0], step.truncated[0], is_first[0]))
        observation, is_first = step.observation, step.is_first
    assert stacks[0][0].tolist() == [[0, 0], [0, 0]]
    assert stacks[2][0].tolist() == [[0, 1], [0, 2]]
    assert stacks[4][0].tolist() == [[1, 0], [1, 0]]
    names = ("observation", "action", "reward", "terminated", "truncated", "is_first")
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    index = np.array([[max(row - 1, 0), row, row + 1] for row in range(8)])
    batch = transitions(columns, index, 2, 1, 0.9)
    for row in range(8):
        assert batch["observation"][row].tolist() == stacks[row][0].tolist()


def test_stack_setting_is_for_others_than_our_games() -> None:
    """They have their own; and 17 are too many."""
    with pytest.raises(ConfigError, match=naming("1 ALE/ env.frame_stack")):
        EnvSettings("ALE/Pong", observation_stack=2)
    with pytest.raises(ConfigError, match=naming("observation_stack 17 1 16")):
        EnvSettings(PARTS, observation_stack=17)


class _Mission(spaces.Space[str]):
    """A space of somebody's own, as that of minigrid's missions: it says nothing of its size."""

    def __init__(self) -> None:
        super().__init__(dtype=str)


class _WithText(gymnasium.Env[Any, Any]):
    """Observes a picture, a direction and, in words, what to do."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "direction": spaces.Discrete(4), "mission": _Mission()}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start again."""
        return {"image": np.ones((7, 7, 3), np.uint8), "direction": 2, "mission": "get to the green goal"}, {}


def test_text_of_an_observation_is_left_out() -> None:
    """Whatever its space is; what acts outside of a run may pass it all the same."""
    env = GymnasiumVectorEnv(_WithText, 2)
    assert env.texts == ("mission",)
    assert [part.name for part in env.spec.observation_parts] == ["direction", "image"]
    seen = env.reset(0)
    nested, _ = _WithText().reset()
    one_hot = {**nested, "direction": np.array([0, 0, 1, 0], np.float32)}
    np.testing.assert_array_equal(packed(env.spec.observation_parts, one_hot), seen[0])


def test_space_of_somebodys_own_is_refused_in_a_line() -> None:
    """By the setting that would flatten it, too."""
    with pytest.raises(ConfigError, match=naming("env.flatten")):
        flattened(_WithText())
