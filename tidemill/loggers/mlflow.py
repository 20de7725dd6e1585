"""MLflow: a run there for a run here, with its settings as parameters, metrics over updates and its result."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count, islice
from typing import Any

from tidemill.loggers.interface import LoggedRun, RunLogger

_MOST_PARAMS = 100
_MOST_TEXT = 500
_MOST_NAME = 250
"""What a request to a tracking server may hold."""
_EXPERIMENT = "tidemill"
_REFUSED = re.compile(r"[^/\w.\-: ]")
"""What the name of a metric or a parameter may not have."""


class MlflowLogger(RunLogger):
    """Logs with the `mlflow` package to MLFLOW_TRACKING_URI.

    The experiment is that of MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID, by default "tidemill".
    """

    def __init__(self, run: LoggedRun) -> None:
        """Start a run there, or continue the one of `run.id`."""
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        self._is_finished = False
        self.id = run.id or self._create(run)
        if run.id:
            self._client.update_run(self.id, status="RUNNING")

    def log(self, step: int, scalars: Mapping[str, float], time_s: float) -> None:
        """Send metrics."""
        at_ms = int(time_s * 1000)
        metrics = [self._metric(_taken(name), value, at_ms, step) for name, value in scalars.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Mark the run as finished, with the numbers of its result as tags."""
        for name, value in result.items():
            if isinstance(value, (bool, int, float, str)):
                self._client.set_tag(self.id, f"result.{name}", value)
        self._client.set_terminated(self.id, "FINISHED")
        self._is_finished = True

    def close(self) -> None:
        """Mark a run that has ended without a result as killed: nothing more is sent to it, unless it is continued."""
        if not (self._is_finished or self.run_continues):
            with contextlib.suppress(Exception):  # the server may be why it ends
                self._client.set_terminated(self.id, "KILLED")

    def _create(self, run: LoggedRun) -> str:
        """Start a run there and return its id; one that does not take the settings is deleted."""
        made = str(self._client.create_run(self._experiment(), run_name=run.name).info.run_id)
        try:
            self._describe(made, run)
        except BaseException:
            with contextlib.suppress(Exception):
                self._client.delete_run(made)
            raise
        return made

    def _describe(self, made: str, run: LoggedRun) -> None:
        from mlflow.entities import Param, RunTag

        settings = dict(_flat(run.config))
        values = (value[:_MOST_TEXT] for value in settings.values())
        params = map(Param, _apart(settings), values)
        while batch := list(islice(params, _MOST_PARAMS)):
            self._client.log_batch(made, params=batch)
        self._client.log_batch(made, tags=[RunTag("tidemill.folder", str(run.folder))])

    def _experiment(self) -> str:
        """Return the id of the experiment of mlflow's variables; the name counts first, as there."""
        name, given = os.environ.get("MLFLOW_EXPERIMENT_NAME"), os.environ.get("MLFLOW_EXPERIMENT_ID")
        if given and not name:
            return given
        wanted = name or _EXPERIMENT
        found = self._client.get_experiment_by_name(wanted)
        return str(found.experiment_id if found is not None else self._client.create_experiment(wanted))


def _taken(name: str) -> str:
    """Return a name as MLflow takes it: `q(s,a)` of an algorithm of your own becomes `q_s_a_`.

    It becomes a path there, without parts that are empty or consist of dots.
    """
    parts = _REFUSED.sub("_", name).split("/")
    return "/".join(part if part.strip(".") else "_" for part in parts)[:_MOST_NAME]


def _apart(names: Iterable[str]) -> Iterator[str]:
    """Yield each name as MLflow takes it, with a number at the end where it would be that of an earlier one."""
    seen: set[str] = set()
    for name in map(_taken, names):
        numbered = (f"{name[: _MOST_NAME - 8]}_{number}" for number in count(2))
        seen.add(apart := next(each for each in chain([name], numbered) if each not in seen))
        yield apart


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings as `agent.gamma` and text."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
