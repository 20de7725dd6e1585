"""New priorities of a run in lock-step: a table gets those of a round together, at the round's end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidemill.errors import FailedPrecondition, Unavailable, Unimplemented
from tidemill.params.publisher import StalePublisher
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.replay.client import ReplayClient
from tidemill.replay.limits import MAX_KEYS
from tidemill.rpc.channel import Backoff
from tidemill.services.learner.divergence import check_finite

Keys = NDArray[np.uint64]
_Round = tuple[Keys, NDArray[np.float64]]

_SNAPSHOT_EVERY = 16  # rounds; a checkpoint of the learner holds the priorities of as many
_PAUSE_LIMIT_S = 2.0

_log = structlog.get_logger()


class RoundPriorities:
    """Collects the priorities of a round, and keeps those of the rounds since the table's last snapshot.

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
        self._round: list[tuple[Keys, Tensor]] = []
        self._sending = threading.Lock()  # guards what follows, and keeps messages in order
        self._kept: list[_Round] = []

    def offer(self, keys: Keys, priority: Tensor) -> None:
        """Take the priorities of one update (`PrioritySink`)."""
        self._round.append((keys, priority))

    def flush(self) -> None:
        """Send nothing: the draws of a round must not depend on the time (`PrioritySink`)."""

    def end_round(self) -> None:
        """Keep the priorities of the round that ends; a checkpoint from now on has them.

        Raises:
            Diverged: They are not finite.
        """
        keys, priorities = _joined(self._round)
        check_finite([priorities], "priorities")
        self._round = []
        with self._sending:
            self._kept.append((keys, priorities + SMALLEST_PRIORITY))

    def deliver(self, client: ReplayClient) -> None:
        """Send the last round's priorities and wait until the server has them, or the learner stops.

        Raises:
            StalePublisher: A newer learner took over.
        """
        backoff = Backoff(limit_s=_PAUSE_LIMIT_S)
        while not self._stopped():
            try:
                with self._sending:
                    self._send(client, self._kept[-1])
                    if len(self._kept) >= _SNAPSHOT_EVERY:
                        _take_snapshot(client)
                        self._kept = []
                return
            except FailedPrecondition as error:
                raise StalePublisher(str(error)) from error
            except Unavailable as error:
                pause_s = backoff.next_s()
                _log.warning("cannot send priorities, retrying", reason=str(error), retry_in_s=pause_s)
                threading.Event().wait(pause_s)

    def send_again(self, client: ReplayClient) -> None:
        """Send everything that no snapshot has, before anything is drawn from a server that may have restarted."""
        with self._sending:
            for kept in self._kept:
                self._send(client, kept)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: of the rounds since the last snapshot, and of the present one so far."""
        with self._sending:
            kept = list(self._kept)
        sizes = [len(keys) for keys, _ in kept]
        keys = np.concatenate([_NO_KEYS, *(keys for keys, _ in kept)])
        priorities = np.concatenate([_NO_PRIORITIES, *(priorities for _, priorities in kept)])
        round_keys, round_priorities = _joined(self._round)
        return {
            "sizes": sizes,
            "keys": torch.from_numpy(keys.view(np.int64)),
            "priorities": torch.from_numpy(priorities),
            "round_keys": torch.from_numpy(round_keys.view(np.int64)),
            "round_priorities": torch.from_numpy(round_priorities),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        keys, priorities = state["keys"].numpy().view(np.uint64), state["priorities"].numpy()
        ends = np.cumsum(state["sizes"], dtype=np.int64)[:-1]
        with self._sending:
            self._kept = list(zip(np.split(keys, ends), np.split(priorities, ends), strict=True)) if len(keys) else []
        self._round = [(state["round_keys"].numpy().view(np.uint64), state["round_priorities"])]

    def _send(self, client: ReplayClient, part: _Round) -> None:
        keys, priorities = part
        for start in range(0, len(keys), MAX_KEYS):
            end = start + MAX_KEYS
            client.update_priorities(self._table, keys[start:end], priorities[start:end], self.fencing_token)


def _joined(parts: list[tuple[Keys, Tensor]]) -> _Round:
    keys = np.concatenate([_NO_KEYS, *(keys for keys, _ in parts)])
    arrays = [priority.cpu().numpy().astype(np.float64) for _, priority in parts]
    return keys, np.concatenate([_NO_PRIORITIES, *arrays])


def _take_snapshot(client: ReplayClient) -> None:
    try:
        client.checkpoint()
    except Unimplemented:
        return  # a server without a log: its restart ends the run


_NO_KEYS: Keys = np.empty(0, dtype=np.uint64)
_NO_PRIORITIES: NDArray[np.float64] = np.empty(0)
