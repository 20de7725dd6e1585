"""The evaluator's calls of the simulator service, and what becomes of an evaluation that the service does not play."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.inference_service import params_of
from tests.support.naming import because
from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.sections import EvaluatorConfig
from tidemill.errors import FailedPrecondition, Reason, TidemillError, Unavailable
from tidemill.services.evaluator import simulator_runner
from tidemill.services.evaluator.progress_file import ProgressFile
from tidemill.services.evaluator.simulator_runner import SimulatorRunner
from tidemill.simulator.evaluation import ClientEpisodes


@pytest.fixture
def answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimulatorRunner]:
    """Make a runner whose calls of the service are answered by these."""

    def make(*answers: ClientEpisodes | TidemillError) -> SimulatorRunner:
        left = list(answers)

        def evaluate(*_: Any, **__: Any) -> ClientEpisodes:  # noqa: ANN401 - those of `evaluate`
            answer = left.pop(0)
            if isinstance(answer, TidemillError):
                raise answer
            return answer

        monkeypatch.setattr(simulator_runner, "evaluate", evaluate)
        monkeypatch.setattr(simulator_runner, "_RETRY_S", 0.0)
        cluster = ClusterSettings(inference=("127.0.0.1:7406",))
        config = EvaluatorConfig(run=RunSettings(root=str(tmp_path)), cluster=cluster)
        return SimulatorRunner(config, ProgressFile(tmp_path), lambda: False)

    return make


def test_service_that_is_away_is_told_once(answered: Callable[..., SimulatorRunner]) -> None:
    """However long it is; the evaluation is complete when it is back."""
    runner = answered(*[Unavailable("nothing answers")] * 100, ClientEpisodes([3.0], [7], failed=0))
    with capture_logs() as logs:
        evaluation = runner.run(params_of({}), range(1))
    assert evaluation is not None
    assert evaluation.returns.tolist() == [3.0]
    assert len(logs) == 1


def test_evaluation_after_the_last_one_is_none(answered: Callable[..., SimulatorRunner]) -> None:
    """An evaluator that takes another's place asks before it knows that training has ended; any other error ends it."""
    over = FailedPrecondition("is_last is false", reason=Reason.EVALUATION_OVER)
    assert answered(over).run(params_of({}), range(1)) is None
    replaced = FailedPrecondition("another evaluator", reason=Reason.EVALUATION_REPLACED)
    with pytest.raises(FailedPrecondition, check=because(Reason.EVALUATION_REPLACED)):
        answered(replaced).run(params_of({}), range(1))
