"""Environments of dm_env_rpc servers, such as `env.id: tidemill.envs.dm_env_rpc:DmEnvRpc`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tidemill.envs import dm_env_messages as pb
from tidemill.errors import ConfigError, FatalError, TidemillError
from tidemill.observation_parts import stored
from tidemill.rpc.channel import open_foreign_channel
from tidemill.rpc.dialogue import Dialogue
from tidemill.settings.check import nearest

_SERVER = "the dm_env_rpc server"
_CLOSE_S = 5.0


class DmEnvRpc(gymnasium.Env[Any, Any]):
    """One environment of a server that speaks dm_env_rpc.

    A state of TERMINATED ends an episode as terminated, INTERRUPTED as truncated. Texts and messages among the
    observations are left out.
    """

    def __init__(
        self,
        address: str,
        *,
        world: str = "",
        create_settings: Mapping[str, Any] | None = None,
        join_settings: Mapping[str, Any] | None = None,
        seed_setting: str = "",
        observations: Sequence[str] = (),
        action: str = "",
        reward: str = "reward",
    ) -> None:
        """Connect, create a world and join it.

        Args:
            address: Of the server, `host:port`, called in plaintext and without a token.
            world: Name of a world to join; empty: create one, which `close` destroys.
            create_settings: Settings of the world: numbers, arrays and texts by name.
            join_settings: Settings of joining it.
            seed_setting: Name of the setting of a reset that takes the seed; empty: the server draws the episodes.
            observations: Names of those that the agent sees; empty: all but the reward and the discount.
            action: Name of the action to choose; may be empty if there is one. The server chooses the others.
            reward: Name of the observation that is the reward.

        Raises:
            ConfigError: The server does not offer what is named, or what Tidemill can act in.
            Unavailable: The server does not answer.
            FatalError: The server refused.
        """
        self._channel = open_foreign_channel(address)
        self._created, self._is_running = "", False
        self._call: Dialogue[Any, Any] | None = None
        self._seed_setting = seed_setting
        try:
            if not world:
                world = self._created = self._ask(create_world={"settings": _settings(create_settings)}).world_name
            specs = self._ask(join_world={"world_name": world, "settings": _settings(join_settings)}).specs
            offered = {entry.value.name: (entry.key, entry.value) for entry in specs.observations}
            self._reward = _named("reward", reward, offered)[0]
            names = list(observations) or [
                name
                for name, (_, spec) in sorted(offered.items())
                if name not in (reward, "discount") and spec.dtype < pb.STRING
            ]
            seen = {name: _named("observations", name, offered) for name in names}
            spaces: dict[str, gymnasium.Space[Any]] = {
                name: _observation_space(name, spec) for name, (_, spec) in seen.items()
            }
            if not spaces:
                raise ConfigError(f"env.kwargs.observations is empty, allowed: some of {sorted(offered)}")
            self._seen = {name: (key, spaces[name]) for name, (key, _) in seen.items()}
            self.observation_space = gymnasium.spaces.Dict(spaces) if len(spaces) > 1 else spaces[names[0]]
            acts = {entry.value.name: (entry.key, entry.value) for entry in specs.actions}
            if not action and len(acts) != 1:
                raise ConfigError(f"env.kwargs.action is not set, allowed: one of {sorted(acts)}")
            self._action, spec = _named("action", action or next(iter(acts)), acts)
            self._action_dtype = pb.DTYPES[spec.dtype]
            self.action_space = _action_space(spec)
            self._action_low = _bounds(spec)[0]
        except BaseException:
            self.close()
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; there are no options."""
        super().reset(seed=seed, options=options)
        settings = {} if seed is None or not self._seed_setting else {self._seed_setting: np.int64(seed)}
        if self._is_running or settings:
            self._ask(reset={"settings": _settings(settings)})
        observation, _, _ = self._stepped([])
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - of its space
        """Act once."""
        is_discrete = isinstance(self.action_space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
        chosen = np.asarray(action) + self._action_low if is_discrete else np.asarray(action)
        tensor = pb.pack_tensor(chosen.astype(self._action_dtype).reshape(self._action_low.shape))
        observation, reward, state = self._stepped([{"key": self._action, "value": tensor}])
        return observation, reward, state == pb.TERMINATED, state == pb.INTERRUPTED, {}

    def close(self) -> None:
        """Leave the world, and destroy it if it was created here."""
        call, self._call = self._call, None
        if call is None:
            return
        with contextlib.suppress(TidemillError):
            call.ask(pb.EnvironmentRequest(leave_world={}))
            if self._created:
                call.ask(pb.EnvironmentRequest(destroy_world={"world_name": self._created}))
            call.finish()
            call.drain(_CLOSE_S)
        call.end()
        self._channel.close()

    def _stepped(self, actions: list[dict[str, Any]]) -> tuple[Any, float, int]:
        wanted = [self._reward, *(key for key, _ in self._seen.values())]
        response = self._ask(step={"actions": actions, "requested_observations": wanted})
        self._is_running = response.state == pb.RUNNING
        tensors = {entry.key: entry.value for entry in response.observations}
        missing = [name for name, (key, _) in self._seen.items() if key not in tensors]
        if missing:
            raise FatalError(f"{_SERVER} left out the observations {missing}")
        values = {name: _observed(name, tensors[key], space) for name, (key, space) in self._seen.items()}
        has_reward = self._reward in tensors  # which the first step of an episode need not have
        reward = float(pb.unpack_numbers(tensors[self._reward], (1,))[0]) if has_reward else 0.0
        return values if len(values) > 1 else next(iter(values.values())), reward, response.state

    def _ask(self, **payload: Any) -> Any:  # noqa: ANN401 - messages without stubs
        """Return the answer to a request."""
        request = pb.EnvironmentRequest(**payload)
        if self._call is None:
            method = self._channel.stream_stream(
                pb.PROCESS,
                request_serializer=pb.EnvironmentRequest.SerializeToString,
                response_deserializer=pb.EnvironmentResponse.FromString,
            )
            self._call = Dialogue(method, request, _SERVER, "DmEnvRpc")
            response = self._call.hear()
        else:
            response = self._call.ask(request)
        if response.HasField("error"):
            raise FatalError(f"{_SERVER} refused {next(iter(payload))}: {response.error.message}")
        return getattr(response, next(iter(payload)))


def _settings(settings: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [{"key": name, "value": pb.pack_tensor(value)} for name, value in (settings or {}).items()]


def _named(field: str, name: str, offered: Mapping[str, tuple[int, Any]]) -> tuple[int, Any]:
    if name not in offered:
        names = sorted(offered)
        raise ConfigError(f"env.kwargs.{field} has {name!r}, allowed: {names}{nearest(name, names)}")
    return offered[name]


def _observation_space(name: str, spec: Any) -> gymnasium.spaces.Box:  # noqa: ANN401
    if spec.dtype >= pb.STRING or not spec.dtype:
        raise ConfigError(f"env.kwargs.observations has {name!r}, which is not an array of numbers")
    if min(spec.shape, default=0) < 0:
        raise ConfigError(f"env.kwargs.observations has {name!r} of shape {list(spec.shape)}, allowed: a fixed shape")
    shape = tuple(spec.shape) or (1,)
    if pb.DTYPES[spec.dtype] == "uint8" and len(shape) >= 2:
        return gymnasium.spaces.Box(0, 255, shape, np.uint8)
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)


def _observed(name: str, tensor: Any, space: gymnasium.Space[Any]) -> NDArray[Any]:  # noqa: ANN401
    shape = space.shape or ()
    try:
        numbers = pb.unpack_numbers(tensor, shape)
    except ValueError as error:
        raise FatalError(f"{_SERVER} sent {name!r} in another shape than {list(shape)}: {error}") from error
    return stored(numbers, space.dtype, f"observation {name!r}")


def _bounds(spec: Any) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ANN401
    """Return the least and the largest values of an action, in its shape."""
    shape = tuple(spec.shape)
    try:
        return pb.unpack_numbers(spec.min, shape), pb.unpack_numbers(spec.max, shape)
    except ValueError as error:
        raise ConfigError(f"action {spec.name!r} has no bounds, which Tidemill needs") from error


def _action_space(spec: Any) -> gymnasium.Space[Any]:  # noqa: ANN401
    if spec.dtype >= pb.STRING or not spec.dtype or min(spec.shape, default=0) < 0:
        raise ConfigError(
            f"action {spec.name!r} is not an array of numbers of a fixed shape; name another as env.kwargs.action"
        )
    low, high = _bounds(spec)
    if np.dtype(pb.DTYPES[spec.dtype]).kind == "f":
        return gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    options = high.astype(np.int64) - low.astype(np.int64) + 1
    return gymnasium.spaces.MultiDiscrete(options) if options.ndim else gymnasium.spaces.Discrete(int(options))
