"""New priorities of a run in lock-step: a table gets those of a round together, at the round's end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from tidemill.arrays import Keys
from tidemill.errors import ResourceExhausted, Unavailable, Unimplemented
from tidemill.replay.chunk import SLOT_OF_KEY, SMALLEST_PRIORITY
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.priorities import PriorityMessages, PrioritySender, Update, in_messages
from tidemill.services.learner.data.dataset import read_priorities
from tidemill.services.learner.status.divergence import check_finite
from tidemill.services.learner.status.fence import superseded

_Round = tuple[Keys, NDArray[np.float64]]

_SNAPSHOT_EVERY = 16  # rounds; a checkpoint of the learner holds the priorities of as many
_ATTEMPT_S = 4.0  # how soon a learner that waits for the server notices that it shall stop

HELD = PriorityMessages(read=read_priorities, hold=True)

_log = structlog.get_logger()


class RoundPriorities:
    """Ends rounds: sends the priorities that the dataset held, and keeps those since the table's last snapshot.

    The replay service's log has no priorities, only its snapshots do: after its restart the kept ones are sent again.
    They are values, not changes, so sending them once more does no harm.
    """

    def __init__(self, table: str, stopped: Callable[[], bool]) -> None:
        """Start with nothing.

        Args:
            table: Name of the table.
            stopped: Whether the learner is stopping, so that a server that is away is no longer waited for.
        """
        self._table, self._stopped = table, stopped
        self.fencing_token = 0
        """Of this learner, once it has one: the server refuses what an older one sends."""
        self._sender: PrioritySender | None = None
        self._begun: list[Update] = []  # of the round in which the learner was stopped before
        self._sending = threading.Lock()  # guards what follows, and keeps messages in order
        self._kept: list[_Round] = []

    def collect(self, sender: PrioritySender) -> None:
        """Take what holds the priorities of the present round, and begin with those from before a restart."""
        self._sender = sender
        for update in self._begun:
            sender.send(update.keys, update.priorities)

    def end_round(self) -> None:
        """Keep the priorities of the round that ends; a checkpoint from now on has them.

        Raises:
            Diverged: They are not finite.
        """
        assert self._sender is not None
        keys, priorities = _joined(self._sender.take_held())
        check_finite([priorities], "priorities")
        with self._sending:
            self._kept.append((keys, priorities + SMALLEST_PRIORITY))

    def deliver(self, client: ReplayClient) -> None:
        """Send the last round's priorities, before a snapshot all that are kept, and wait until the server has them.

        If the learner stops, it waits no longer.

        Raises:
            StalePublisher: A newer learner took over.
        """
        assert self._sender is not None
        while not self._stopped():
            try:
                with self._sending, superseded():
                    is_due = len(self._kept) >= _SNAPSHOT_EVERY
                    # All of them before a snapshot: a restarted server may be found here before `send_again` has run.
                    # One call stores them: it begins again as a whole if the server is killed in it.
                    keys, priorities = zip(*(self._kept if is_due else self._kept[-1:]), strict=True)
                    self._sender.store(np.concatenate(keys), np.concatenate(priorities), timeout_s=_ATTEMPT_S)
                    if is_due:
                        self._kept = [] if _take_snapshot(client) else [_newest(self._kept)]
                return
            except Unavailable as error:
                _log.warning("cannot send priorities, retrying", reason=str(error))

    def send_again(self, client: ReplayClient) -> None:
        """Send everything that no snapshot has, before anything is drawn from a server that may have restarted."""
        with self._sending:
            for kept in self._kept:
                for keys, priorities in in_messages(*kept):
                    client.update_priorities(self._table, keys, priorities, self.fencing_token)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: of the rounds since the last snapshot, and of the present one so far."""
        with self._sending:
            kept = list(self._kept)
        sizes = [len(keys) for keys, _ in kept]
        keys = np.concatenate([_NO_KEYS, *(keys for keys, _ in kept)])
        priorities = np.concatenate([_NO_PRIORITIES, *(priorities for _, priorities in kept)])
        round_keys, round_priorities = _joined(self._begun if self._sender is None else self._sender.held())
        return {
            "sizes": sizes,
            "keys": torch.from_numpy(keys.view(np.int64)),
            "priorities": torch.from_numpy(priorities),
            "round_keys": torch.from_numpy(round_keys.view(np.int64)),
            "round_priorities": torch.from_numpy(round_priorities),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; `collect` follows."""
        keys, priorities = state["keys"].numpy().view(np.uint64), state["priorities"].numpy()
        ends = np.cumsum(state["sizes"], dtype=np.int64)[:-1]
        with self._sending:
            self._kept = list(zip(np.split(keys, ends), np.split(priorities, ends), strict=True)) if len(keys) else []
        self._begun = [Update(state["round_keys"].numpy().view(np.uint64), state["round_priorities"])]


def _joined(updates: list[Update]) -> _Round:
    keys = np.concatenate([_NO_KEYS, *(update.keys for update in updates)])
    arrays = [update.priorities.cpu().numpy().astype(np.float64) for update in updates]
    return keys, np.concatenate([_NO_PRIORITIES, *arrays])


def _newest(kept: list[_Round]) -> _Round:
    """Join rounds; of all keys with the same slot only the last stays, so that there are no more than slots."""
    keys, priorities = np.concatenate([keys for keys, _ in kept]), np.concatenate([values for _, values in kept])
    _, last = np.unique((keys & SLOT_OF_KEY)[::-1], return_index=True)
    return keys[::-1][last], priorities[::-1][last]


def _take_snapshot(client: ReplayClient) -> bool:
    """Have the server write a snapshot; return False if its disk has no room for one."""
    try:
        client.checkpoint()
    except Unimplemented:  # a server without a log: its restart ends the run
        return True
    except ResourceExhausted as error:
        _log.warning("replay service cannot write a snapshot, retrying some rounds later", reason=str(error))
        return False
    return True


_NO_KEYS: Keys = np.empty(0, dtype=np.uint64)
_NO_PRIORITIES: NDArray[np.float64] = np.empty(0)
