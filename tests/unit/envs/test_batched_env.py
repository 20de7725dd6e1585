"""Batches that a simulator of the user's steps at once: the streams they make are those of single environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from tests.support.envs import CountingEnv, EchoEnv, FailingEnv, PartsEnv
from tests.support.naming import naming
from tidemill.envs.batched_env import BatchedEnv
from tidemill.envs.gymnasium_env import GymnasiumVectorEnv
from tidemill.envs.interface import VectorEnv, VectorStep
from tidemill.envs.make import make_env, spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, EnvFailed, FatalError
from tidemill.observation_parts import leaves
from tidemill.rl.transitions import transitions
from tidemill.types import EnvSpec

_LENGTHS = (2, 3, 5)
_ROWS = 60
_COLUMNS = ("reward", "terminated", "truncated", "is_first", "is_reset_step")


class CountingFromStart(CountingEnv):
    """Observes (length, step): how often it was reset does not show."""

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self._length, self._step], np.float32)


def _vector(mode: AutoresetMode, end: str, lengths: Sequence[int] = _LENGTHS) -> BatchedEnv:
    """Return a batch of counting environments whose episodes last 2, 3 and 5 steps."""
    makers = [lambda length=length: CountingFromStart(length, end) for length in lengths]
    return BatchedEnv(gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode), "a_test:make")


def _single(end: str, lengths: Sequence[int] = _LENGTHS) -> GymnasiumVectorEnv:
    envs = iter([CountingFromStart(length, end) for length in lengths])
    return GymnasiumVectorEnv(lambda: next(envs), len(lengths))


def _played(env: VectorEnv, rows: int = _ROWS, seed: int = 3) -> tuple[NDArray[Any], list[VectorStep]]:
    rng = np.random.default_rng(0)
    first = env.reset(seed)
    actions = range(env.spec.num_actions or 1)
    steps = []
    for _ in range(rows):
        action: NDArray[Any] = rng.choice(actions, env.num_envs)
        if not env.spec.is_discrete:
            action = rng.uniform(-1, 1, (env.num_envs, *env.spec.action_shape)).astype(np.float32)
        steps.append(env.step(action))
    return first, steps


def _assert_equal_streams(found: VectorEnv, expected: VectorEnv) -> None:
    """Every row, flag and summary of both is the same."""
    (first, steps), (expected_first, expected_steps) = _played(found), _played(expected)
    np.testing.assert_array_equal(first, expected_first)
    for step, other in zip(steps, expected_steps, strict=True):
        np.testing.assert_array_equal(step.observation, other.observation)
        for name in _COLUMNS:
            np.testing.assert_array_equal(getattr(step, name), getattr(other, name), err_msg=name)
        assert step.episodes == other.episodes


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_stream_is_that_of_single_environments(mode: AutoresetMode, end: str) -> None:
    """However the batch resets: a final observation step after each end, raw returns and lengths of each episode."""
    _assert_equal_streams(_vector(mode, end), _single(end))


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", pytest.param("LunarLanderContinuous-v3", marks=pytest.mark.requires_box2d)]
)
def test_gymnasiums_own_vector_is_seeded_and_stepped_as_single_environments(env_id: str) -> None:
    """Environment i starts from seed + i, actions are scaled alike: the numbers are the same, bit for bit."""
    settings = EnvSettings(env_id, {"env_id": env_id}, vector="batched_env:make_vec", max_episode_steps=20)
    alone = EnvSettings(env_id, max_episode_steps=20)
    _assert_equal_streams(make_env(settings, 3, training=True), make_env(alone, 3, training=True))


class TellingEnv(CountingFromStart):
    """Observes what it counts, and says it."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        numbers, words = self.observation_space, spaces.Text(20, charset="episode 0123456789")
        self.observation_space = spaces.Dict({"count": numbers, "told": spaces.Tuple((words,))})  # type: ignore[assignment]

    def _observation(self) -> Any:  # noqa: ANN401 - another one than the parent's
        return {"count": super()._observation(), "told": (f"episode {self._length}",)}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_text_is_left_out_as_of_single_environments(mode: AutoresetMode) -> None:
    """Gymnasium's batch of it is a tuple of strings."""
    makers = [lambda length=length: TellingEnv(length) for length in _LENGTHS]
    batch = BatchedEnv(gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode), "a_test:make")
    envs = iter([TellingEnv(length) for length in _LENGTHS])
    assert [part.name for part in batch.spec.observation_parts] == ["count"]
    _assert_equal_streams(batch, GymnasiumVectorEnv(lambda: next(envs), len(_LENGTHS)))


