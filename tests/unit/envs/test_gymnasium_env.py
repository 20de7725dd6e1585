"""Gymnasium environments, against loops written out here."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support import envs
from tests.support.envs import CountingEnv, FailingEnv
from tests.support.naming import naming
from tidemill.envs.checks import check_finite
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.interface import EpisodeSummary
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, FatalError, InvalidArgument

COUNTING = "tests.support.envs:counting"


def test_stream_of_a_terminating_episode_is_exact() -> None:
    """Two-step episodes give first, last and final observation steps in the order that windows rely on."""
    env = make_env(EnvSettings(COUNTING, {"length": 2}), 1, training=True)
    first = env.reset(0)
    steps = [env.step(np.array([1])) for _ in range(5)]
    assert first.tolist() == [[0, 0]]
    assert [step.observation[0].tolist() for step in steps] == [[0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert [float(step.reward[0]) for step in steps] == [1, 2, 0, 1, 2]
    assert [bool(step.terminated[0]) for step in steps] == [False, True, False, False, True]
    assert [bool(step.is_reset_step[0]) for step in steps] == [False, False, True, False, False]
    assert [bool(step.is_first[0]) for step in steps] == [False, False, True, False, False]
    assert [step.episodes for step in steps] == [
        (),
        (EpisodeSummary(0, 3.0, 2, terminated=True),),
        (),
        (),
        (EpisodeSummary(0, 3.0, 2, terminated=True),),
    ]


def test_truncated_episode_is_summarised_as_not_terminated() -> None:
    """A truncation sets `truncated` alone, and the summary says that the episode did not end by itself."""
    env = make_env(EnvSettings(COUNTING, {"length": 1, "end": "truncated"}), 2, training=True)
    env.reset(0)
    step = env.step(np.array([0, 0]))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert step.episodes == (
        EpisodeSummary(0, 1.0, 1, terminated=False),
        EpisodeSummary(1, 1.0, 1, terminated=False),
    )


@pytest.mark.parametrize("env_id", [COUNTING, "tests.support.envs:tidemill-tests/Counting-v0"])
def test_max_episode_steps_truncates_in_training_only(env_id: str) -> None:
    """Training is cut after `max_episode_steps`; evaluation continues to the environment's own end."""
    settings = EnvSettings(env_id, {"length": 6}, max_episode_steps=3)
    for training, length, terminated in ((True, 3, False), (False, 6, True)):
        env = make_env(settings, 1, training=training)
        env.reset(0)
        episodes = [episode for _ in range(6) for episode in env.step(np.array([0])).episodes]
        assert (episodes[0].length, episodes[0].terminated) == (length, terminated)


def test_max_evaluation_steps_truncates_in_evaluation_only() -> None:
    """Evaluation is cut after 3 decisions, and the cut is a truncation; training continues to the end."""
    settings = EnvSettings(COUNTING, {"length": 6}, max_evaluation_steps=3)
    for training, length, terminated in ((True, 6, True), (False, 3, False)):
        env = make_env(settings, 1, training=training)
        env.reset(0)
        episodes = [episode for _ in range(6) for episode in env.step(np.array([0])).episodes]
        assert (episodes[0].length, episodes[0].terminated) == (length, terminated)


def doubled(length: int = 2, *, training: bool) -> gymnasium.Env[Any, Any]:
    """An environment whose reward is doubled in training."""
    env = CountingEnv(length)
    return gymnasium.wrappers.TransformReward(env, lambda reward: 2 * float(reward)) if training else env


def doubled_batch(num_envs: int, *, training: bool) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """A batch of them."""
    return gymnasium.vector.SyncVectorEnv([partial(doubled, training=training)] * num_envs)


@pytest.mark.parametrize(
    "settings", [EnvSettings(f"{__name__}:doubled"), EnvSettings("d", vector=f"{__name__}:doubled_batch")]
)
def test_reward_is_shaped_in_training_alone(settings: EnvSettings) -> None:
    """What makes environments is told what they are for if it has a parameter `training`."""
    for training, episode_return in ((True, 6.0), (False, 3.0)):
        env = make_env(settings, 1, training=training)
        env.reset(0)
        episodes = [episode for _ in range(2) for episode in env.step(np.array([0])).episodes]
        assert [episode.episode_return for episode in episodes] == [episode_return]


