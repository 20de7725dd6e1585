"""Masks of the legal actions of each step: read from the environment, checked, and enforced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tidemill.envs.checks import place
from tidemill.envs.settings import INFO, OBSERVATION
from tidemill.errors import ConfigError, EnvFailed, InvalidArgument
from tidemill.observation_parts import without_mask

_NAME = "action_mask"
"""Key of the info under which a mask from an observation travels to `ActionMasks`."""

_CUT = "; a truncated episode needs the mask of its last observation, whose value is computed from the legal actions"


class MaskFromObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Moves the mask from a key of a Dict observation to the info; a single key that is left is the observation."""

    def __init__(self, env: gymnasium.Env[Any, Any], key: str) -> None:
        """Take the environment.

        Raises:
            ConfigError: Observations have no such key, or no other.
        """
        super().__init__(env)
        space = env.observation_space
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else []
        if key not in keys or len(keys) < 2:
            allowed = f"one of the keys {keys} beside another" if keys else "a key of a Dict"
            raise ConfigError(
                f"env.action_mask is '{OBSERVATION}.{key}', but observations are {space}, allowed: {allowed}"
            )
        assert isinstance(space, spaces.Dict)
        self._key, self._keys = key, keys
        left, _ = without_mask(space.spaces, key)
        self.observation_space = spaces.Dict(left) if isinstance(left, dict) else left

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        rest, mask = self._divided(observation)
        return rest, {**info, _NAME: mask}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - gymnasium's
        """Act once."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        rest, mask = self._divided(observation)
        return rest, reward, terminated, truncated, {**info, _NAME: mask}

    def _divided(self, observation: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the parts that the space declares, without the mask, and the mask, None if it is missing."""
        return without_mask({key: observation[key] for key in self._keys if key in observation}, self._key)


def info_key(setting: str) -> str:
    """Return the key of the info that holds the mask, by `env.action_mask`; nothing without one."""
    source, _, key = setting.partition(".")
    return key if source == INFO else _NAME if source == OBSERVATION else ""


class ActionMasks:
    """The newest mask of each of N environments.

    Attributes:
        newest: Whether each action is legal at the newest observation, bool [N, A]; never written again.
    """

    def __init__(self, setting: str, num_envs: int, actions: Sequence[int], *, last_info: str = "") -> None:
        """Allow everything until the first `read`.

        Args:
            setting: `env.action_mask`, which says where the masks are.
            num_envs: N.
            actions: Options of each choice; one of them for a plain discrete action. A is their sum.
            last_info: What the environment calls the info of an episode's last observation, if that is another one.

        Raises:
            ConfigError: Actions are not discrete.
        """
        if not actions:
            raise ConfigError("env.action_mask is set, but actions are continuous; leave it empty")
        self._key, self._length = info_key(setting), sum(actions)
        source, _, key = setting.partition(".")
        self._named, self._last_named = (f"{each}[{key!r}]" for each in (source, last_info or source))
        self._offsets = np.cumsum((0, *actions[:-1]))
        self._envs = np.arange(num_envs)[:, None]
        self.newest: NDArray[np.bool_] = np.ones((num_envs, self._length), np.bool_)

    def read(
        self,
        infos: Sequence[object],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        lengths: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Take and return the masks of newest observations, [N, A].

        Args:
            infos: Of each environment; one that is not a mapping has no mask.
            terminated: Where the observation has no value, or the environment is down: nothing needs to be legal there,
                nor a mask given.
            truncated: Where the observation is the last one of an episode that was cut. Its value counts.
            lengths: Agent decisions of each episode so far, [N].

        Raises:
            EnvFailed: A mask is missing, of another length or dtype, or allows nothing.
        """
        masks = np.ones((len(infos), self._length), np.bool_)
        for index, info in enumerate(infos):
            given = info.get(self._key) if isinstance(info, Mapping) else None
            if given is not None:
                masks[index] = self._checked(given, index, lengths)
            elif not terminated[index]:
                missing, remedy = (self._last_named, _CUT) if truncated[index] else (self._named, "")
                found = f"has no {missing}, allowed: {self._wanted}{remedy}"
                raise EnvFailed(f"{place(index, lengths[index])} {found} (env.action_mask)", index=index)
        nothing = ~np.logical_or.reduceat(masks, self._offsets, axis=1).all(axis=1)
        if nothing.any():
            if (stuck := np.flatnonzero(nothing & ~terminated)).size:
                index = int(stuck[0])
                remedy = _CUT if truncated[index] else ""
                raise EnvFailed(
                    f"{place(index, lengths[index])} has an action mask without a legal action, "
                    f"allowed: at least 1 for each choice, unless the episode has terminated{remedy}",
                    index=index,
                )
            masks[nothing] = True
        self.newest = masks
        return masks

    @property
    def _wanted(self) -> str:
        return f"{self._length} entries of bool, or integers 0 and 1, 1 being legal"

    def _checked(self, given: Any, index: int, lengths: NDArray[np.int64]) -> NDArray[Any]:  # noqa: ANN401 - the user's
        try:
            mask = np.asarray(given)
        except ValueError:  # rows of different lengths
            mask = np.array(None)
        if mask.shape != (self._length,) or mask.dtype.kind not in "bui":
            found = f"{mask.dtype} {mask.shape}"
        elif mask.dtype.kind == "b" or (mask.min() >= 0 and mask.max() <= 1):
            return mask
        else:
            found = f"integers from {mask.min()} to {mask.max()}"
        raise EnvFailed(
            f"{place(index, lengths[index])} has an action mask of {found}, allowed: {self._wanted}", index=index
        )

    def first_legal(self, info: Mapping[str, Any], index: int, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first legal option of each choice by the mask in an environment's info; 0 if it has none.

        Raises:
            EnvFailed: The mask has another length or dtype.
        """
        given = info.get(self._key)
        mask = np.ones(self._length) if given is None else self._checked(given, index, lengths)
        return np.array([part.argmax() for part in np.split(mask, self._offsets[1:])])

    def check_legal(self, action: NDArray[Any], is_reset_step: NDArray[np.bool_], lengths: NDArray[np.int64]) -> None:
        """Raise InvalidArgument if an action, [N] or [N, choices], is illegal and not ignored as one of a reset."""
        legal = self.newest[self._envs, action.reshape(len(action), -1) + self._offsets].all(axis=1) | is_reset_step
        if not legal.all():
            index = int(np.flatnonzero(~legal)[0])
            parts = np.split(self.newest[index], self._offsets[1:])
            allowed = [np.flatnonzero(part).tolist() for part in parts]
            raise InvalidArgument(
                f"the action of {place(index, lengths[index])} is {action[index].tolist()}, "
                f"allowed by its action mask: {allowed[0] if len(allowed) == 1 else allowed}"
            )
