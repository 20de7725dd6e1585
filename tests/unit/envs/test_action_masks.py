"""Action masks of environments: where they are found, what is refused, and that no illegal action passes."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.support.envs import MaskedEnv
from tests.support.naming import naming
from tidemill.envs.action_mask import ActionMasks
from tidemill.envs.interface import VectorEnv, action_mask_of
from tidemill.envs.make import make_env, spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError, EnvFailed, FatalError, InvalidArgument
from tidemill.simulator.wire import SeenStep, pack_step, unpack_step
from tidemill.types import EnvSpec, signature_of

MASKED = "tests.support.envs:masked"
EVEN, ODD, ANY = [True, False, True, False], [False, True, False, True], [True] * 4

SETTINGS = {
    "info": EnvSettings(MASKED, action_mask="info.action_mask"),
    "observation": EnvSettings(MASKED, {"mask": "observation"}, action_mask="observation.action_mask"),
    **{
        mode: EnvSettings(
            vector="tests.support.envs:masked_vector", kwargs={"mode": mode}, action_mask="info.action_mask"
        )
        for mode in ("NextStep", "SameStep", "Disabled")
    },
}


def _mask(env: VectorEnv) -> list[list[bool]]:
    mask = action_mask_of(env)
    assert mask is not None
    rows: list[list[bool]] = mask.tolist()
    return rows


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_mask_is_that_of_the_newest_observation(settings: EnvSettings) -> None:
    """Even and odd actions are legal in turn; all are at the last observation, where none is chosen."""
    env = make_env(settings, 2, training=True)
    assert env.reset(0).tolist() == [[1, 0], [1, 0]]
    found = [_mask(env)]
    for step in range(8):
        env.step(np.array([2 + step % 2, step % 2] if step < 7 else [2, 0]))
        found.append(_mask(env))
    expected = [EVEN, ODD, EVEN, ODD, EVEN, ODD, ANY, EVEN, ODD]
    assert found == [[mask, mask] for mask in expected]
    env.close()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_last_observation_of_a_truncated_episode_keeps_its_mask(settings: EnvSettings) -> None:
    """Its value counts, and only legal actions have one."""
    env = make_env(dataclasses.replace(settings, max_episode_steps=3), 2, training=True)
    env.reset(0)
    found = []
    for action in (0, 1, 0, 0, 0):
        env.step(np.array([action, action]))
        found.append(_mask(env))
    assert found == [[mask, mask] for mask in (ODD, EVEN, ODD, EVEN, ODD)]
    env.close()


class TellingEnv(MaskedEnv):
    """Observes whose turn it is as well, which its space does not declare."""

    def _observation(self) -> Any:  # noqa: ANN401 - as the parent's
        return {**super()._observation(), "turn": self._step}


class SilentEnv(MaskedEnv):
    """Observes its mask except at one step."""

    def __init__(self, silent_step: int, end: str) -> None:
        super().__init__("observation", end=end)
        self._silent_step = silent_step

    def _observation(self) -> Any:  # noqa: ANN401 - as the parent's
        observation = super()._observation()
        if self._step == self._silent_step:
            del observation["action_mask"]
        return observation


class ForgetfulEnv(gymnasium.Env[Any, Any]):
    """Leaves out a part of its observations."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        {"mask": gymnasium.spaces.MultiBinary(2), **{part: gymnasium.spaces.Box(0, 1, (3,)) for part in "abc"}}
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Forget `c`."""
        super().reset(seed=seed, options=options)
        return {"mask": np.ones(2, np.int8), **{part: np.zeros(3, np.float32) for part in "ab"}}, {}


def test_key_that_the_space_does_not_declare_is_left_out() -> None:
    """It was taken for a part of the observation, which then had no shape."""
    settings = EnvSettings(f"{__name__}:TellingEnv", {"mask": "observation"}, action_mask="observation.action_mask")
    env = make_env(settings, 1, training=True)
    assert env.reset(0).tolist() == [[1, 0]]
    assert env.step(np.array([0])).observation.tolist() == [[0, 1]]
    assert _mask(env) == [ODD]


def test_key_that_an_observation_lacks_is_left_to_the_check_of_its_parts() -> None:
    """Which names what is there and what is allowed, where the wrapper would raise a KeyError."""
    with pytest.raises(FatalError, match=naming("['a', 'b'] ['a', 'b', 'c']")):
        make_env(EnvSettings(f"{__name__}:ForgetfulEnv", action_mask="observation.mask"), 1, training=True).reset(0)


def test_spec_and_signature_have_the_mask() -> None:
    """The column is stored as one bool per action; without the setting there is none."""
    spec = spec_of(SETTINGS["info"])
    assert spec.masks_actions
    assert (signature_of(spec)[-1].name, signature_of(spec)[-1].dtype, signature_of(spec)[-1].shape) == (
        "action_mask",
        "bool",
        (4,),
    )
    plain = spec_of(EnvSettings(MASKED))
    assert not plain.masks_actions
    assert "action_mask" not in [column.name for column in signature_of(plain)]


@pytest.mark.parametrize(
    "how, step, message",
    [
        ("short", 0, "0 0 action mask int8 (3,) 4"),
        (
            "float",
            2,
            "0 2 action mask float32 (4,) 4",
        ),
        ("none", 1, "0 1 action mask action"),
        ("missing", 1, "0 1 info['action_mask'] 4"),
        (
            "two",
            1,
            "0 1 action mask 0 2 4",
        ),
    ],
)
def test_wrong_mask_is_told_with_its_place(how: str, step: int, message: str) -> None:
    """One line names the environment, the step, what was there and what is allowed."""
    settings = EnvSettings(MASKED, {"mask": how, "bad_step": step}, action_mask="info.action_mask")
    env = make_env(settings, 1, training=True)
    with pytest.raises(FatalError, match=naming(message)) as raised:  # noqa: PT012 - at one of these
        env.reset(0)
        for number in range(step):
            env.step(np.array([number % 2]))
    assert "\n" not in str(raised.value)


IN_INFO = {name: settings for name, settings in SETTINGS.items() if name != "observation"}


def _at_the_end(settings: EnvSettings, how: str, end: str) -> EnvSettings:
    """Return the settings of environments whose last mask is wrong."""
    wrong = {"mask": how, "bad_step": MaskedEnv.LENGTH, "end": end}
    return dataclasses.replace(settings, kwargs={**settings.kwargs, **wrong})


def _play_episode(env: VectorEnv) -> None:
    env.reset(0)
    for number in range(MaskedEnv.LENGTH):
        env.step(np.full(env.num_envs, number % 2))


@pytest.mark.parametrize("settings", IN_INFO.values(), ids=IN_INFO)
@pytest.mark.parametrize("how", ["missing", "none"])
@pytest.mark.parametrize("end", ["terminated", "both"])
def test_mask_may_be_missing_where_the_episode_has_terminated(settings: EnvSettings, how: str, end: str) -> None:
    """Nothing is chosen there, and the observation has no value."""
    env = make_env(_at_the_end(settings, how, end), 2, training=True)
    _play_episode(env)
    assert _mask(env) == [ANY, ANY]
    env.close()


def _silent(step: int, end: str) -> VectorEnv:
    settings = EnvSettings(
        f"{__name__}:SilentEnv", {"silent_step": step, "end": end}, action_mask="observation.action_mask"
    )
    return make_env(settings, 1, training=True)


@pytest.mark.parametrize("end", ["terminated", "both"])
def test_last_observation_of_a_terminated_episode_may_lack_its_mask(end: str) -> None:
    """It raised KeyError, so that no episode was seen to terminate."""
    env = _silent(MaskedEnv.LENGTH, end)
    _play_episode(env)
    assert _mask(env) == [ANY]


@pytest.mark.parametrize("step, end", [(0, "terminated"), (3, "terminated"), (MaskedEnv.LENGTH, "truncated")])
def test_any_other_observation_without_its_mask_is_told_with_its_place(step: int, end: str) -> None:
    """By the key of the observation, not by one of the info."""
    at = f"0 {step} observation['action_mask'] 4{' truncated' if end == 'truncated' else ''}"
    with pytest.raises(EnvFailed, match=naming(at)):
        _play_episode(_silent(step, end))


@pytest.mark.parametrize("settings", IN_INFO.values(), ids=IN_INFO)
@pytest.mark.parametrize("how, found", [("missing", "['action_mask'] 4"), ("none", "mask")])
@pytest.mark.parametrize("training", [True, False])
def test_mask_of_the_last_observation_of_a_truncated_episode_is_needed(
    settings: EnvSettings, how: str, found: str, training: bool
) -> None:
    """Every action counted as legal: the value was that of an action that is never tried."""
    env = make_env(_at_the_end(settings, how, "truncated"), 2, training=training)
    where = "infos['final_info']" if how == "missing" and settings is SETTINGS["SameStep"] else ""
    with pytest.raises(EnvFailed, match=naming(f"0 6 {where}{found} truncated")):
        _play_episode(env)
    env.close()


def test_mask_of_the_last_observation_of_a_simulators_truncated_episode_is_needed() -> None:
    """The refusal says so; with a stated termination none is."""
    spec = EnvSpec((1,), "float32", num_actions=2, masks_actions=True)
    step = SeenStep(3, np.zeros(1, np.float32), truncated=True)
    with pytest.raises(InvalidArgument, match=naming("action_mask 0 3 2 truncated")):
        unpack_step(pack_step(step, spec), spec)
    nothing = dataclasses.replace(step, action_mask=np.zeros(2, np.bool_))
    with pytest.raises(InvalidArgument, match=naming("action_mask 3 truncated")):
        unpack_step(pack_step(nothing, spec), spec)
    assert unpack_step(pack_step(dataclasses.replace(step, terminated=True), spec), spec).action_mask is None


def test_each_of_several_choices_needs_a_legal_option() -> None:
    """From an environment as from a simulator: an agent would take the first option of the choice."""
    masks, mask = ActionMasks("info.mask", 1, (2, 2)), np.array([True, True, False, False])
    no, yes, lengths = np.array([False]), np.array([True]), np.zeros(1, np.int64)
    with pytest.raises(EnvFailed, match=naming("mask without a legal action each choice")):
        masks.read([{"mask": mask}], no, no, lengths)
    assert masks.read([{"mask": mask}], yes, no, lengths).all()
    spec = EnvSpec((1,), "float32", action_sizes=(2, 2), masks_actions=True)
    step = SeenStep(0, np.zeros(1, np.float32), action_mask=mask)
    with pytest.raises(InvalidArgument, match=naming("action_mask 0 each choice")):
        unpack_step(pack_step(step, spec), spec)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_illegal_action_never_reaches_the_environment(settings: EnvSettings) -> None:
    """It is a mistake of the policy, which is told what it might have done; during a reset nothing is wrong."""
    env = make_env(settings, 2, training=True)
    env.reset(0)
    env.step(np.array([0, 2]))
    with pytest.raises(InvalidArgument, match=naming("1 1 2 mask [1, 3]")):
        env.step(np.array([1, 2]))
    for step in range(1, 6):
        env.step(np.array([step % 2, step % 2]))
    env.step(np.array([3, 0]))
    assert _mask(env) == [EVEN, EVEN]
    env.step(np.array([0, 2]))
    env.close()


@pytest.mark.parametrize(
    "settings, message",
    [
        (EnvSettings("Pendulum-v1", action_mask="info.m"), "continuous"),
        (EnvSettings(MASKED, action_mask="observation.m"), "observations"),
        (
            EnvSettings(MASKED, {"mask": "observation"}, action_mask="observation.legal"),
            "['action_mask', 'seen']",
        ),
    ],
)
def test_mask_that_cannot_be_is_refused(settings: EnvSettings, message: str) -> None:
    """Before anything starts: continuous actions, and a key that is not there."""
    with pytest.raises(ConfigError, match=naming(message)):
        make_env(settings, 1, training=True)


@pytest.mark.parametrize("value", ["info", "info.", "action_mask", "reward.m"])
def test_setting_names_what_is_allowed(value: str) -> None:
    """A source and a key."""
    with pytest.raises(ConfigError, match=naming("env.action_mask info.KEY observation.KEY")):
        EnvSettings(MASKED, action_mask=value)


def test_batch_of_a_simulator_takes_info_only() -> None:
    """And a game of ours has no masks."""
    with pytest.raises(ConfigError, match=naming("info.KEY env.vector")):
        EnvSettings(vector="a:b", action_mask="observation.m")
    with pytest.raises(ConfigError, match=naming("ALE/")):
        EnvSettings("ALE/Pong", action_mask="info.m")
