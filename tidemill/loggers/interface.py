"""Loggers: where `tidemill log` sends what a run wrote down, beside its own files and TensorBoard."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.errors import ConfigError, described
from tidemill.settings.check import nearest
from tidemill.settings.user_code import user_object


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger is made for.

    Attributes:
        name: Name of the run; of a sweep's run `SWEEP-trial-0003-seed-1`.
        folder: The run's folder.
        config: Its settings as YAML would hold them, e.g. `config["agent"]["gamma"]`.
        id: What `RunLogger.id` was when this run was last sent, so that it is continued there; empty the first time.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    id: str = ""


class RunLogger:
    """Sends what a run wrote down somewhere else; one is made by calling what `--to` names with a `LoggedRun`.

    A separate process reads the run's files and calls it, so it may block and fail without touching the run. What
    was sent when that process died may be sent again.

    Example:
        >>> import tidemill
        >>> class Printer(tidemill.RunLogger):
        ...     def __init__(self, run):
        ...         self.id = run.id or run.name
        ...
        ...     def log(self, step, scalars, time_s):
        ...         print(step, scalars)
        >>> from pathlib import Path
        >>> run = tidemill.LoggedRun("a-run", Path("runs/a-run"), {})  # as `tidemill log` makes it
        >>> Printer(run).log(100, {"learner/loss": 0.5}, 0.0)
        100 {'learner/loss': 0.5}
    """

    id: str = ""
    """Names the run at the other end; kept, and handed to the logger that continues."""

    run_continues: bool = False
    """Whether the run itself is still running, set before `close`: `tidemill log` was stopped before it."""

    def log(self, step: int, scalars: Mapping[str, float], time_s: float) -> None:
        """Send scalars.

        Args:
            step: Updates. They go back where the learner went back to a checkpoint.
            scalars: Finite values by name: `learner/loss`, `evaluation/mean`, `confirmation/mean` and so on.
            time_s: When they were written, seconds since 1970.

        Raises:
            Exception: They could not be sent; they are sent again when `tidemill log` is run again.
        """

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run has ended: `result` is its result.json. Called before `close`, not for a run that may continue."""

    def close(self) -> None:
        """Nothing more is sent; called once."""


_BUILT_IN = {"mlflow": "tidemill.loggers.mlflow:MlflowLogger", "wandb": "tidemill.loggers.wandb:WandbLogger"}
"""By the name of the package that each needs, which an extra of the same name installs."""


def check_logger(setting: str, name: str) -> Callable[[LoggedRun], Any]:
    """Return the factory of the logger of a name: `mlflow`, `wandb`, or `module:name` of the user's class or function.

    Args:
        setting: Where the name was given, for messages.
        name: The name.

    Raises:
        ConfigError: There is none of this name, or its package is not installed.
    """
    if name in _BUILT_IN and importlib.util.find_spec(name) is None:
        raise ConfigError(f"{setting} is {name!r}, which needs its package: pip install 'tidemill[{name}]'")
    if name not in _BUILT_IN and ":" not in name:
        hint = nearest(name, list(_BUILT_IN))
        raise ConfigError(f"{setting} is {name!r}, allowed: {', '.join(_BUILT_IN)}, or module:name{hint}")
    factory: Callable[[LoggedRun], Any] = user_object(setting, _BUILT_IN.get(name, name))
    return factory


def make_logger(name: str, run: LoggedRun) -> RunLogger:
    """Return the logger of a name, as `check_logger` takes it.

    Raises:
        ConfigError: There is none of this name, or it cannot be made.
    """
    factory = check_logger("--to", name)
    try:
        logger = factory(run)
    except Exception as error:  # whatever the user's class, or a package, raises
        raise ConfigError(f"--to {name}: it could not be made: {described(error)}") from error
    if not isinstance(logger, RunLogger):
        raise ConfigError(f"--to {name} made {type(logger).__name__}, no tidemill.RunLogger")
    return logger
