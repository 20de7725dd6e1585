"""Callbacks: user code that a run calls while it trains, for loggers, alerts and uploads.

Callbacks are called by one thread beside training, in the order of what happened, and never by the training thread
itself. One that raises is logged with its name and not called again; training is not touched. One that is too slow
misses what happens meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.config.run import RunSettings
from tidemill.errors import ConfigError, described
from tidemill.logger import LateLogger
from tidemill.scores import Score
from tidemill.settings.overlay import to_document
from tidemill.settings.user_code import user_object

_MAX_WAITING = 256
_CLOSE_S = 10.0

_log = LateLogger()


@dataclass(frozen=True)
class CallbackContext:
    """The process that calls a callback, and its run.

    Attributes:
        service: `learner` or `evaluator`: each makes the callbacks that its own settings name.
        run_name: Name of the run.
        folder: The run's folder; what is written below it stays with the run.
        config: Settings of the service as YAML would hold them, e.g. `config["agent"]["gamma"]`.
    """

    service: str
    run_name: str
    folder: Path
    config: Mapping[str, Any]


class Callback:
    """The events of a run; a callback overrides those it is interested in.

    It is made once in each process whose settings name it, by calling what `learner.callbacks` or
    `evaluator.callbacks` name with a `CallbackContext`.

    No method is called by two threads at once, or after `close`. An exception is logged, and the callback is not
    called again.

    Example:
        >>> import tidemill
        >>> class Printer(tidemill.Callback):
        ...     def __init__(self, context):
        ...         self.name = context.run_name
        ...
        ...     def on_update(self, step, metrics):
        ...         print(self.name, step, metrics["loss"])
        >>> from pathlib import Path
        >>> context = tidemill.CallbackContext("learner", "a-run", Path("runs/a-run"), {})  # as the learner calls it
        >>> Printer(context).on_update(100, {"loss": 0.5})
        a-run 100 0.5
    """

    def on_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Learner: metrics were read, about once per second while there are updates.

        Args:
            step: Updates so far.
            metrics: The agent's of the newest updates, such as `loss`, `q` and norms of gradients, in units of the
                algorithm; and `env_steps` (agent decisions), `steps_per_s` (updates), `wait_fraction` (0 to 1).
        """

    def on_publish(self, version: int) -> None:
        """Learner: the parameter server has stored a new version, numbered from 1; some may be passed over."""

    def on_evaluation(self, score: Score) -> None:
        """Evaluator: a version was evaluated; `score` is the row of `scores.csv` that was written."""

    def close(self) -> None:
        """The service ends; called once, unless the callback has failed."""


def make_callbacks(setting: str, names: Sequence[str], run: RunSettings, config: object) -> dict[str, Callback]:
    """Return the callbacks that a setting names, by name.

    Args:
        setting: `learner.callbacks` or `evaluator.callbacks`.
        names: Each `module:name` of a class, or a function, that takes a `CallbackContext`.
        run: The run.
        config: Settings of the service.

    Raises:
        ConfigError: One is not there, cannot be made, or is not a `Callback`.
    """
    context = CallbackContext(setting.partition(".")[0], run.name, run.folder, to_document(config))
    made = {}
    for name in names:
        factory = user_object(setting, name)
        try:
            callback = factory(context)
        except Exception as error:  # whatever the user's class raises
            reason = described(error)
            raise ConfigError(f"{setting} names {name!r}, which could not be made: {reason}") from error
        if not isinstance(callback, Callback):
            raise ConfigError(f"{setting} names {name!r}, which made {type(callback).__name__}, no tidemill.Callback")
        made[name] = callback
    return made


class CallbackThread:
    """Calls callbacks in a separate thread; the methods of the same names never block and never raise."""

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        """Start the thread, unless there are no callbacks."""
        self._callbacks = dict(callbacks)
        self._waiting: queue.Queue[tuple[str, tuple[Any, ...]] | None] = queue.Queue(_MAX_WAITING)
        self._is_late = False
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        if self._callbacks:
            self._thread.start()

    def on_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report that metrics were read."""
        self._tell("on_update", step, dict(metrics))

    def on_publish(self, version: int) -> None:
        """Report that a version was stored."""
        self._tell("on_publish", version)

    def on_evaluation(self, score: Score) -> None:
        """Report that a version was evaluated."""
        self._tell("on_evaluation", score)

    def close(self) -> None:
        """Call for what waits, then `Callback.close`; within a bounded time. May be called twice."""
        if not self._thread.is_alive():
            return
        with suppress(queue.Full):
            self._waiting.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _log.warning("callbacks still running at exit, abandoned", waited_s=_CLOSE_S)

    def _tell(self, method: str, *arguments: Any) -> None:  # noqa: ANN401 - what the method takes
        if not self._callbacks:
            return
        try:
            self._waiting.put_nowait((method, arguments))
        except queue.Full:
            if not self._is_late:
                _log.warning("callbacks too slow, events dropped", callbacks=sorted(self._callbacks))
            self._is_late = True

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            self._call(*event)
        self._call("close", ())

    def _call(self, method: str, arguments: tuple[Any, ...]) -> None:
        for name, callback in list(self._callbacks.items()):
            try:
                getattr(callback, method)(*arguments)
            except BaseException as error:  # whatever the user's class raises, training continues without it
                del self._callbacks[name]
                _log.error("callback failed, disabled", callback=name, method=method, exc_info=error)