class PairEnv(PartsEnv):
    """Observes the same parts as a tuple."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        assert isinstance(self.observation_space, spaces.Dict)
        self.observation_space = spaces.Tuple(list(self.observation_space.values()))

    def _observation(self) -> Any:  # noqa: ANN401 - another one than the parent's
        observation = super()._observation()
        return tuple(observation[key] for key in sorted(observation))


class LastInABatch(gymnasium.vector.VectorWrapper):
    """Has the last observations as it has others; in the rows of the other environments stands what may be there."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], rows: int) -> None:
        super().__init__(env)
        self._rows = rows

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - gymnasium's
        """Join the last observations."""
        *results, infos = self.env.step(actions)
        if "final_obs" in infos:
            last = next(each for each in infos["final_obs"] if each is not None)
            each = [last if final is None else final for final in infos["final_obs"]][: self._rows]
            space = self.env.single_observation_space
            empty: Any = create_empty_array(space, len(each))
            joined: Any = concatenate(space, each, empty)
            for name, part in leaves(joined, whole=("told__0",)):
                if name.endswith("1"):  # the gear, which is not among its options
                    part[infos["final_obs"][: self._rows] == None] = 7  # noqa: E711 - of each
            infos["final_obs"] = joined
        return (*results, infos)


@pytest.mark.parametrize("make", [TellingEnv, PartsEnv, PairEnv])
def test_last_observations_may_be_a_batch_of_parts(make: Callable[[int], Any]) -> None:
    """As those of one array may: each environment has its row of it."""
    makers = [lambda length=length: make(length) for length in _LENGTHS]
    batch = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = iter([make(length) for length in _LENGTHS])
    alone = GymnasiumVectorEnv(lambda: next(envs), len(_LENGTHS))
    _assert_equal_streams(BatchedEnv(LastInABatch(batch, len(_LENGTHS)), "a_test:make"), alone)


@pytest.mark.parametrize("make", [CountingFromStart, PartsEnv])
def test_batch_without_a_row_for_the_last_observation_is_found_out(make: Callable[[int], Any]) -> None:
    """By its name and what it has."""
    makers = [lambda length=length: make(length) for length in (5, 5, 2)]
    batch = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(EnvFailed, match=naming("a_test:make last" if make is PartsEnv else "infos['final_obs'] 2")):
        _played(BatchedEnv(LastInABatch(batch, 2), "a_test:make"), 3)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_stored_transitions_are_those_of_single_environments(mode: AutoresetMode, end: str) -> None:
    """Decoded as a learner does, with every window of every stream: the same 2-step transitions."""
    found, expected = (_transitions(env) for env in (_vector(mode, end), _single(end)))
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column, err_msg=name)
    ended = expected["bootstrap_discount"] == 0
    assert ended.any() == (end == "terminated")


def _transitions(env: VectorEnv) -> dict[str, NDArray[Any]]:
    observation, steps = _played(env)
    is_first = np.ones(env.num_envs, np.bool_)
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in ("observation", "is_first", *_COLUMNS[:3])}
    starts = []
    for step in steps:
        for name, value in (("observation", observation), ("is_first", is_first)):
            rows[name].append(value)
        for name in _COLUMNS[:3]:
            rows[name].append(getattr(step, name))
        starts.append(~step.is_reset_step)
        observation, is_first = step.observation, step.is_first
    columns = {name: np.stack(column, axis=1).reshape(-1, *column[0].shape[1:]) for name, column in rows.items()}
    columns["action"] = np.zeros(len(columns["reward"]), np.int64)
    may_start = np.stack(starts, axis=1)[:, : _ROWS - 2]
    stream, row = np.nonzero(may_start)
    return transitions(columns, (stream * _ROWS + row)[:, None] + np.arange(3), 1, 2, 0.9)


def test_numpy_batch_of_the_examples_keeps_the_promises_of_a_stream() -> None:
    """Episodes of 50 steps, then a final observation step; one returns what its rewards add up to."""
    env = make_env(EnvSettings("PointMass", vector="batched_env:PointMassVectorEnv"), 4, training=True)
    _, steps = _played(env, 130)
    rewards = np.stack([step.reward for step in steps])
    assert np.flatnonzero(np.stack([step.is_reset_step for step in steps])[:, 0]).tolist() == [50, 101]
    assert (rewards[50] == 0).all()
    episodes = [episode for step in steps for episode in step.episodes if episode.env_index == 2]
    assert [(episode.length, episode.terminated) for episode in episodes] == [(50, False), (50, False)]
    assert episodes[0].episode_return == pytest.approx(float(rewards[:50, 2].sum()), rel=1e-5)
    assert env.spec == EnvSpec((2,), "float32", action_shape=(1,))


