"""Verbs of `tidemill ctl` and of the status page's buttons, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidemill.errors import InvalidArgument, Unavailable
from tidemill.learner.client import LearnerClient
from tidemill.services.launcher.run.paths import why_out_of_reach


def apply_verb(address: str, verb: str, *, asked_by: str) -> str:
    """Pause, resume, checkpoint or stop the run whose learner is at `address`; return what was done, for a person.

    Raises:
        InvalidArgument: there is no such verb.
        TidemillError: the learner cannot be reached, or refuses.
    """
    if verb not in VERBS:
        raise InvalidArgument(f"unknown verb {verb!r}, allowed: one of {', '.join(VERBS)}")
    with learner_at(address) as client:
        return VERBS[verb](client, asked_by)


@contextmanager
def learner_at(address: str) -> Iterator[LearnerClient]:
    """Yield a client; an address at which nobody answers is an error that says so."""
    if why := why_out_of_reach(address):
        raise Unavailable(f"the learner at {address} cannot be reached: {why}")
    try:
        with LearnerClient(address) as client:
            yield client
    except Unavailable as error:
        raise Unavailable(
            f"the learner at {address} does not answer; it may still be starting, see its log, or have ended while the "
            f"last version is evaluated ({error})"
        ) from error


def _pause(client: LearnerClient, _: str) -> str:
    client.pause()
    return "paused; `tidemill ctl resume` continues; run.max_wall_s keeps counting"


def _resume(client: LearnerClient, _: str) -> str:
    client.resume()
    return "training continues"


def _checkpoint(client: LearnerClient, _: str) -> str:
    saved = client.save_checkpoint()
    return f"checkpoint of {saved.learner_steps:,} learner steps: {saved.path}"


def _stop(client: LearnerClient, asked_by: str) -> str:
    client.stop(f"asked by {asked_by}")
    return "stopping: the learner publishes and checkpoints, the evaluator evaluates its last parameters"


VERBS: dict[str, Callable[[LearnerClient, str], str]] = {
    "pause": _pause,
    "resume": _resume,
    "checkpoint": _checkpoint,
    "stop": _stop,
}
