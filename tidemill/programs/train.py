"""Training with one call, in a script or a notebook: a cluster from its start to its end, with progress on the way."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidemill import errors
from tidemill.config.addresses import check_addresses
from tidemill.config.given import given_in
from tidemill.config.load import by_names, by_sections, load_run
from tidemill.config.presets import find_config
from tidemill.config.run import RunSettings
from tidemill.errors import ConfigError, FatalError, TidemillError, Unavailable
from tidemill.programs.cluster import Cluster
from tidemill.programs.progress import ProgressLine, describe
from tidemill.programs.result import RunResult
from tidemill.scores import Score, ScoreReader

_POLL_S = 1.0
_LAST_LINES = 12
_INTERRUPTED = (
    -signal.SIGINT,
    128 + signal.SIGINT,
    -signal.SIGTERM,
)  # exit codes of a launcher whose run has not begun
_WARNING = re.compile(r"\[ *[\d.]+ s\] (warning: .*)")  # as the launcher's plain view prints it
_DETAIL = "           | "  # before each line that explains an event
_REFUSAL = re.compile(r"^tidemill train: (.*)", re.MULTILINE | re.DOTALL)  # as `process.run` explains an error


def train(
    env: str | None = None,
    *,
    algorithm: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    fresh: bool = False,
    progress: bool = True,
) -> RunResult:
    """Train with a whole cluster on this machine, as `tidemill train` does, and return what it has learned.

    The run ends at its target or a limit (`run.target_return`, `run.max_env_steps`, `run.max_wall_s`). One interrupt
    (Ctrl-C, the stop button of a notebook) ends it earlier: everything is saved, the result so far is returned, and
    `tidemill resume` can continue the run. A second one does not wait, and raises `KeyboardInterrupt`, as does one in
    the first seconds, while the settings are checked. No process is left either way. It works in a notebook, in a
    thread and while an event loop runs.

    Args:
        env: Id of an environment of gymnasium, or `module:Id` of your own; None: that of the config.
        algorithm: Name of an algorithm, such as `dqn`; None: that of the config.
        config: Path of a file of settings or name of a preset, such as `cartpole_dqn`; None: the defaults.
        settings: Settings put over those of the config, by their dotted names: `{"agent.batch_size": 64}`.
        fresh: Whether a run of the same name that has trained already is moved aside; nothing is deleted.
        progress: Whether to print a line of progress, redrawn in place on a terminal and in a notebook.

    Returns:
        Curve, best score, policy and folder of the run.

    Raises:
        ConfigError: Nothing to train is given, a setting is unknown or out of range, or the environment does not fit
            the algorithm.
        AlreadyExists: A run of this name has trained already, and `fresh` is not set.
        FatalError: The run failed; the message names the process and its last words.

    Example:
        >>> import tidemill
        >>> short = {"run.name": "short", "run.max_env_steps": 4000, "evaluator.episodes": 2}
        >>> result = tidemill.train("CartPole-v1", algorithm="dqn", settings=short, progress=False)
        >>> result.curve.env_steps.shape == result.curve.score.shape
        True
        >>> int(result.policy([0.0, 0.0, 0.0, 0.0])) in (0, 1)
        True
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"settings are {settings!r}, allowed: a mapping, such as {{'agent.batch_size': 64}}")
    named = {"env.id": env, "agent.algorithm": algorithm}
    options = {**(settings or {}), **{name: value for name, value in named.items() if value is not None}}
    if config is None and not options:
        raise ConfigError(
            "nothing to train given: name an environment and an algorithm, or a config, such as cartpole_dqn"
        )
    resolved, notes = load_run(config, options)
    of_file = {} if config is None else given_in(find_config(str(config)))
    check_addresses(resolved, of_file | by_names(by_sections(options)))
    # What follows reads the launcher's plain view, which `auto` is for a file.
    resolved = replace(resolved, launcher=replace(resolved.launcher, view="auto"))
    line = ProgressLine(sys.stdout) if progress and sys.stdout else None  # a program may have been started without one
    for note in (*notes, *_without_end(resolved.run)):
        _say(line, f"note: {note}")
    cluster = Cluster(resolved, fresh=fresh)
    try:
        try:
            cluster.start()
            _follow(cluster, line)
            result = cluster.result()
        except KeyboardInterrupt:
            if not cluster.is_running:
                raise
            _say(line, "stopping; interrupt again to end without saving")
            result = cluster.stop()
            if result.exit_code in _INTERRUPTED:  # before there was anything to save
                raise
        if result.exit_code:
            raise _failure(result, cluster.output())
    finally:
        cluster.close()
    _say(line, result.describe())
    return result


def _follow(cluster: Cluster, line: ProgressLine | None) -> None:
    """Show progress and warnings until the run ends."""
    began_s = time.monotonic()
    shown, has_started = 0, False
    files = [ScoreReader(cluster.folder / name) for name in ("scores.csv", "confirmations.csv")]
    while not _has_ended(cluster):
        if line is None:
            continue
        lines = cluster.output()
        for found in filter(None, map(_WARNING.match, lines[shown:])):
            line.note(found[1])
        shown = len(lines)
        status = cluster.poll()
        has_started |= status is not None
        # Until then they may be those of an earlier run of this name.
        scores, confirmations = (_scores(file) if has_started else () for file in files)
        line.show(describe(status, scores, cluster.config.run, time.monotonic() - began_s, confirmations))


def _has_ended(cluster: Cluster) -> bool:
    """Wait for the end of a run for a moment; return whether it has come."""
    try:
        cluster.wait(_POLL_S)
    except Unavailable:
        return False
    return True


def _scores(file: ScoreReader) -> tuple[Score, ...]:
    with contextlib.suppress(TidemillError):  # a run does not depend on being watched
        return file.read()
    return ()


def _without_end(run: RunSettings) -> list[str]:
    """Return a note if nothing but an interrupt ends the run."""
    if run.target_return is not None or any((run.max_env_steps, run.max_learner_steps, run.max_wall_s)):
        return []
    return ["the run has no end: interrupt it, or set run.target_return, run.max_env_steps or run.max_wall_s"]


def _failure(result: RunResult, lines: list[str]) -> TidemillError:
    """Return the exception for a run that failed, with the message that its launcher has printed."""
    if refusal := _REFUSAL.search("\n".join(lines)):
        name, _, message = refusal[1].partition(": ")
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TidemillError):
            return kind(message)
        return (ConfigError if result.exit_code == 2 else FatalError)(refusal[1])
    reason = next((line for line in reversed(lines) if line.startswith(f"{result.folder.name}: ")), "")
    details = [line.removeprefix(_DETAIL) for line in lines if line.startswith(_DETAIL)]
    said = [reason, *details[-_LAST_LINES:]] if reason else lines[-_LAST_LINES:]
    return FatalError("\n".join([*said, f"The logs are in {result.folder / 'logs'}"]))


def _say(line: ProgressLine | None, text: str) -> None:
    if line is not None:
        line.note(text)
