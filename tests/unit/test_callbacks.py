"""Callbacks: called in order beside training, out of its way when they fail or dawdle, checked when they are made."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.naming import naming
from tidemill.config.load import load_config
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.loggers.callbacks import Callback, CallbackThread, make_callbacks
from tidemill.scores import Score

_WAIT_S = 60.0
_SCORE = Score(1.0, 2, 3, 4, 5, 6.0, 0.0, 6.0, 6.0, 6.0, 7.0)


class Notes(Callback):
    """Notes what it receives; fails at the update of one step."""

    def __init__(self, fails_at: int = -1, error: type[BaseException] = RuntimeError) -> None:
        self.error = error
        self.notes: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self._fails_at = fails_at

    def on_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note it, or fail."""
        if step == self._fails_at:
            raise self.error("the disk is full")
        self.notes.append(("update", step, dict(metrics)))
        self.threads.add(threading.get_ident())

    def on_publish(self, version: int) -> None:
        """Note it."""
        self.notes.append(("publish", version))

    def on_evaluation(self, score: Score) -> None:
        """Note it."""
        self.notes.append(("evaluation", score))

    def close(self) -> None:
        """Note it."""
        self.notes.append(("close",))


class Stuck(Callback):
    """Returns from no update before it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.calls = 0

    def on_update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Wait."""
        assert self.go_on.wait(_WAIT_S)
        self.calls += 1


def test_callback_is_told_everything_in_order_by_another_thread() -> None:
    """What came before `close` is called first; metrics are a copy, which the caller may change."""
    notes = Notes()
    callbacks = CallbackThread({"notes": notes})
    metrics = {"loss": 0.5}
    callbacks.on_update(10, metrics)
    metrics["loss"] = 9.0
    callbacks.on_publish(3)
    callbacks.on_evaluation(_SCORE)
    callbacks.close()
    callbacks.close()
    assert notes.notes == [("update", 10, {"loss": 0.5}), ("publish", 3), ("evaluation", _SCORE), ("close",)]
    assert threading.get_ident() not in notes.threads


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_callback_that_raises_is_logged_once_and_not_called_again(error: type[BaseException]) -> None:
    """By its name; the caller notices nothing, and the other callbacks are called as before."""
    broken, sound = Notes(2, error), Notes()
    callbacks = CallbackThread({"my_module:Broken": broken, "my_module:Sound": sound})
    with capture_logs() as logs:
        for step in (1, 2, 3):
            callbacks.on_update(step, {})
        callbacks.close()
    assert [note[1:2] for note in broken.notes] == [(1,)]
    assert [note[1:2] for note in sound.notes] == [(1,), (2,), (3,), ()]
    (entry,) = logs
    assert entry["callback"] == "my_module:Broken"
    assert entry["method"] == "on_update"
    assert "the disk is full" in str(entry["exc_info"])


def test_callback_that_is_too_slow_misses_events_and_holds_nobody_up() -> None:
    """At most 256 events wait; the rest is dropped, which is said once."""
    stuck = Stuck()
    callbacks = CallbackThread({"stuck": stuck})
    started = time.monotonic()
    with capture_logs() as logs:
        for step in range(1000):
            callbacks.on_update(step, {})
    assert time.monotonic() - started < _WAIT_S
    assert [entry["event"] for entry in logs] == ["callbacks too slow, events dropped"]
    stuck.go_on.set()
    callbacks.close()
    assert 256 <= stuck.calls <= 257


def test_without_callbacks_there_is_no_thread() -> None:
    """And nothing to close."""
    before = threading.active_count()
    callbacks = CallbackThread({})
    callbacks.on_update(1, {})
    callbacks.close()
    assert threading.active_count() == before


_MODULE = """
import tidemill


class NoCallback:
    def __init__(self, context):
        pass


class Refuses(tidemill.Callback):
    def __init__(self, context):
        raise OSError("no network")
"""


@pytest.fixture
def odd_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of callbacks in the working directory."""
    (tmp_path / "odd_callbacks.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("odd_callbacks", None)


def _made(*names: str, config: RunConfig | None = None) -> dict[str, Callback]:
    config = config or RunConfig()
    return make_callbacks("learner.callbacks", names, config.run, config)


def test_example_writes_what_it_was_told(tmp_path: Path) -> None:
    """One JSON object per line below the run's folder, which its context names."""
    run = {"root": str(tmp_path), "name": "here"}
    config = load_config({"run": run, "agent": {"algorithm": "dqn", "gamma": 0.5}})
    config.run.folder.mkdir()
    callbacks = CallbackThread(_made("callbacks:JsonLines", config=config))
    callbacks.on_update(7, {"loss": 0.5})
    callbacks.on_publish(1)
    callbacks.on_evaluation(_SCORE)
    callbacks.close()
    lines = [json.loads(line) for line in (tmp_path / "here" / "events-learner.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["config", "update", "publish", "evaluation"]
    assert lines[0]["agent"]["gamma"] == 0.5
    assert lines[1] == {"event": "update", "step": 7, "loss": 0.5}
    assert lines[3]["mean"] == 6.0


@pytest.mark.usefixtures("odd_callbacks")
@pytest.mark.parametrize(
    "name,message",
    [
        ("odd_callbacks:Printer", "learner.callbacks 'odd_callbacks:Printer' odd_callbacks 'Printer'"),
        ("odd_callbacks", "module:name"),
        ("odd_callbacks:NoCallback", "NoCallback tidemill.Callback"),
        ("odd_callbacks:Refuses", "'odd_callbacks:Refuses' OSError: no network"),
        ("no_such_callbacks:Printer", "no_such_callbacks"),
    ],
)
def test_callback_that_cannot_be_made_is_an_error_of_the_settings(name: str, message: str) -> None:
    """Before anything is trained."""
    with pytest.raises(ConfigError, match=naming(message)):
        _made(name)
