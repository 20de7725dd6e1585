"""The end of an actor's round in lock-step: record it, wait for parameters, store its steps."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from tidemill.acting.params import load_params
from tidemill.config.lock_step import LockStep
from tidemill.errors import DataLoss, FatalError
from tidemill.replay.writing.writer import ReplayWriter
from tidemill.services.actor.acting.loop import PolicyParams
from tidemill.services.actor.lock_step.history import History
from tidemill.services.actor.lock_step.policy import RoundPolicy
from tidemill.services.actor.lock_step.round_file import RoundEnd

_STOP_CHECK_S = 0.5

_log = structlog.get_logger()


class RoundPacer:
    """Counts an actor's steps; between the last step of a round and the first of the next it does what is due.

    A round is recorded first, then the parameters of the next one are waited for, then its messages and those
    parameters are written down, and only then it is stored. A process that is killed anywhere leaves what the next one
    needs to do the rest, and nothing twice: what was recorded is played again, what was stored is recognised.
    """

    def __init__(
        self,
        lock_step: LockStep,
        actor_index: int,
        policy: RoundPolicy,
        writer: ReplayWriter,
        history: History,
        file: Path,
    ) -> None:
        """Begin at the first round, which the history may have.

        Args:
            lock_step: The run's rounds.
            actor_index: Whose turn comes after those of all with a smaller one.
            policy: Acts, or puts out what the history has.
            writer: Holds the messages of a round until it is to store them.
            history: The rounds so far.
            file: Of the newest round's end.
        """
        self._lock_step, self._actor_index, self._policy = lock_step, actor_index, policy
        self._writer, self._history, self._file = writer, history, file
        self._past = history.rounds
        self._kept = RoundEnd.read(file)
        self._number, self._place = 1, 0

    def is_past(self) -> bool:
        """True while rounds are played again that were stored."""
        return self._number < self._past

    def env_steps(self) -> int:
        """Return the decisions of all actors up to here."""
        return self._lock_step.env_steps(self._number, self._place)

    def load(self, params: PolicyParams, stop: threading.Event) -> bool:
        """Load what the first round that is not past is played with; return False if `stop` came before it was there.

        Raises:
            FatalError: It is no longer to be had, or the history is not that of this round's end.
        """
        if self._kept is None:
            if self._past > 1:
                raise FatalError(f"{self._file} is missing: this actor cannot resume; start the run from scratch")
            if not self._wait(params, 0, stop):
                return False
        elif self._past not in (number := self._kept.number, number + 1):  # a round is recorded before its end
            raise FatalError(
                f"{self._file} is of round {number}, but {self._past} rounds are recorded beside it: this actor cannot "
                "resume; start the run from scratch"
            )
        else:
            _load(params, self._kept)
        self._begin()
        return True

    def wait(self, params: PolicyParams, stop: threading.Event) -> bool:
        """Count a step that starts now; return False if `stop` came before it may."""
        if self._place == self._lock_step.round_steps:
            if not self._finish(params, stop):
                return False
            self._number, self._place = self._number + 1, 0
            self._begin()
        self._place += 1
        return True

    def _begin(self) -> None:
        is_recorded = self._number <= self._past
        given = self._history.read(self._number) if is_recorded else None
        self._policy.begin(self._number, given, is_past=self.is_past())

    def _finish(self, params: PolicyParams, stop: threading.Event) -> bool:
        number = self._number
        messages = self._writer.take_held(self._lock_step.turn(number, self._actor_index))
        if self.is_past():
            return True
        if number > self._past:
            self._history.write(self._policy.outputs())
        if self._kept is not None and self._kept.number == number:
            messages = self._kept.messages
        else:
            if not self._wait(params, self._lock_step.updates_after(number - 1), stop):
                return False
            self._kept = _end_of(number, self._writer.epoch, params, messages)
            self._kept.write(self._file)
        try:
            with params.counted_wait():
                return self._writer.store(messages)
        except DataLoss as error:
            raise _lost() from error

    def _wait(self, params: PolicyParams, learner_steps: int, stop: threading.Event) -> bool:
        """Load the parameters after exactly so many updates; return False if `stop` came before them."""
        while True:
            newest = params.watcher.newest()
            found = -1 if newest is None else newest.version.metadata.learner_steps
            if found > learner_steps:
                raise FatalError(
                    f"the newest parameters are those of update {found}, but round {self._number} of this actor needs "
                    f"those of update {learner_steps}: the actor has lost its files; start the run from scratch"
                )
            if found == learner_steps:
                params.refresh()
                return True
            if stop.is_set():
                return False
            with params.counted_wait():
                params.watcher.wait(_STOP_CHECK_S, newer_than=newest.number if newest is not None else 0)


def check_epoch(writer: ReplayWriter, file: Path) -> None:
    """Raise FatalError if the replay service does not know the epoch that a former process has written to."""
    kept = RoundEnd.read(file)
    if kept is not None and kept.epoch != writer.epoch:
        raise _lost()
    if kept is None and writer.superseded_epoch:
        _log.info("the previous process of this actor stored nothing", epoch=writer.superseded_epoch)


def _lost() -> FatalError:
    return FatalError(
        "the replay service has lost this actor's streams: a run in lock-step needs one with a log "
        "(replay.storage.folder), and replay.storage.ack fsync to survive a power failure; start the run from scratch"
    )


def _end_of(number: int, epoch: int, params: PolicyParams, messages: tuple[bytes, ...]) -> RoundEnd:
    newest = params.watcher.newest()
    assert newest is not None
    return RoundEnd(number, epoch, newest.blob, params.version, params.learner_steps, messages)


def _load(params: PolicyParams, kept: RoundEnd) -> None:
    load_params(params.policy, kept.params, kept.version)
    params.version, params.learner_steps = kept.version, kept.learner_steps
