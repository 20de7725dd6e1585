"""Plays parameters: loads them into the policy, then follows the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from services.evaluator.protocol import Evaluation, Player, Protocol
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.interface import EpisodeSummary, VectorEnv
from tidemill.envs.make import make_env, spec_of
from tidemill.errors import FatalError
from tidemill.params.blob import unpack
from tidemill.params.version import Params
from tidemill.rl.agents.build import build_policy


class Examiner:
    """One policy and the environments it is tested in."""

    def __init__(self, config: EvaluatorConfig) -> None:
        """Build the policy.

        Raises:
            ConfigError: there is no such environment, or the algorithm cannot act in it.
        """
        self._config = config
        self._policy = build_policy(config.agent, spec_of(config.env), seed=config.evaluator.seed)
        self._protocol = Protocol(self._make_slot_env, config.evaluator.num_envs)

    def test(
        self, params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Play one episode of each seed with these parameters; None if it was stopped before the last ended.

        Raises:
            InvalidArgument: the bytes are no parameters.
            FatalError: they are of another network.
        """
        return self._protocol.play(self._player(params), seeds, is_stopped)

    def film(
        self, params: Params, record: Callable[[VectorEnv, Player], EpisodeSummary | None]
    ) -> EpisodeSummary | None:
        """Let `record` play these parameters in an environment with pictures."""
        env = make_env(self._config.env, 1, training=False, render=True)
        return record(env, self._player(params))

    def close(self) -> None:
        """Free the environments."""
        self._protocol.close()

    def _player(self, params: Params) -> Player:
        state = {name: torch.from_numpy(value) for name, value in unpack(params.blob).items()}
        try:
            self._policy.load(state)
        except (RuntimeError, KeyError) as error:
            raise FatalError(f"version {params.number} is of another network than agent.*: {error}") from error
        is_greedy = self._config.evaluator.policy == "greedy"
        return Player(self._policy.greedy if is_greedy else self._policy.evaluate, self._policy.memory_size)

    def _make_slot_env(self) -> VectorEnv:
        return make_env(self._config.env, 1, training=False)
