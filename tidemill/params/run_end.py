"""The end of a run, marked by a tag at the parameter server: set by one process, watched by the others.

The run's folder says how it ended, and whether its learner has diverged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.atomic_files import is_there, write_atomically
from tidemill.closing import Closing
from tidemill.errors import NotFound, TidemillError
from tidemill.logger import LateLogger
from tidemill.params.client import ParamsClient
from tidemill.params.version import DIVERGED, VersionList
from tidemill.rpc.channel import Backoff

RESULT = "result.json"
"""In a run's folder: how the run ended."""
PAUSED = "paused"
"""There while training is paused, also if the learner is restarted meanwhile; resuming the run removes it."""
FILMING = "filming"
"""There while the policy is filmed, and after an evaluator that was killed meanwhile, until the run continues."""

IS_OVER = "run is already over: it reached its target or a limit, or was stopped; to continue it, set another of these"
"""What a process says that is started after the end of its run."""
HAS_DIVERGED = (
    "run is already over: training has diverged; to continue it, change settings of agent or environment, such as the "
    "learning rate"
)
"""What it says if that is how the run ended."""

_JOIN_S = 10.0
_DIVERGED = "diverged.txt"

_log = LateLogger()


def note_divergence(folder: Path, what: str) -> None:
    """Write in a run's folder that training has diverged, and how; raises OSError."""
    write_atomically(folder / _DIVERGED, what + "\n")


def read_divergence(folder: Path) -> str:
    """Return the text of `note_divergence`; empty if the run has not diverged since it was started or resumed."""
    try:
        return (folder / _DIVERGED).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def clear_divergence(folder: Path) -> None:
    """Forget that a run has diverged, as it is resumed."""
    (folder / _DIVERGED).unlink(missing_ok=True)


def result_of(folder: Path, marks: Collection[str]) -> dict[str, Any]:
    """Return the result in a run's folder if it is of the end that one of the marks stands for; empty otherwise.

    Older results and a launcher's do not say of which end they are, and count as that of any.

    Raises:
        OSError: The file cannot be read.
        UnknownFormat: It has a format that this version does not know.
    """
    result = formats.read_json(folder / RESULT, formats.RESULT)
    return result if result.get("mark", "") in ("", *marks) else {}


def set_result_aside(folder: Path) -> None:
    """Keep the previous result as result-1.json, or the next free number: the run continues."""
    if is_there(folder / RESULT):
        (folder / FILMING).unlink(missing_ok=True)
        number = 1
        while is_there(kept := folder / f"result-{number}.json"):
            number += 1
        (folder / RESULT).rename(kept)


def version_at_earlier_end(folder: Path) -> int:
    """Return the newest version with which the run has ended before it continued; 0 for none.

    Raises:
        UnknownFormat: A result has a format that this version does not know.
    """
    results = (formats.read_json(file, formats.RESULT) for file in folder.glob("result-*.json"))
    return max((result.get("params_version", 0) for result in results), default=0)


def is_marked(listed: VersionList, tag: str) -> bool:
    """True if a tag marks the run as over. The mark of a divergence holds until training gets past its version."""
    if tag not in listed.tags or not tag.startswith(DIVERGED) or not listed.versions:
        return tag in listed.tags
    marked = listed.tags[tag]
    since = {each.version: each.metadata.learner_steps for each in listed.versions if each.version >= marked}
    return max(since.values()) == since[marked]  # the newest may have fallen behind: resumed from a checkpoint


class RunEnd(Closing):
    """Marks a run as over, and watches for another process to do so.

    The mark outlives every process: one that is started again after the end finds it. It holds for the target and the
    limits the run had (`RunSettings.end_tag`), and that of a run that has diverged for the settings of agent and
    environment besides (`diverged_tag`); with others the run continues. Once they have trained past the version that
    is marked as diverged, the settings before may train again, too.
    """

    def __init__(self, address: str, tag: str) -> None:
        """Prepare; nothing is contacted yet.

        Args:
            address: Address of the parameter server.
            tag: Name of the mark.
        """
        self._client, self._tag = ParamsClient(address), tag
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def is_marked(self) -> bool:
        """True if the run is over. Raises Unavailable if the parameter server does not answer."""
        return is_marked(self._client.list_versions(), self._tag)

    def watch(self, heard: Callable[[], None]) -> None:
        """Have a thread call `heard` once when the run is marked as over, also if it is already."""
        self._thread = threading.Thread(target=self._watch, args=(heard,), name="run-end", daemon=True)
        self._thread.start()

    def mark(self, timeout_s: float, version: int | None = None) -> None:
        """Mark the run as over; durable when it returns. An existing mark that holds is left unchanged.

        Args:
            timeout_s: How long to try, in seconds. The last try may end up to 10 s later if the server does not answer.
            version: Version the run ended with; the newest if not given.

        Raises:
            TidemillError: The parameter server was unavailable for that long, or keeps no version.
        """
        backoff, deadline_s = Backoff(), time.monotonic() + timeout_s
        while True:
            try:
                self._set(version)
                return
            except TidemillError as error:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._closing.is_set():
                    raise
                pause_s = min(backoff.next_s(), left_s)
                _log.warning("cannot mark the run as over, retrying", reason=str(error), retry_in_s=pause_s)
                self._closing.wait(pause_s)

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._closing.set()
        self._client.close()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _set(self, version: int | None) -> None:
        listed = self._client.list_versions()
        if is_marked(listed, self._tag):
            return
        if not listed.versions:
            raise NotFound("the parameter server keeps no version that the run could have ended with")
        newest = listed.versions[-1].version
        self._client.set_tag(self._tag, newest if version is None else version)

    def _watch(self, heard: Callable[[], None]) -> None:
        backoff = Backoff()
        while not self._closing.is_set():
            try:
                for _ in self._client.watch(self._tag):
                    if self._closing.is_set():
                        return
                    if self.is_marked():
                        heard()
                        return
            except (
                TidemillError,
                ValueError,
            ) as error:  # unavailable, or closed by `close`: retry, the mark is durable
                _log.debug("cannot watch for the end of the run, retrying", reason=str(error))
            self._closing.wait(backoff.next_s())