def test_arguments_are_passed_over_the_purpose() -> None:
    """Whoever sets `training` among the arguments means it for both."""
    env = make_env(EnvSettings(f"{__name__}:doubled", {"training": True}), 1, training=False)
    env.reset(0)
    assert env.step(np.array([0])).reward[0] == 2.0


def test_limit_that_only_the_info_tells_is_a_truncation() -> None:
    """An older environment ends as terminated and says in its info that a time limit did it: the value continues."""
    env = make_env(EnvSettings(COUNTING, {"length": 1, "end": "told"}), 1, training=True)
    env.reset(0)
    step = env.step(np.array([0]))
    assert (bool(step.terminated[0]), bool(step.truncated[0])) == (False, True)
    assert not step.episodes[0].terminated


def test_registered_limit_of_the_environment_is_kept_by_default() -> None:
    """An environment registered with 7 steps at most is truncated there."""
    env = make_env(EnvSettings("tests.support.envs:tidemill-tests/Counting-v0", {"length": 50}), 1, training=True)
    env.reset(0)
    steps = [env.step(np.array([0])) for _ in range(7)]
    assert [bool(step.truncated[0]) for step in steps] == [False] * 6 + [True]


@pytest.mark.requires_box2d
def test_lander_equals_single_environments_stepped_by_hand() -> None:
    """Observations and returns are bit-equal to plain gymnasium environments with seeds s, s+1, s+2."""
    num_envs, num_steps, seed = 3, 700, 11
    actions = np.random.default_rng(1).uniform(-1, 1, (num_steps, num_envs, 2)).astype(np.float32)
    env = make_env(EnvSettings("LunarLanderContinuous-v3"), num_envs, training=True)
    first = env.reset(seed)
    steps = [env.step(action) for action in actions]
    for index in range(num_envs):
        observations, returns = lander_by_hand(seed + index, actions[:, index])
        ours = [first[index], *(step.observation[index] for step in steps)]
        assert np.array_equal(np.stack(ours), np.stack(observations))
        summaries = [e.episode_return for step in steps for e in step.episodes if e.env_index == index]
        assert summaries == returns
        assert len(returns) >= 3


def lander_by_hand(seed: int, actions: np.ndarray) -> tuple[list[np.ndarray], list[float]]:
    """Return the observations and the returns of one environment that is reset by the step after an end."""
    env = gymnasium.make("LunarLanderContinuous-v3")
    observation, _ = env.reset(seed=seed)
    observations, returns, total, ended = [observation], [], 0.0, False
    for action in actions:
        if ended:
            observation, _ = env.reset()
            total, ended = 0.0, False
        else:
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
            returns += [total] if ended else []
        observations.append(observation)
    return observations, returns


@pytest.mark.requires_box2d
def test_spec_of_lander_is_continuous_in_float32() -> None:
    """LunarLanderContinuous has 8 numbers to observe, 2 to act with, and no frame stack."""
    spec = make_env(EnvSettings("LunarLanderContinuous-v3"), 1, training=True).spec
    assert (spec.observation_shape, spec.observation_dtype, spec.frame_stack) == ((8,), "float32", 1)
    assert (spec.num_actions, spec.action_shape) == (0, (2,))


@pytest.mark.parametrize(
    "how, message",
    [
        ("raise", "environment 1 3 RuntimeError: the simulator broke"),
        (
            "observation",
            "1 3 observation nan nan",
        ),
        ("reward", "1 3 reward nan finite"),
        (
            "shape",
            "1 3 observation (1,) observation (2,)",
        ),
        ("huge", "1 3 reward inf"),
    ],
)
def test_failure_of_an_environment_is_told_with_its_place(how: str, message: str) -> None:
    """What goes wrong in one environment of a batch names that environment and the step of its episode."""
    envs = iter([CountingEnv(length=100), FailingEnv(3, how)])
    env = GymnasiumVectorEnv(lambda: next(envs), 2)
    env.reset(0)
    for _ in range(2):
        env.step(np.array([0, 0]))
    with pytest.raises(FatalError, match=naming(message)):
        env.step(np.array([0, 0]))


