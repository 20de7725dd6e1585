"""The transport of sampling: a `Sample` call to one server, whether its owner sends credit or draws."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from tidemill.errors import FatalError, NotFound
from tidemill.logger import LateLogger
from tidemill.replay.batch import EpochPlace
from tidemill.replay.client import ReplayClient
from tidemill.replay.reconnecting_call import ReconnectingCall
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.replay.wire import pack_epoch
from tidemill.rpc.channel import DEADLINE_S

if TYPE_CHECKING:
    from tidemill.replay.sampling.sample_stream import SampleStream

_SETTLE_S = 0.5
"""How long a server may take to hear which batches were handed on, when a call is closed."""

_ASK_AGAIN_S = 5.0
"""Pause between two questions for a table that is never created here."""

_RETURN_S = 300.0
"""How long a table is waited for once no listed server has it, in seconds: a restarted one may be listed again."""

_log = LateLogger()

_NO_KEYS = np.zeros(0, np.uint64)


class SampleCall:
    """Holds one `Sample` call to a server and opens another when it breaks, see `ReconnectingCall`.

    Before each it creates the table, or confirms it. `send` and `cut` never block.

    Attributes:
        name: What the owner calls the server.
        client: Of the same server; closed with the call.
    """

    def __init__(  # noqa: PLR0913 - each is one decision of the caller
        self,
        name: str,
        address: str,
        table: TableConfig,
        opening: pb.SampleOpen,
        owner: SampleStream,
        *,
        deadline_s: float = DEADLINE_S,
        must_exist: bool = False,
        came_later: bool = False,
        fencing_token: int = 0,
    ) -> None:
        """Prepare; `start` starts the thread.

        Args:
            name: What the owner calls the server.
            address: Its address.
            table: Its table, or its part of one.
            opening: What begins each call, without seed and epoch. A call that `settles` is ended so that the server
                hears which batches the owner has handed on.
            owner: Sends, and takes the answers; its `opened`, `answered`, `lost` and `failed` are called in the call's
                thread.
            deadline_s: Of the client's calls, in seconds.
            must_exist: Whether the table is never created: a server that had it and has it no more ends the calls,
                one that never had it is asked again and again.
            came_later: Whether the server came once the owner had found the table. If it lacks the table, and no
                server that had it has been listed for five minutes, it replaced one that had it.
            fencing_token: Of the learner that samples, which the server is told before each call; 0 for none.
        """
        self.name, self._table, self._owner = name, table, owner
        self._address, self._must_exist, self._fencing_token = address, must_exist, fencing_token
        self._came_later = came_later
        self._opening = pb.SampleOpen()
        self._opening.CopyFrom(opening)
        self._parts: list[bytes] = []
        self._created = self._is_first = self._was_there = False
        self._settled_by_s: float | None = None  # since the first `stop`, so that calls are waited for together
        self.client = ReplayClient(address, deadline_s=deadline_s)
        self._call = ReconnectingCall[pb.SampleRequest, pb.SampleResponse](
            f"sample-{name}",
            address,
            lambda stub: stub.Sample,
            prepare=self._create_table,
            opened=self._opened,
            answered=self._answered,
            lost=lambda: owner.lost(self),
            failed=owner.failed,
            max_message_bytes=opening.max_message_bytes,
        )

    def draw_by(self, *, seed: int | None = None, epoch: EpochPlace | None = None) -> None:
        """Have the next calls draw by a seed, or by epochs from a place on; the owner does so in `opened`."""
        if seed is not None:
            self._opening.seed = seed
        if epoch is not None:
            self._opening.epoch.CopyFrom(pack_epoch(epoch))

    def start(self) -> None:
        """Start the thread."""
        self._call.start()

    def send(self, request: pb.SampleRequest) -> None:
        """Send credit or draws; the owner does so between `opened` and `lost`, from one thread at a time."""
        if self._is_first:
            self._is_first = False
            request.open.CopyFrom(self._opening)
        self._call.send(request)

    def cut(self) -> None:
        """End the present call, because the server is silent; another one follows."""
        self._call.cut()

    def stop(self) -> None:
        """End the present call, with no other to follow; does not wait for the thread."""
        if self._opening.settles:
            self._settled_by_s = self._settled_by_s or time.monotonic() + _SETTLE_S
            self._call.half_close()
        else:
            self._call.stop()

    def close(self) -> None:
        """End the call, the thread and the client, within a bounded time. May be called twice."""
        self.stop()
        if self._settled_by_s is not None:
            self._call.join(max(0.0, self._settled_by_s - time.monotonic()))
            self._call.stop()
        self.client.close()  # ends the call that the thread may be waiting for
        self._call.close()

    def _create_table(self) -> None:
        if self._must_exist:
            self._await_table()
            return
        self._created = self.client.create_table(self._table)
        if self._fencing_token:  # without keys: the server refuses older learners though no priorities have come yet
            self.client.update_priorities(self._table.name, _NO_KEYS, (), self._fencing_token)

    def _await_table(self) -> None:
        """Wait until the server has the table. FatalError: it had it before, or the one that it replaced did."""
        name, told = self._table.name, ""
        while not self._call.closed.is_set():
            try:
                self.client.describe_table(name)
                self._was_there = True
                return
            except NotFound as error:
                missing_s = self._owner.missing_s() if self._came_later else None
                if self._was_there or (missing_s is not None and missing_s > _RETURN_S):
                    how = "has lost" if self._was_there else "replaced one that had"
                    raise FatalError(
                        f"the replay server at {self._address} {how} table {name!r}: fill it again"
                    ) from error
            what = "sampling the others" if missing_s is None else "waiting for the one that had it"
            if what != told:
                log = _log.warning if self._came_later else _log.info
                log(f"replay server without the table, {what}", address=self._address, table=name)
            told = what
            self._call.closed.wait(_ASK_AGAIN_S)

    def _opened(self) -> None:
        self._is_first = True
        self._parts.clear()
        self._owner.opened(self, self._created)

    def _answered(self, answer: pb.SampleResponse) -> None:
        """Report a response, one that came in parts once all of it is there."""
        if answer.part:
            self._parts.append(answer.part)
            if answer.more:
                return
            answer = pb.SampleResponse.FromString(b"".join(self._parts))
            self._parts.clear()
        self._owner.answered(self, answer)