def test_batch_of_gymnasiums_registry_needs_no_code() -> None:
    """`gymnasium:make_vec` takes the id among its arguments; CartPole's is stepped by NumPy."""
    settings = EnvSettings("CartPole-v1", {"id": "CartPole-v1"}, vector="gymnasium:make_vec")
    assert spec_of(settings) == spec_of(EnvSettings("CartPole-v1"))
    env = make_env(settings, 5, training=True)
    _, steps = _played(env, 200)
    ended = np.stack([step.terminated for step in steps])
    assert ended.any()
    np.testing.assert_array_equal(np.stack([step.is_reset_step for step in steps])[1:], ended[:-1])
    env.close()
    env.close()


def test_batch_of_discrete_observations_is_refused_with_the_wrapper_that_helps() -> None:
    """It named `env.flatten`, which is refused beside `env.vector`."""
    settings = EnvSettings("FrozenLake-v1", {"id": "FrozenLake-v1"}, vector="gymnasium:make_vec")
    with pytest.raises(ConfigError, match=naming("Discrete(16) gymnasium.wrappers.vector.FlattenObservation")) as told:
        make_env(settings, 2, training=True)
    assert "env.flatten" not in str(told.value)
    wrapped = gymnasium.wrappers.vector.FlattenObservation(gymnasium.make_vec("FrozenLake-v1", 2))
    assert BatchedEnv(wrapped, "a_test:make").reset(0).tolist() == [[1.0, *[0.0] * 15]] * 2


def test_limit_of_an_episode_is_handed_on() -> None:
    """Evaluation and training may have different limits; what cannot take one is refused by its name.

    The trial at the start of a run makes no environment for training, and refuses its limit as well.
    """
    settings = EnvSettings("P", vector="batched_env:PointMassVectorEnv", max_episode_steps=7, max_evaluation_steps=9)
    for training, length in ((True, 7), (False, 9)):
        _, steps = _played(make_env(settings, 1, training=training), 10)
        assert [episode.length for step in steps for episode in step.episodes] == [length]
    unlimited = EnvSettings("C", {"id": "CartPole-v1"}, vector="gymnasium:make_vec", max_evaluation_steps=9)
    with pytest.raises(ConfigError, match=naming("env.max_evaluation_steps 9 gymnasium:make_vec")):
        make_env(unlimited, 1, training=False)
    trained = EnvSettings("C", {"id": "CartPole-v1"}, vector="gymnasium:make_vec", max_episode_steps=7)
    with pytest.raises(ConfigError, match=naming("env.max_episode_steps 7 gymnasium:make_vec")):
        make_env(trained, 1, training=False)


def test_pictures_are_of_one_environment() -> None:
    """What the function can make with `render_mode`."""
    env = make_env(EnvSettings("C", vector=f"{__name__}:make_rendering"), 2, training=False, render=True)
    env.reset(0)
    picture = env.render(1)
    assert picture is not None
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert make_env(EnvSettings("C", vector=f"{__name__}:make_rendering"), 2, training=False).render() is None
    env.close()


def make_rendering(num_envs: int, render_mode: str | None = None) -> Any:  # noqa: ANN401
    """Return a vector of CartPole that can be looked at."""
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync", render_mode=render_mode)


