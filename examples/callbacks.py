"""A custom logger: every event of a run, one JSON object per line in RUN/events-SERVICE.jsonl."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import tidemill


class JsonLines(tidemill.Callback):
    """Made once by the learner and once by the evaluator, where both settings name it."""

    def __init__(self, context: tidemill.CallbackContext) -> None:
        """Open the file of the service that calls; a restarted one appends."""
        self._file = (context.folder / f"events-{context.service}.jsonl").open("a")
        self._write("config", agent=context.config["agent"])

    def on_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line about once per second."""
        self._write("update", step=step, **metrics)

    def on_publish(self, version: int) -> None:
        """Write a line for a version."""
        self._write("publish", version=version)

    def on_evaluation(self, score: tidemill.Score) -> None:
        """Write a line for an evaluation."""
        self._write("evaluation", **dataclasses.asdict(score))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: str, **values: Any) -> None:  # noqa: ANN401 - what JSON holds
        self._file.write(json.dumps({"event": event, **values}) + "\n")
        self._file.flush()
