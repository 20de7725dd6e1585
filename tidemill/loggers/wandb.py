"""Weights & Biases: a run there for a run here, with its settings, curves over updates and its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.loggers.interface import LoggedRun, RunLogger

_STEP = "learner_steps"


class WandbLogger(RunLogger):
    """Logs with the `wandb` package, whose own variables hold: WANDB_PROJECT, WANDB_MODE=offline and so on."""

    def __init__(self, run: LoggedRun) -> None:
        """Start a run there, or continue the one of `run.id`; offline files are put below the run's folder."""
        import wandb

        self._run = wandb.init(
            name=run.name, id=run.id or None, resume="allow", config=dict(run.config), dir=str(run.folder)
        )
        self.id = str(self._run.id)
        # Its own step may only grow; evaluations are older than the learner's newest metrics.
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def log(self, step: int, scalars: Mapping[str, float], time_s: float) -> None:
        """Send scalars over `learner_steps`."""
        self._run.log({_STEP: step, "_timestamp": time_s, **scalars})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Make the result the run's summary."""
        self._run.summary.update(dict(result))

    def close(self) -> None:
        """Wait until everything is sent, or in the offline files."""
        self._run.finish()