class _Odd(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A batch of one-number observations that goes wrong in its own way."""

    def __init__(self, num_envs: int, how: str = "", mode: str | None = "NextStep") -> None:
        self.num_envs, self._how = num_envs, how
        self.metadata = {"autoreset_mode": mode} if mode else {}
        self.single_observation_space = spaces.Box(-1e9, 1e9, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self._count = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        """Reset all, whatever was asked for."""
        self._count += 1
        return np.full((self.num_envs, 1), self._count, np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401
        """End the first environment at every step."""
        if self._how == "raise":
            raise RuntimeError("the simulator broke")
        self._count += 1
        observation = np.full((self.num_envs, 1), self._count, np.float32)
        reward, flags = np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)
        if self._how == "nan":
            reward[1] = np.nan
        if self._how == "shape":
            observation = observation[:, 0]
        if self._how == "flags":
            flags = flags[:1]
        ended = flags.copy()
        ended[:1] = True
        return observation, reward, ended, flags, {}


def make_own(num_envs: int) -> VectorEnv:
    """Return a batch behind Tidemill's own interface."""
    return GymnasiumVectorEnv(lambda: EchoEnv(spaces.Discrete(2)), num_envs)


def make_fewer(num_envs: int) -> Any:  # noqa: ANN401
    """Return one environment too few."""
    return _Odd(num_envs - 1)


def make_three(num_envs: int) -> int:
    """Return something else."""
    return 3


def _odd(how: str = "", mode: str | None = "NextStep") -> VectorEnv:
    kwargs: dict[str, Any] = {"how": how} | ({"mode": mode} if mode else {"mode": ""})
    return make_env(EnvSettings("odd", kwargs, vector=f"{__name__}:_Odd"), 3, training=True)


@pytest.mark.parametrize(
    "how,message",
    [
        ("raise", "_Odd 0 RuntimeError: the simulator broke"),
        ("nan", "1 1 reward"),
        ("shape", "_Odd (3,) (3, 1)"),
        ("flags", "_Odd (1,) (3,)"),
    ],
)
def test_batch_that_goes_wrong_ends_the_process_with_its_name(how: str, message: str) -> None:
    """What it returned, and what it must be."""
    env = _odd(how)
    env.reset(0)
    with pytest.raises(FatalError, match=naming(message)):
        env.step(np.zeros(3, np.int64))


def test_batch_that_resets_more_than_it_was_asked_to_is_found_out() -> None:
    """Else episodes would end unseen."""
    env = _odd(mode="Disabled")
    env.reset(0)
    env.step(np.zeros(3, np.int64))
    with pytest.raises(FatalError, match=naming("options['reset_mask']")):
        env.step(np.zeros(3, np.int64))


def test_batch_closes_after_an_interrupted_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's own `close` would wait for the interrupted answer again, without an end where a process hangs."""
    env = make_env(EnvSettings(vector="tests.support.faulty_envs:faulty_processes"), 2, training=True)
    assert isinstance(env, BatchedEnv)
    inner = env._env
    assert isinstance(inner, gymnasium.vector.AsyncVectorEnv)
    env.reset(0)

    def interrupted(_: object = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inner, "step_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.step(np.zeros(2, np.int64))
    env.close()
    assert not any(process.is_alive() for process in inner.processes)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_observation_that_is_not_finite_is_named_while_another_environment_resets(mode: AutoresetMode) -> None:
    """Not being equal to itself, it was taken for a reset outside of the mask."""
    makers = [lambda: CountingEnv(2), lambda: FailingEnv(3, "observation")]
    env = BatchedEnv(gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode), "a_test:make")
    env.reset(0)
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(FatalError, match=naming("1 3 observation")):
        env.step(np.zeros(2, np.int64))


def test_batch_that_keeps_a_last_observation_to_itself_is_found_out() -> None:
    """One that resets in the same step must tell it."""
    env = _odd(mode="SameStep")
    env.reset(0)
    with pytest.raises(FatalError, match=naming("infos['final_obs']")):
        env.step(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    "name,kwargs,message",
    [
        ("_Odd", {"mode": ""}, "metadata['autoreset_mode'] None NEXT_STEP"),
        ("_Odd", {"mode": "Sometimes"}, "'Sometimes'"),
        ("_Odd", {"speed": 3}, "env.kwargs {'speed': 3} _Odd"),
        ("_Od", {}, "'_Od'"),
        ("_ROWS", {}, "env.vector tests.unit.envs.test_batched_env:_ROWS"),
        ("make_fewer", {}, "2 3"),
        ("make_three", {}, "gymnasium.vector.VectorEnv tidemill.VectorEnv"),
    ],
)
def test_batch_that_cannot_be_used_is_refused(name: str, kwargs: dict[str, Any], message: str) -> None:
    """The message names the setting and what is allowed."""
    with pytest.raises(ConfigError, match=naming(message)):
        make_env(EnvSettings("odd", kwargs, vector=f"{__name__}:{name}"), 3, training=True)


@pytest.mark.parametrize(
    "settings,message",
    [
        ({"vector": "batched_env"}, "env.vector 'batched_env' module:name"),
        ({"vector": "a:b", "flatten": True}, "env.flatten True env.vector"),
        ({"vector": "a:b", "observation_indices": (1,)}, "env.observation_indices env.vector"),
    ],
)
def test_settings_that_a_batch_cannot_follow_are_refused(settings: dict[str, Any], message: str) -> None:
    """When they are read."""
    with pytest.raises(ConfigError, match=naming(message)):
        EnvSettings("E", **settings)


def test_environment_of_tidemills_own_interface_is_taken_as_it_is() -> None:
    """Such as one with lost lives, which gymnasium's interface cannot tell."""
    env = make_env(EnvSettings("own", vector=f"{__name__}:make_own"), 2, training=True)
    assert isinstance(env, GymnasiumVectorEnv)