@pytest.mark.parametrize(
    "how, message",
    [
        ("raise", "0 0 RuntimeError"),
        ("observation", "0 0 observation"),
        ("shape", "observation (1,) observation (2,)"),
    ],
)
def test_failure_at_reset_is_told_with_its_place(how: str, message: str) -> None:
    """An environment that already fails at its first reset is named too."""
    env = make_env(EnvSettings("tests.support.envs:failing", {"step": 0, "how": how}), 2, training=True)
    with pytest.raises(FatalError, match=naming(message)):
        env.reset(0)


def test_large_observation_is_told_in_one_line() -> None:
    """What is wrong with it, not all of its numbers."""
    observation = np.zeros((2, 30, 40), np.float32)
    observation[1, 3, 4] = -np.inf
    with pytest.raises(FatalError) as raised:
        check_finite(observation, np.zeros(2), np.array([0, 7]))
    assert str(raised.value) == (
        "environment 1 at step 7 of its episode returned a non-finite observation: "
        "-inf at [3, 4], 1 of 1200 numbers; allowed: finite numbers"
    )


def test_continuous_actions_are_scaled_to_the_bounds() -> None:
    """-1 is the lower bound, 1 the upper one, 0 their middle; what lies outside is clipped."""
    env = make_env(EnvSettings("tests.support.envs:scaled"), 4, training=True)
    env.reset(0)
    step = env.step(np.array([[-1, -1], [1, 1], [0, 0.5], [-3, 3]], np.float32))
    assert step.observation.tolist() == [[0, -4], [10, -2], [5, -2.5], [0, -2]]
    assert step.observation.dtype == np.float32


def test_continuous_action_without_an_axis_has_one_in_the_spec() -> None:
    """As networks give it; the environment gets a number."""
    env = make_env(EnvSettings("tests.support.envs:scalar"), 2, training=True)
    env.reset(0)
    assert env.spec.action_shape == (1,)
    assert env.step(np.array([[-1], [0.5]], np.float32)).observation.tolist() == [[0], [7.5]]


def test_non_finite_action_is_refused() -> None:
    """NaN from a broken policy is blamed on the action, not on the environment."""
    env = make_env(EnvSettings("tests.support.envs:scaled"), 1, training=True)
    env.reset(0)
    with pytest.raises(InvalidArgument, match=naming("nan finite")):
        env.step(np.array([[np.nan, 0]], np.float32))


@pytest.mark.parametrize(
    "name, num_actions, action, arrives",
    [
        ("offset", 3, 0, [5]),
        ("offset", 3, 2, [7]),
        ("joint", 6, 0, [0, 10]),
        ("joint", 6, 2, [0, 12]),
        ("joint", 6, 4, [1, 11]),
        ("binary", 8, 6, [1, 1, 0]),
    ],
)
def test_discrete_action_arrives_in_the_spaces_own_terms(
    name: str, num_actions: int, action: int, arrives: list[int]
) -> None:
    """Offsets are added, and joint actions are the digits of a number, the last one fastest."""
    env = make_env(EnvSettings(f"tests.support.envs:{name}", joint_actions=True), 1, training=True)
    env.reset(0)
    assert env.spec.num_actions == num_actions
    assert env.step(np.array([action])).observation[0].tolist() == arrives


@pytest.mark.parametrize(
    "name, sizes, action, arrives",
    [
        ("joint", (2, 3), [1, 2], [1, 12]),
        ("binary", (2, 2, 2), [1, 0, 1], [1, 0, 1]),
        ("switchboard", (2,) * 60, [1, 0] * 30, [1, 0] * 30),
    ],
)
def test_choices_arrive_in_the_spaces_own_terms(
    name: str, sizes: tuple[int, ...], action: list[int], arrives: list[int]
) -> None:
    """Offsets are added and shapes restored; 2^60 combinations work."""
    env = make_env(EnvSettings(f"tests.support.envs:{name}"), 1, training=True)
    env.reset(0)
    spec = env.spec
    assert (spec.num_actions, spec.action_sizes, spec.action_shape) == (0, sizes, (len(sizes),))
    assert (spec.action_dtype, spec.is_discrete) == ("int64", False)
    assert env.step(np.array([action])).observation[0].tolist() == arrives


