"""The runner of evaluation episodes that clients of the simulator service play."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import grpc
import numpy as np
import structlog

from tidemill.config.evaluation import check_policy, epsilon_of
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.watch import watched_spec
from tidemill.errors import ConfigError, FailedPrecondition, Reason, Unavailable
from tidemill.params.version import Params
from tidemill.rpc.channel import open_channel
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.evaluator.protocol import EpisodesFailed, Evaluation
from tidemill.simulator.evaluation import evaluate

_RETRY_S = 0.5

_log = structlog.get_logger()


class SimulatorRunner:
    """Has the simulator service play episodes, in place of environments of the evaluator."""

    def __init__(self, config: EvaluatorConfig, progress: ProgressFile, is_over: Callable[[], bool]) -> None:
        """Prepare; nothing is connected yet.

        Args:
            config: Settings of the evaluation.
            progress: Told of each episode that has ended.
            is_over: Whether training has ended.

        Raises:
            ConfigError: There is no single simulator service, or it cannot play the policy.
        """
        addresses, policy = config.cluster.inference, config.evaluator.policy
        if len(addresses) != 1:
            raise ConfigError(
                f"cluster.inference is {list(addresses)}, allowed with evaluator.source 'simulators': one "
                "address, that of the inference service that the simulators call"
            )
        check_policy(policy, watched_spec(config.env), "simulators")
        self._address, self._progress, self._is_over = addresses[0], progress, is_over
        self._epsilon = epsilon_of(config) if policy == "epsilon" else 0.0
        self._channel: grpc.Channel | None = None

    def run(
        self, params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Have as many episodes played as there are seeds; None if it was stopped, or the run ended, before.

        The clients draw the beginnings of their episodes, so the seeds of the evaluation only number them.

        Raises:
            EpisodesFailed: No client played an episode to its end.
        """
        count, is_told = len(seeds), False
        try:
            while not is_stopped():
                self._progress.write(params.number, 0, count)
                try:
                    return self._evaluated(params, count, is_stopped)
                except FailedPrecondition as error:
                    if error.reason is not Reason.EVALUATION_OVER:
                        raise
                    # asked by an evaluator that this one replaces: it is told soon that training has ended
                    _log.warning("version not evaluated", version=params.number, reason=str(error))
                    return None
                except Unavailable as error:
                    if not is_told:
                        _log.warning("evaluation lost, trying again", version=params.number, reason=str(error))
                    is_told = True
                    self.close()
                    time.sleep(_RETRY_S)
            return None
        finally:
            self._progress.clear()

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _evaluated(self, params: Params, count: int, is_stopped: Callable[[], bool]) -> Evaluation | None:
        if self._channel is None:
            self._channel = open_channel(self._address)
        played = evaluate(
            self._channel,
            params.number,
            count,
            epsilon=self._epsilon,
            is_last=self._is_over(),
            is_stopped=is_stopped,
            on_progress=lambda ended: self._progress.write(params.number, ended, count),
        )
        if played is None:
            return None
        if not played.returns:
            raise EpisodesFailed(f"none of {count} episodes was completed by its client")
        lengths = np.array(played.lengths, np.int64)
        return Evaluation(np.array(played.returns), lengths, tuple(range(len(lengths))), failed=played.failed)
