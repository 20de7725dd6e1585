"""The runner of evaluation episodes: it loads parameters into the policy and follows the protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tidemill.acting.params import load_params
from tidemill.config.evaluation import check_policy, epsilon_of, noop_max_of
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.interface import EpisodeSummary, VectorEnv
from tidemill.envs.make import make_env, make_isolated, spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.params.version import Params
from tidemill.rl.action_noise import NoiseConfig
from tidemill.rl.agents.build import build_policy
from tidemill.rl.settings.registry import AgentConfig
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.evaluator.protocol import EvalPolicy, EvalProtocol, Evaluation
from tidemill.types import EnvSpec

_PAST_SCHEDULES = 2**62
"""A count of agent decisions after all random ones and at the end of every schedule."""


class EpisodeRunner:
    """One policy and the environments it is evaluated in."""

    def __init__(
        self,
        config: EvaluatorConfig,
        progress: ProgressFile | None = None,
        made: Callable[[Callable[[], VectorEnv]], VectorEnv] = lambda make: make(),
        find_spec: Callable[[EnvSettings], EnvSpec] = spec_of,
    ) -> None:
        """Build the policy.

        Args:
            config: Settings of the evaluation.
            progress: Told of each episode that has ended.
            made: Makes each environment, by calling its argument.
            find_spec: Returns the specification of an environment.

        Raises:
            ConfigError: there is no such environment, or the algorithm or the protocol cannot act in it.
        """
        settings, self._config, self._progress, self._made = config.evaluator, config, progress, made
        self._env = replace(config.env, noop_max=noop_max_of(config))
        self._spec = find_spec(self._env)
        check_policy(settings.policy, self._spec)
        agent = _without_quiet_environments(config.agent) if settings.policy == "sampled" else config.agent
        self._policy = build_policy(agent, self._spec, seed=settings.seed)
        self._protocol = EvalProtocol(self._make_slot_env, settings.num_envs)

    def run(
        self, params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Play one episode of each seed with these parameters; None if it was stopped before the last ended.

        Raises:
            InvalidArgument: the bytes are not parameters.
            FatalError: they do not fit the network.
        """
        policy, progress, count = self._eval_policy(params), self._progress, len(seeds)
        if progress is None:
            return self._protocol.play(policy, seeds, is_stopped)
        progress.write(params.number, 0, count)
        try:
            return self._protocol.play(
                policy, seeds, is_stopped, lambda ended: progress.write(params.number, ended, count)
            )
        finally:
            progress.clear()

    def record(
        self, params: Params, recorder: Callable[[VectorEnv, EvalPolicy], EpisodeSummary | None]
    ) -> EpisodeSummary | None:
        """Let `recorder` play these parameters in an environment with pictures."""
        _need_no_screen()  # an environment's own process has the variables of when it is started
        return recorder(self._make_slot_env(render=True), self._eval_policy(params))

    def close(self) -> None:
        """Free the environments."""
        self._protocol.close()

    def _eval_policy(self, params: Params) -> EvalPolicy:
        load_params(self._policy, params.blob, params.number, params.version.metadata.algorithm)
        settings, recurrent_state_size = self._config.evaluator, self._policy.recurrent_state_size
        if settings.policy == "sampled":
            return EvalPolicy(
                lambda policy_input: self._policy.act(policy_input, _PAST_SCHEDULES),
                recurrent_state_size,
                keeps_rows=True,
                clips_rewards=self._env.clips_rewards,
            )
        epsilon = epsilon_of(self._config) if settings.policy == "epsilon" else 0.0
        return EvalPolicy(
            lambda policy_input: self._policy.act(policy_input, evaluation=True),
            recurrent_state_size,
            epsilon,
            self._spec.num_actions,
            clips_rewards=self._env.clips_rewards,
        )

    def _make_slot_env(self, *, render: bool = False) -> VectorEnv:
        if self._env.isolate:
            return self._made(partial(make_isolated, self._env, render=render))
        return self._made(partial(make_env, self._env, 1, training=False, render=render))


def _without_quiet_environments(agent: AgentConfig) -> AgentConfig:
    """Return the settings of an algorithm with `greedy_fraction` 0: episodes without noise are another policy's."""
    if getattr(agent, "greedy_fraction", 0.0):
        agent = replace(agent, greedy_fraction=0.0)  # type: ignore[type-var]
    if isinstance(noise := getattr(agent, "noise", None), NoiseConfig):
        agent = replace(agent, noise=replace(noise, greedy_fraction=0.0))  # type: ignore[type-var]
    return agent


def _need_no_screen() -> None:
    """Let pygame and MuJoCo draw without a screen, unless the environment's variables say otherwise."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if sys.platform == "linux" and not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
        os.environ.setdefault("MUJOCO_GL", "egl")  # what it takes otherwise asks for a window first