def test_choice_outside_the_space_is_refused() -> None:
    """With what each choice may be; and too many combinations are not enumerated."""
    env = make_env(EnvSettings("tests.support.envs:joint"), 1, training=True)
    env.reset(0)
    for wrong in ([0, 3], [-1, 0]):
        with pytest.raises(InvalidArgument, match=naming("0 [1, 2]")):
            env.step(np.array([wrong]))
    with pytest.raises(ConfigError, match=naming("1152921504606846976 env.joint_actions 65536")):
        make_env(EnvSettings("tests.support.envs:switchboard", joint_actions=True), 1, training=True)


def test_bools_are_the_discrete_actions_0_and_1() -> None:
    """A comparison, such as `observation[:, 2] > 0`, chooses them, whether N is the number of actions or not."""
    for num_envs in (2, 3):
        env = make_env(EnvSettings("tests.support.envs:offset"), num_envs, training=True)
        env.reset(0)
        assert env.step(np.ones(num_envs, np.bool_)).observation.tolist() == [[6]] * num_envs
    env = make_env(EnvSettings("tests.support.envs:binary"), 1, training=True)
    env.reset(0)
    assert env.step(np.array([[True, False, True]])).observation.tolist() == [[1, 0, 1]]


def test_actions_may_be_a_list() -> None:
    """It is taken as an array; one of another length is refused."""
    env = make_env(EnvSettings("tests.support.envs:offset"), 2, training=True)
    env.reset(0)
    assert env.step([2, 0]).observation.tolist() == [[7], [5]]  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=naming("(1,) (2,)")):
        env.step([2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, action, message",
    [
        ("offset", [0.7], "[0.7] integers 0 2"),
        ("offset", [np.nan], "[nan] integers 0 2"),
        ("joint", [[0.7, 1.0]], "[0.7, 1.0] integers 0 [1, 2]"),
        ("joint", [[0.0, np.nan]], "[0.0, nan] integers 0 [1, 2]"),
    ],
)
def test_discrete_action_that_is_not_an_integer_is_refused(name: str, action: list[Any], message: str) -> None:
    """It is not cut to an integer, and not blamed on the environment."""
    env = make_env(EnvSettings(f"tests.support.envs:{name}"), 1, training=True)
    env.reset(0)
    with pytest.raises(InvalidArgument, match=naming(message)):
        env.step(np.array(action))


@pytest.mark.parametrize("action", [-1, 3])
def test_discrete_action_outside_the_space_is_refused(action: int) -> None:
    """An action that does not exist is refused with its value and the range, instead of wrapping around."""
    env = make_env(EnvSettings("tests.support.envs:offset"), 1, training=True)
    env.reset(0)
    with pytest.raises(InvalidArgument, match=naming(f"actions [{action}] 0 2")):
        env.step(np.array([action]))


def test_flatten_makes_one_vector_of_a_dict() -> None:
    """A place of 3 and two speeds become five numbers, the place one-hot."""
    env = make_env(EnvSettings("tests.support.envs:dictionary", flatten=True), 1, training=True)
    assert env.spec.observation_shape == (5,)
    assert env.reset(0).tolist() == [[0, 1, 0, 0.5, -0.5]]


def test_flatten_makes_one_vector_of_a_nested_tuple() -> None:
    """A place of 3, one-hot, and the speed of a dict inside the tuple."""
    env = make_env(EnvSettings("tests.support.envs:pair", flatten=True), 1, training=True)
    assert env.reset(0).tolist() == [[0, 1, 0, 0.5]]


def test_observed_shows_some_numbers_of_a_vector_in_the_order_asked_for() -> None:
    """CartPole without its velocities, the angle first, in resets and steps alike."""
    whole = make_env(EnvSettings("CartPole-v1"), 2, training=True)
    part = make_env(EnvSettings("CartPole-v1", observation_indices=(2, 0)), 2, training=True)
    assert part.spec.observation_shape == (2,)
    np.testing.assert_array_equal(part.reset(5), whole.reset(5)[:, [2, 0]])
    for _ in range(3):
        action = np.array([0, 1])
        np.testing.assert_array_equal(part.step(action).observation, whole.step(action).observation[:, [2, 0]])


def test_observed_counts_positions_of_what_was_flattened() -> None:
    """The two speeds of a flattened dict."""
    env = make_env(
        EnvSettings("tests.support.envs:dictionary", flatten=True, observation_indices=(3, 4)), 1, training=True
    )
    assert env.reset(0).tolist() == [[0.5, -0.5]]


def test_flatten_makes_a_discrete_observation_one_hot() -> None:
    """Place 2 of 4 is (0, 0, 1, 0), in float32."""
    env = make_env(EnvSettings("tests.support.envs:place", flatten=True), 1, training=True)
    observation = env.reset(0)
    assert observation.tolist() == [[0, 0, 1, 0]]
    assert observation.dtype == np.float32


def test_image_stays_bytes() -> None:
    """An image of bytes is stored as it is, not as floats."""
    env = make_env(EnvSettings("tests.support.envs:image"), 1, training=True)
    assert (env.spec.observation_shape, env.spec.observation_dtype) == ((2, 3), "uint8")
    assert env.reset(0).tolist() == [[[0, 1, 2], [3, 4, 5]]]


def test_render_returns_a_picture_only_if_asked_for_when_made() -> None:
    """CartPole made with `render=True` shows 400x600 pixels; made without, nothing, and CountingEnv never."""
    env = make_env(EnvSettings("CartPole-v1"), 2, training=False, render=True)
    env.reset(0)
    picture = env.render(1)
    assert picture is not None
    assert picture.shape == (400, 600, 3)
    assert picture.dtype == np.uint8
    env.close()
    env.close()
    assert make_env(EnvSettings("CartPole-v1"), 1, training=False).render() is None
    assert make_env(EnvSettings(COUNTING), 1, training=False, render=True).render() is None


@pytest.mark.parametrize(
    "name, kwargs, draws",
    [("drawing", {}, True), ("drawing", {"mode": None}, False), ("drawing_if_asked", {}, True)],
)
def test_own_environment_needs_no_parameter_render_mode(name: str, kwargs: dict[str, Any], draws: bool) -> None:
    """It has pictures if it draws by itself; without them it can still be evaluated."""
    gymnasium.register("Drawing-v0", getattr(envs, name), kwargs=kwargs)
    try:
        for settings in (EnvSettings(f"tests.support.envs:{name}", kwargs), EnvSettings("Drawing-v0")):
            with closing(make_env(settings, 1, training=False, render=True)) as env:
                env.reset(0)
                assert (env.render() is not None) == draws
    finally:
        del gymnasium.registry["Drawing-v0"]


class _NoScreen(CountingEnv):
    """A simulator that cannot draw here."""

    render_mode = "rgb_array"

    def render(self) -> None:
        """Fail."""
        raise RuntimeError("no GL")


def test_picture_that_cannot_be_drawn_is_an_error_of_the_environment() -> None:
    """The message names it, so that the evaluator leaves out the video and still writes the result."""
    env = GymnasiumVectorEnv(_NoScreen, 1)
    env.reset(0)
    env.step(np.array([0]))
    with pytest.raises(FatalError, match=naming("environment 0 1 RuntimeError: no GL")):
        env.render()


def test_pictures_are_drawn_without_a_greeting_of_pygame() -> None:
    """Nothing is printed by what an environment imports to draw."""
    script = """
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
env = make_env(EnvSettings("CartPole-v1"), 1, training=False, render=True)
env.reset(seed=0)
assert env.render(0).ndim == 3
"""
    command = [sys.executable, "-c", script]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYGAME_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert done.stdout == ""
