"""The transport of priorities: unary calls to the one server or the several that the items are on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import grpc
import numpy as np
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument, NotFound, Unavailable
from tidemill.replay.chunk import check_priorities
from tidemill.replay.client import ReplayClient, checked_keys
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.rpc.status import from_rpc_error

_MOST_UNDERWAY = 4
"""Messages a shard may leave unanswered before more for it are dropped."""


class PriorityCalls:
    """Sends priorities to the servers of a table. It waits for the answer of a single one.

    With several it never waits: one that does not answer holds up none of the others. Those for a shard that is
    unavailable, or behind with its answers, are counted and dropped.
    """

    def __init__(self, table: TableConfig, client_of: Callable[[int], ReplayClient | None]) -> None:
        """Take the table, and what finds the client of the server with a number, None if it is unavailable."""
        self._table, self._least, self._client_of = table.name, table.least_priority, client_of
        self._changed = threading.Condition()  # guards everything below
        self._underway: Counter[int] = Counter()
        self._dropped = self._unknown = 0
        self._error: BaseException | None = None

    @property
    def dropped(self) -> int:
        """Priorities that were not delivered."""
        return self._dropped

    @property
    def unknown_keys(self) -> int:
        """Priorities that were delivered when their item had left its table."""
        return self._unknown

    def send(
        self,
        keys: NDArray[np.uint64],
        priorities: NDArray[np.float64],
        fencing_token: int = 0,
        deadline_s: float | None = None,
    ) -> None:
        """Send the priorities [N] of items by key [N], or [N, 2] of several servers.

        Raises:
            InvalidArgument: There are not N priorities, or one is out of range, named with its place; none was sent.
            Unavailable: The only server did not answer within `deadline_s`; None for 10 s.
            TidemillError: The only server, or a shard earlier ones, refused them for good.
        """
        keys, priorities = checked_keys(keys), np.asarray(priorities, np.float64)
        if priorities.shape != keys.shape[:1]:
            raise InvalidArgument(f"priorities have shape {priorities.shape}, must have {keys.shape[:1]} as the keys")
        if keys.ndim == 1 and (only := self._client_of(0)) is not None:
            only.update_priorities(self._table, keys, priorities, fencing_token, deadline_s=deadline_s)
            return
        check_priorities(priorities, least=self._least)
        if self._error is not None:
            raise self._error
        for incarnation in np.unique(keys[:, 1]).tolist():
            own = keys[:, 1] == incarnation
            self._send(incarnation, keys[own, 0], priorities[own], fencing_token)

    def close(self, timeout_s: float = 3.0) -> None:
        """Wait for answers, for a bounded time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._underway.total(), timeout_s)

    def _send(
        self, incarnation: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64], fencing_token: int
    ) -> None:
        client = self._client_of(incarnation)
        with self._changed:
            if client is None or self._underway[incarnation] >= _MOST_UNDERWAY:
                self._dropped += len(keys)
                return
            self._underway[incarnation] += 1
        try:
            answer = client.begin_update_priorities(self._table, keys, priorities, fencing_token)
        except ValueError:  # the shard was given up just now, its channel is closed
            self._settle(incarnation, dropped=len(keys))
            return
        answer.add_done_callback(lambda answer: self._answered(incarnation, len(keys), answer))

    def _answered(self, incarnation: int, count: int, answer: grpc.Future[pb.UpdatePrioritiesResponse]) -> None:
        try:
            self._settle(incarnation, unknown=answer.result().unknown)
        except grpc.FutureCancelledError:
            self._settle(incarnation, dropped=count)
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            may_pass = isinstance(failure, Unavailable | NotFound)
            self._settle(incarnation, dropped=count, error=None if may_pass else failure)

    def _settle(
        self, incarnation: int, *, dropped: int = 0, unknown: int = 0, error: BaseException | None = None
    ) -> None:
        with self._changed:
            self._underway[incarnation] -= 1
            self._dropped += dropped
            self._unknown += unknown
            self._error = self._error or error
            self._changed.notify_all()
