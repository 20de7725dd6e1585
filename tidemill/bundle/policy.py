"""Acting with a trained policy, without a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.bundle.files import CONFIG, check_trusted, is_bundle, read_bundle, read_policy_params
from tidemill.bundle.hub import local_folder
from tidemill.config.evaluation import noop_max_of
from tidemill.config.load import read_settings
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.settings import OBSERVATION
from tidemill.errors import ConfigError, FatalError, InvalidArgument
from tidemill.observation_parts import check_options, packed, stored, without_mask
from tidemill.observation_parts import unpack as parts_of
from tidemill.params.blob import unpack
from tidemill.params.version import Version
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import sees_rewards
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    import gymnasium

    from tidemill.envs.interface import VectorEnv


def load_policy(
    folder: str | Path,
    version: int | str | None = None,
    *,
    action_space: gymnasium.Space[Any] | None = None,
    device: str = "cpu",
    seed: int = 0,
    trusted: bool = False,
) -> TrainedPolicy:
    """Load the policy that a run has trained, or that `tidemill export` has written.

    Args:
        folder: Of the run, which may still be running, or of the bundle; or `hf://OWNER/NAME` for a bundle on the
            Hugging Face Hub, with `@REVISION` for another than its newest.
        version: Number of a version or a tag; None: what a bundle holds, a run's best, or else its latest.
        action_space: Of one environment of gymnasium that takes the actions; None: for `TrainedPolicy.make_env`.
        device: A torch device, e.g. `cpu` or `cuda:0`.
        seed: Of the actions chosen with `explore`.
        trusted: Whether the settings of a bundle may name modules to import, as those of your own environments do.

    Raises:
        ConfigError: The folder is neither, its settings name code and it is not trusted, or the policy was trained
            with other actions than those of the action space.
        NotFound: There is no such version.
        DataLoss: The files are corrupt.

    Example:
        >>> import tidemill
        >>> policy = tidemill.load_policy("runs/quickstart")  # doctest: +SKIP
        >>> env = policy.make_env(num_envs=4)  # doctest: +SKIP
        >>> observation, reward, is_first = env.reset(seed=0), None, None  # doctest: +SKIP
        >>> for _ in range(1000):  # doctest: +SKIP
        ...     step = env.step(policy.act(observation, reward=reward, is_first=is_first))
        ...     observation, reward, is_first = step.observation, step.reward, step.is_first
    """
    path = local_folder(folder)
    return TrainedPolicy(path, version, action_space=action_space, device=device, seed=seed, trusted=trusted)


class TrainedPolicy:
    """A policy with the parameters of one version; see `load_policy`.

    It remembers what its next choice needs: a frame stack, the recurrent state, its last actions. `reset` forgets it.
    """

    def __init__(
        self,
        folder: Path,
        version: int | str | None = None,
        *,
        action_space: gymnasium.Space[Any] | None = None,
        device: str = "cpu",
        seed: int = 0,
        trusted: bool = False,
    ) -> None:
        """Load; see `load_policy`."""
        if not (folder / CONFIG).is_file():
            raise ConfigError(f"{folder} is neither a run nor a bundle: it has no {CONFIG}")
        check_trusted(folder, trusted=trusted)
        self._config = read_settings(EvaluatorConfig, folder / CONFIG)
        params = read_policy_params(folder, version)
        self.version: Version = params.version
        self.env_spec: EnvSpec = read_bundle(folder).env_spec if is_bundle(folder) else self._spec_of_env()
        self._actions = self._adapter(action_space) if action_space is not None else None
        self._policy = build_policy(self._config.agent, self.env_spec, device, seed)
        self._load(params.blob, device)
        self._builder: PolicyInputBuilder | None = None
        self._num_envs = 0

    def make_env(self, num_envs: int = 1, *, render: bool = False) -> VectorEnv:
        """Make environments as in the run's evaluations: full episodes, raw rewards.

        Args:
            num_envs: How many, stepped together; they take the actions of `act` as they are.
            render: Whether `VectorEnv.render` must return pictures.

        Raises:
            ConfigError: There is no such environment here, or a package it needs is missing.
        """
        from tidemill.envs.make import make_env

        settings = dataclasses.replace(self._config.env, noop_max=noop_max_of(self._config))
        return make_env(settings, num_envs, training=False, render=render)

    def reset(self) -> None:
        """Forget the episodes so far: the next observations are the first of theirs."""
        self._builder = None

    def __call__(
        self, observation: ArrayLike | Mapping[str, Any] | tuple[Any, ...], reward: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Choose the action for an observation, or one for each of N: `act` without its other options."""
        return self.act(observation, reward=reward)

    def act(
        self,
        observation: ArrayLike | Mapping[str, Any] | tuple[Any, ...],
        *,
        reward: ArrayLike | None = None,
        is_first: ArrayLike | None = None,
        explore: bool = False,
        action_mask: ArrayLike | None = None,
    ) -> NDArray[Any]:
        """Choose the actions for the newest observations.

        Args:
            observation: Of one environment, [*observation_shape], or of N, [N, *observation_shape]; a single frame
                where the policy stacks them. Of several parts: as `make_env`'s environments return them, or nested,
                each part as the environment itself returns it or in its stored shape (discrete parts one-hot). A
                policy whose environment did not say what its parts are takes only stored shapes.
            reward: The reward that came with it, a number or [N]. Recurrent policies need it, except with the first
                observation of an episode; those of `ppo` and `impala`, and all others, ignore it.
            is_first: Whether it is the first of its episode, bool or [N]; None: it is after `reset`, then no more.
            explore: Whether to choose as in training, instead of the action thought best.
            action_mask: Whether each action is legal, bool [num_actions], or [N, num_actions], as `action_mask` of
                `make_env`'s environments; needed by a policy that was trained with action masks, unless the
                observation has it.

        Returns:
            The action, or [N, ...] of them: for the given action space, or else integers 0 .. num_actions - 1 and
            floats in [-1, 1], as `make_env` takes them.

        Raises:
            InvalidArgument: An argument has another shape, the observation numbers of another kind or range than those
                that were trained with or an option that a discrete part lacks, a recurrent policy gets no reward or
                one that is not finite, or N changed without a `reset`.
        """
        parts = self.env_spec.observation_parts
        key = self._config.env.action_mask.removeprefix("observation.")
        if isinstance(observation, Mapping) and key in observation:  # as the environment itself returns it
            observation, own_mask = without_mask(observation, key)
            action_mask = own_mask if action_mask is None else action_mask
        if isinstance(observation, Mapping) and not parts:
            raise InvalidArgument(f"observation with the keys {list(observation)}, allowed: {self._allowed}")
        seen = packed(parts, observation, self.env_spec.observation_spaces) if parts else self._array(observation)
        if seen.dtype.kind not in "biuf":
            dtype = self.env_spec.observation_dtype
            raise InvalidArgument(f"observation has dtype {seen.dtype}, allowed: numbers that {dtype} can hold")
        is_single = seen.shape == self.env_spec.observation_shape
        rows = seen[None] if is_single else seen
        if rows.shape[1:] != self.env_spec.observation_shape or not len(rows):
            raise InvalidArgument(f"observation has shape {seen.shape}, allowed: {self._allowed}")
        first = self._is_first(is_first, len(rows))
        if reward is None and not first.all() and sees_rewards(self._policy):
            raise InvalidArgument(
                "reward is None, but the policy may depend on the reward that came with each observation: give "
                "`step.reward`, or 0 if it is unknown; where an episode begins, call `reset()` or give `is_first`; in "
                "a Policy of your own that ignores rewards, set `sees_rewards = False`"
            )
        gained = self._gained(reward, len(rows))
        seen_rows = stored(rows, self.env_spec.observation_dtype)
        seen_parts = parts_of(parts, seen_rows) if parts else {"": seen_rows}
        for name, values in seen_parts.items():
            if not np.isfinite(values).all():
                which = f"part {name!r} of the observation" if name else "observation"
                raise InvalidArgument(f"{which} has numbers that are NaN or infinite, allowed: finite numbers")
        check_options(self.env_spec.observation_spaces, seen_parts)
        mask = self._mask(action_mask, len(rows))
        builder = self._builder_for(len(rows))  # a call that is refused leaves no trace
        policy_input = builder.build(seen_rows, first, gained, mask)
        output = self._policy.act(policy_input, 2**62, evaluation=not explore)  # long after every schedule's end
        builder.record(output)
        # The builder keeps the policy's own array for the next input, and the caller may change this one.
        action: NDArray[Any]
        if self._actions is not None:
            action = self._actions.convert(output.action)
        elif self.env_spec.action_options:
            action = np.array(output.action)
        else:
            action = np.clip(output.action, -1.0, 1.0)  # a Gaussian's draw has no bounds
        return action[0] if is_single else action

    @property
    def _allowed(self) -> str:
        """The shape of an observation, and how to make one of the environment's own where settings changed it."""
        env, made = self._config.env, "observation"
        source, _, key = env.action_mask.partition(".")
        has_mask = source == OBSERVATION
        if env.flatten:
            space = "env.observation_space"
            if has_mask:
                space = f"gymnasium.spaces.Dict({{name: part for name, part in {space}.items() if name != {key!r}}})"
            made = f"gymnasium.spaces.flatten({space}, {made})"
        elif has_mask:
            made = f"next(part for name, part in {made}.items() if name != {key!r})"
        if env.observation_indices:
            made += f"[..., {list(env.observation_indices)}]"
        remedy = f"; of the environment's own observation give {made}" if env.flatten or env.observation_indices else ""
        mask = f", action_mask=observation[{key!r}]" if remedy and has_mask else ""
        return f"{self.env_spec.observation_shape}, or N of them{remedy}{mask}"

    def _array(self, observation: Any) -> NDArray[Any]:  # noqa: ANN401 - what the caller has
        try:
            return np.asarray(observation)
        except ValueError as error:
            raise InvalidArgument(f"observation has parts of several shapes, allowed: {self._allowed}") from error

    def _mask(self, action_mask: ArrayLike | None, num_envs: int) -> NDArray[np.bool_] | None:
        if not self.env_spec.masks_actions:
            return None
        wanted = (num_envs, sum(self.env_spec.action_options))
        if action_mask is None:
            raise InvalidArgument(f"action_mask is None, but the policy was trained with masks, allowed: bool {wanted}")
        mask = np.asarray(action_mask, np.bool_)
        mask = mask[None] if mask.ndim == 1 else mask
        starts = np.cumsum((0, *self.env_spec.action_options[:-1]))
        if mask.shape != wanted or not np.logical_or.reduceat(mask, starts, axis=1).all():
            allowed = f"{wanted} with a legal action for each choice"
            raise InvalidArgument(f"action_mask has shape {mask.shape}, allowed: {allowed} in each row")
        return mask

    def _is_first(self, is_first: ArrayLike | None, num_envs: int) -> NDArray[np.bool_]:
        given = np.asarray(False if is_first is None else is_first, np.bool_)
        if given.shape not in ((), (num_envs,)):
            raise InvalidArgument(f"is_first has shape {given.shape}, allowed: (), or ({num_envs},)")
        return np.full(num_envs, self._builder is None or given, np.bool_)

    def _gained(self, reward: ArrayLike | None, num_envs: int) -> NDArray[np.float32] | None:
        if reward is None:
            return None
        with np.errstate(over="ignore"):  # told below
            given = np.asarray(reward, np.float32)
        if given.shape not in ((), (num_envs,)):
            raise InvalidArgument(f"reward has shape {given.shape}, allowed: (), or ({num_envs},)")
        if self._config.env.clips_rewards:
            given = np.sign(given)  # as in training
        if sees_rewards(self._policy) and not np.isfinite(given).all():
            found = np.asarray(reward).tolist()
            raise InvalidArgument(f"reward is {found}, allowed: finite numbers; give 0 if it is unknown")
        return np.full(num_envs, given, np.float32)

    def _builder_for(self, num_envs: int) -> PolicyInputBuilder:
        if self._builder is None:
            self._builder = PolicyInputBuilder(num_envs, self.env_spec, self._policy.recurrent_state_size)
            self._num_envs = num_envs
        if num_envs != self._num_envs:
            raise InvalidArgument(f"observations of {num_envs} environments after {self._num_envs}; call reset() first")
        return self._builder

    def _spec_of_env(self) -> EnvSpec:
        from tidemill.envs.make import spec_of

        return spec_of(self._config.env)

    def _adapter(self, space: gymnasium.Space[Any]) -> Any:  # noqa: ANN401 - a protocol of a module imported here
        from tidemill.envs.actions import action_adapter

        adapter, spec = action_adapter(space, joint=self._config.env.joint_actions), self.env_spec
        trained = (spec.num_actions, spec.action_shape, spec.action_sizes)
        if (adapter.num_actions, adapter.shape, adapter.sizes) != trained:
            wanted = f"{spec.num_actions} actions" if spec.is_discrete else f"actions of shape {spec.action_shape}"
            if spec.action_sizes:
                wanted = f"choices of {', '.join(map(str, spec.action_sizes))} options"
            raise ConfigError(f"action_space is {space}, but the policy was trained with {wanted}")
        return adapter

    def _load(self, blob: bytes, device: str) -> None:
        import torch

        state = {name: torch.from_numpy(value).to(device) for name, value in unpack(blob).items()}
        try:
            self._policy.load(state)
        except (RuntimeError, KeyError) as error:
            raise FatalError(
                f"version {self.version.version} does not fit agent.* of {CONFIG}; was it edited? {error}"
            ) from error
