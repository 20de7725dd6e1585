"""The front door of writing: steps of a program's environments in, chunks and items out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tidemill.logger import LateLogger
from tidemill.replay.argument_types import check_integer, check_number, check_range, check_type
from tidemill.replay.chunk import Chunk, ItemBatch, check_priorities
from tidemill.replay.client import ReplayClient
from tidemill.replay.codec import encode
from tidemill.replay.limits import (
    LEAST_MESSAGE_BYTES,
    MAX_ENV_COUNT,
    MAX_MESSAGE_BYTES,
    fitting_chunk_length,
    most_chunk_bytes,
    payload_room,
)
from tidemill.replay.named_table import Servers, addresses_and_count, awaited_table, read_servers, stored_table
from tidemill.replay.table_config import TableConfig, shard_config
from tidemill.replay.writing.append_call import AppenderState, AppendOverdue, StreamRestarted
from tidemill.replay.writing.append_message import AppendMessage, messages_of
from tidemill.replay.writing.appender import StreamAppender
from tidemill.replay.writing.held_inserts import ASK_S, why_held_back
from tidemill.replay.writing.state import arguments_of, new_name, pack_writer, unpack_writer
from tidemill.replay.writing.steps import StepReader
from tidemill.replay.writing.stream_items import PAYLOAD, ItemWindow, StreamItems
from tidemill.replay.writing.stream_rows import StreamRows
from tidemill.rpc.channel import MAX_MESSAGE_BYTES as CHANNEL_MESSAGE_BYTES
from tidemill.rpc.channel import Backoff, open_channel
from tidemill.rpc.fork import OwnerProcess, Reopened
from tidemill.rpc.readiness import why_not
from tidemill.settings.check import SAFE_NAME, is_safe_name

_LOOK_S = 0.5  # how soon a wait notices that it shall stop, or that another of several servers is to be tried
_LINE_S = 0.05  # how soon a task that waits for its turn notices what else ends its wait
FLUSH_S = 30.0
"""How long `flush` waits unless the caller says otherwise, in seconds."""
_HELD_S = 10.0
"""How long a call without a timeout waits before it is logged that the server holds back inserts, in seconds."""
_FAILED_FLUSH_S = 2.0
"""Longest flush of a block that an error ends: its user waits for the message."""

_log = LateLogger()


class ReplayWriter(Reopened):
    """Appends the steps of one environment or of a batch of them, and makes items of the newest ones.

    Steps travel in chunks of `chunk_length`, with the items that end in them: a full chunk goes with the next `append`,
    and `flush` sends what there is and waits until the server has it. All methods are for one thread; in asyncio
    `append_async` and `flush_async` wait without holding up the event loop. What the server
    has acknowledged survives what its `ack` setting promises; what it has not is kept and sent again when it is back.

    Every method raises `InvalidArgument` for a value that does not fit, naming it, and changes nothing then; the
    `TidemillError` of a server that refused for good, such as one that has another table of that name; and
    `FailedPrecondition` once it is closed, and in a process forked from the one that made the writer. Pickled, it is
    another writer with the same arguments where it arrives: it has its own streams, and none of the steps that this
    one has not sent. With `name` it takes the streams of this one over; with `state` or `epoch` it cannot be pickled.

    Example:
        >>> import tidemill
        >>> step = {"observation": [0.0, 0.5], "action": 1, "reward": 0.25}
        >>> uniform = tidemill.SelectorConfig(tidemill.SelectorKind.UNIFORM)
        >>> table = tidemill.TableConfig(
        ...     "pairs", tidemill.signature_like(step), uniform, max_items=1000, max_item_steps=2
        ... )
        >>> with tidemill.ReplayWriter("127.0.0.1:7401", table) as writer:
        ...     for _ in range(100):
        ...         writer.append(step)
        ...         if writer.episode_steps() >= 2:
        ...             writer.create_item("pairs", last=2)
        ...     writer.flush(timeout_s=10.0)
    """

    def __init__(  # noqa: PLR0913, PLR0915 - each is one decision of the caller
        self,
        addresses: Servers,
        tables: TableConfig | str | Sequence[TableConfig | str],
        *,
        num_envs: int | None = None,
        windows: ItemWindow | Mapping[str, ItemWindow] | None = None,
        name: str = "",
        chunk_length: int = 16,
        max_in_flight_chunks: int = 64,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timeout_s: float | None = 10.0,
        create: bool = True,
        stop: threading.Event | None = None,
        state: bytes | None = None,
        replays: bool = False,
        hold: bool = False,
        epoch: int = 0,
        counts_decisions: bool = True,
    ) -> None:
        """Create the tables that are not there, and open the streams.

        Args:
            addresses: `host:port` or `unix:///path` of the replay server, or of each of several that the tables are
                divided over: the writer's name decides which of them has its streams, and another takes them over when
                that one is lost. Or a `ShardDirectory`, which stays the caller's to close.
            tables: The tables that items may go to, all with the same signature; a name stands for one that is there.
            num_envs: How many environments step together; None for one whose steps have no leading dimension.
            windows: Items that are made by themselves: of every table, or by the name of the table.
            name: Unique among those that write at the same time; empty takes one of this process and a random number.
            chunk_length: Steps of a chunk, 1 .. 1024: more are cheaper, and wait longer to be sent. Where so many steps
                may not fit in a message, such as those of large images, it is divided.
            max_in_flight_chunks: Chunks of each environment that may be unacknowledged before `append` waits.
            max_message_bytes: Bytes of the largest message that is sent, at least 65,536, and at most what the server
                takes (`server.max_request_bytes`, by default 20 MiB).
            timeout_s: How long to wait for the server now; None waits until it answers or `stop` is set.
            create: Whether to create tables that the server does not have. Otherwise they are waited for, now and
                whenever a server has lost them: another program creates them.
            stop: Ends every wait when set, but that of `flush` for acknowledgements.
            state: Bytes from `state()` of an earlier writer. This writer continues its streams under the same name;
                pass the same other arguments.
            replays: Whether the program will repeat its calls since it saved `state`; steps that the server already
                has are recognised. Otherwise see `interrupted`.
            hold: Whether nothing is sent before `store`: `take_held` returns the messages meanwhile.
            epoch: `epoch` of a writer that is gone, whose name and streams this one continues. With `hold` it repeats
                their steps from the first one; what the server has of them is recognised. Without it, new steps follow
                what the server has (`next_steps`), as a new episode.
            counts_decisions: Whether the server adds the decisions to `env_steps` of the tables. The run of a table
                takes them for its own: False for prior data in a run's table.

        Raises:
            InvalidArgument: An argument is out of range, the tables differ in signature, a window is too long, or
                `state` is of a writer with other arguments.
            TypeError: An argument is of another type.
            DataLoss: `state` is damaged.
            NotFound: The server has no table of the name.
            AlreadyExists: The server has a table of that name with another configuration.
            Unavailable: No server answered within `timeout_s`, or `stop` was set.
        """
        self._owner = OwnerProcess("ReplayWriter")
        servers = read_servers(addresses)
        self._addresses, count = addresses_and_count(servers)
        check_number("timeout_s", timeout_s, or_none=True)
        check_type("tables", tables, (TableConfig, str, list, tuple), "a TableConfig, the name of a table, or a list")
        self._stop, self._creates, self._counts_decisions = stop or threading.Event(), create, counts_decisions
        given = (tables,) if isinstance(tables, TableConfig | str) else tuple(tables)
        self._tables = tuple(self._found(table, timeout_s) for table in given)
        self._are_named = [isinstance(table, str) for table in given]
        self._parts = tuple(
            table if is_named else shard_config(table, count)
            for table, is_named in zip(self._tables, self._are_named, strict=True)
        )
        self._names = {table.name: i for i, table in enumerate(self._tables)}
        self._batch = () if num_envs is None else (num_envs,)
        self._num_envs = envs = 1 if num_envs is None else num_envs
        self._max_message_bytes = max_message_bytes
        check_type("name", name, str, "a string")
        if name and not is_safe_name(name):
            raise InvalidArgument(f"name is {name!r}, allowed: {SAFE_NAME}")
        self._check(chunk_length)
        self._signature = signature = self._tables[0].signature
        has_payloads = any(table.payload_bytes for table in self._tables)
        self._chunk_room = max_message_bytes - (payload_room(max_message_bytes) if has_payloads else 0)
        chunk_length = fitting_chunk_length(signature, chunk_length, self._chunk_room)
        self._is_step_checked = most_chunk_bytes(signature, chunk_length) > self._chunk_room
        self._reader = StepReader(signature)
        history = max(max(table.max_item_steps for table in self._tables) - 1, 1)  # 1: for an item made after `flush`
        self._rows = StreamRows(signature, envs, chunk_length, history)
        self._items = StreamItems(self._tables, self._rows, windows, max_message_bytes)
        self._wants_beside = self._items.wants_beside
        self._payload_bytes = self._items.payload_bytes
        self._interrupted = np.zeros(envs, np.bool_)
        self._awaited_s, self._told_dropped, self._is_closed = 0.0, 0, False
        self._told_held, self._held_why, self._ask_held_s = False, "", 0.0
        self._repeated: dict[int, Mapping[str, NDArray[Any]]] = {}
        """Rows that chunks begin with after a flush, by environment, as far as the chunks have not taken them yet."""
        self._turns: list[asyncio.Future[None]] = []  # of the tasks that wait for room, done for the first of them
        self._arguments = arguments_of(self._batch, chunk_length, self._tables, self._items.windows)
        self._name, before = name or new_name(), AppenderState(epoch, ()) if epoch else None
        if state is not None:
            self._name, before = unpack_writer(state, self._arguments, name, self._rows, self._items)
        self._held: list[AppendMessage] | None = [] if hold else None
        self._clients: dict[str, ReplayClient] = {}
        self._clients_lock = threading.Lock()  # so that `close` misses none that a thread opens at that moment
        self._appender = StreamAppender(
            servers,
            self._name,
            envs,
            signature,
            tuple(self._names),
            chunk_length,
            max_in_flight_chunks=max_in_flight_chunks * envs,
            max_message_bytes=max_message_bytes,
            stop=self._stop,
            prepare=self._create_tables,
            state=before,
        )
        self._connect(timeout_s)
        if (state is not None or (epoch and not hold)) and not replays:
            self._begin_behind()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the constructor's arguments. TypeError: `state`, `epoch` or `stop` was given."""
        for name in ("state", "epoch"):
            if self._opened_with[1].get(name):
                raise TypeError(
                    f"a ReplayWriter with `{name}` cannot be pickled: this one and its copies would continue the same "
                    f"streams and lose steps of each other; make it with `{name}` in the one process that writes"
                )
        return super().__reduce__()

    def append(
        self,
        step: Any,  # noqa: ANN401 - a nest of what has no common type
        *,
        env: int | None = None,
        params_version: int = 0,
        is_decision: ArrayLike | None = None,
        beside: Mapping[str, ArrayLike] | None = None,
        payload: ArrayLike | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Take the next step of every environment, or of one.

        Args:
            step: A dict or tuple of arrays and scalars, nested as you like, that flattens to the columns of the tables
                (`tidemill.replay.writing.steps`): with `num_envs` each [N, ...]. Its values are copied. A flat dict of
                arrays that have the dtypes and shapes of the columns costs least.
            env: The one environment that it is of; its step then has no leading dimension.
            params_version: Version of the parameters that chose the action, given back with samples, 0 .. 2**64 - 1; 0
                for none.
            is_decision: Whether it is a decision of the agent, bool [N]. What is none, such as a row with an episode's
                last observation, is not counted in `env_steps` and starts no window. None: every step is one.
            beside: Columns that are not stored, each [N, ...], for the priorities that windows compute; the same names,
                shapes and dtypes with every step.
            payload: What the items of windows that start with this step carry, such as a recurrent state: [N, ...],
                with as many bytes of each environment as the tables' payloads. Of a window with a history it is that of
                the first step behind the history.
            timeout_s: Longest wait where too much is unacknowledged; None waits as long as it takes.

        Raises:
            Unavailable: `timeout_s` passed, or `stop` was set while it waited; the step was not taken.
            InvalidArgument: A column is missing, unknown, or has another shape or dtype, the step is too large for a
                message, or `params_version` is out of range; or a window computed no priority for items of earlier
                steps, which are left out (`dropped_items`). The step was not taken.
        """
        self._check_open()
        began_s, envs = time.monotonic(), self._envs_of(env)
        check_range("params_version", params_version, 0, 2**64 - 1)
        batch = self._batch if env is None else ()
        columns = self._reader.read(step, batch)
        if self._wants_beside or self._payload_bytes or payload is not None:
            columns = {**columns, **self._beside(beside, payload, batch)}
        if is_decision is not None:
            is_decision = np.asarray(is_decision, np.bool_)
            if is_decision.shape != batch:
                raise InvalidArgument(f"is_decision has shape {is_decision.shape}, must have {batch}")
        if self._is_step_checked:
            self._check_step(columns, is_batch=env is None and bool(self._batch))
        if self._repeated:
            self._repeat(timeout_s, began_s)
        full = self._rows.full(envs)
        if len(full):
            self._send(full, timeout_s, began_s)
        self._rows.add(columns, envs, is_decision, params_version)

    async def append_async(
        self,
        step: Any,  # noqa: ANN401 - see `append`
        *,
        env: int | None = None,
        params_version: int = 0,
        is_decision: ArrayLike | None = None,
        beside: Mapping[str, ArrayLike] | None = None,
        payload: ArrayLike | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Take a step as `append` does, with its arguments and errors. A call that is cancelled has taken none."""
        self._check_open()
        began_s, envs = time.monotonic(), self._envs_of(env)
        try:
            await self._room_for(lambda: len(self._rows.full(envs)), timeout_s, began_s)
        finally:
            self._awaited_s += time.monotonic() - began_s
        self.append(
            step,
            env=env,
            params_version=params_version,
            is_decision=is_decision,
            beside=beside,
            payload=payload,
            timeout_s=0.0,
        )

    def push(self, timeout_s: float | None = None) -> None:
        """Send the chunks that are full now and not with the next `append`, which `create_item` may still precede.

        Call it after each `append` where all items are those of windows: what ends in a full chunk is sampled a step
        earlier. `end_episode` makes no partial items of steps that were sent.

        Raises:
            Unavailable: `timeout_s` passed, or `stop` was set while it waited; the next call sends them.
            InvalidArgument: A window computes what cannot be a priority. Such items are left out: call it again.
        """
        self._check_open()
        began_s = time.monotonic()
        self._repeat(timeout_s, began_s)
        full = self._rows.full(self._rows.all)
        if len(full):
            self._send(full, timeout_s, began_s)

    def create_item(
        self,
        table: str,
        last: int,
        *,
        priority: float = 1.0,
        payload: bytes = b"",
        env: int | None = None,
    ) -> None:
        """Make an item of the newest steps of an environment, or of each of them.

        Args:
            table: Name of its table.
            last: How many steps, at most those of the episode and `max_item_steps` of the table; right after `flush`
                one less, if that is more than 1, and none after a `push` that has sent the newest step.
            priority: Its first priority, at most 1e39. With a prioritized selector at least 0, which is never sampled;
                otherwise at least -1e39.
            payload: Opaque bytes that come back with it, as many as the table says.
            env: Whose steps they are; None makes an item of every environment's.

        Raises:
            Unavailable: The last `flush` failed, and what it has left cannot be sent yet: call it again.
        """
        self._check_open()
        self._repeat(0.0)
        index, config = self._table(table), self._tables[self._table(table)]
        envs = self._envs_of(env)
        steps = self._rows.available(envs)
        if not steps:
            if self._rows.episode_steps[envs].all():
                raise FailedPrecondition("an item needs a step that was not sent: call `create_item` before `push`")
            raise FailedPrecondition("an item needs a step: the episode has none yet")
        check_integer("last", last)
        most = min(steps, config.max_item_steps)
        if not 1 <= last <= most:
            raise InvalidArgument(
                f"last is {last}, must be 1 .. {most}: the steps of this episode so far, "
                f"at most max_item_steps ({config.max_item_steps}) of table {table!r}"
            )
        check_type("payload", payload, bytes, "bytes")
        check_number("priority", priority)
        check_priorities(np.array([priority], np.float64), least=config.least_priority)
        if len(payload) != config.payload_bytes:
            raise InvalidArgument(
                f"payload has {len(payload)} bytes, must have {config.payload_bytes} in table {table!r}"
            )
        self._items.add(index, envs, last, priority, payload)

    def end_episode(self, envs: int | ArrayLike | None = None) -> None:
        """End the episode of some environments: no item will have steps from before and after.

        Args:
            envs: Their indices, each once, or a bool mask [N], of a single environment also a bool; None is all.

        Raises:
            Unavailable: The last `flush` failed, and what it has left cannot be sent yet: call it again.
        """
        self._check_open()
        self._repeat(0.0)
        ended = self._envs_of(envs) if envs is None or type(envs) is int else self._rows.chosen(envs)
        self._items.end_episode(ended)
        self._rows.episode_steps[ended] = 0

    def flush(self, timeout_s: float | None = FLUSH_S) -> None:
        """Send everything, and wait until the server has acknowledged it.

        A chunk that is not full is padded, and begins again with the steps that later items may need, so call it where
        you wait for what was sent, not after every step.

        Args:
            timeout_s: Longest wait; None waits until the server has it or the writer is closed. `stop` does not end it.

        Raises:
            Unavailable: The server has not acknowledged everything within `timeout_s` seconds; nothing is lost by that.
            DataLoss: Before the server acknowledged all that was sent, it lost the streams, as one in memory that is
                restarted, another took its place, or the table was dropped; said once, and what comes after it is
                stored.
            FailedPrecondition: It holds its messages: see `take_held`.
            InvalidArgument: A window computes what cannot be a priority. Such items are left out: call it again.
        """
        check_number("timeout_s", timeout_s, or_none=True)
        self._check_open()
        self._check_not_held()
        began_s = time.monotonic()
        self._repeat(timeout_s, began_s)
        waiting = self._waiting()
        if len(waiting):
            repeated = self._tails(waiting)
            self._send(waiting, timeout_s, began_s, continues=False)
            self._repeated = repeated
            self._repeat(timeout_s, began_s)
        left_s = _HELD_S if timeout_s is None else max(0.0, began_s + timeout_s - time.monotonic())
        while not self._appender.flush(left_s):
            self._check_open()
            if timeout_s is not None:
                raise self._overdue(timeout_s)
            self._tell_held()
        self._check_kept()

    async def flush_async(self, timeout_s: float | None = FLUSH_S) -> None:
        """Send and wait as `flush` does, with its errors, but not for what other tasks append after the call.

        What a call that is cancelled has sent stays sent.
        """
        check_number("timeout_s", timeout_s, or_none=True)
        self._check_open()
        self._check_not_held()
        began_s = time.monotonic()
        await self._room_for(lambda: len(self._waiting()), timeout_s, began_s)
        waiting = self._waiting()
        if len(waiting):
            repeated = self._tails(waiting)
            self._send(waiting, 0.0, continues=False)
            self._repeated = repeated
            await self._room_for(lambda: 0, timeout_s, began_s)
        queued = self._appender.queued_chunks  # other tasks may queue more all the time
        await self._until(lambda: self._appender.has_settled(queued), timeout_s, began_s)
        self._check_kept()

    def take_held(self, at_step_count: int) -> tuple[bytes, ...]:
        """Return the messages of all full chunks since the last call, for `store` of this writer or of a later one.

        Args:
            at_step_count: Steps of all writers that the server stores before the first of them: it waits for these.
        """
        self._check_open()
        if self._held is None:
            raise FailedPrecondition("the writer holds no messages: give `hold=True`")
        self.push()
        messages, self._held = self._held, []
        for message in messages:
            message.request.data.at_step_count = at_step_count
            at_step_count += message.steps
        return tuple(message.request.SerializeToString() for message in messages)

    def store(self, messages: Sequence[bytes]) -> bool:
        """Send messages of `take_held` and wait until the server has them; return False if `stop` was set before.

        Raises:
            DataLoss: The server has lost the streams.
        """
        self._check_open()
        try:
            is_sent = self._appender.append_messages(tuple(map(AppendMessage.parse, messages)))
        except StreamRestarted as restarted:
            raise DataLoss(str(restarted)) from restarted
        while is_sent and not self._appender.flush(_LOOK_S):
            if self._stop.is_set():
                return False
        if self._appender.restarts:
            raise DataLoss("the server has lost the streams of this writer")
        return is_sent

    def state(self) -> bytes:
        """Return everything that another writer needs to continue: steps and items that are not stored, and the place.

        The call does not wait. Save the bytes together with the rest of your program's state, such as its environments,
        and give them to the writer of the restarted process. Give them to one process only. They are about as large as
        the steps of the present chunks, the steps that items may still reach back to, and everything unacknowledged:
        call `flush` first to make them small.

        Raises:
            Unavailable: The last `flush` failed, and what it has left cannot be sent yet: call it again.
        """
        self._owner.check()
        self._check_not_held()
        self._repeat(0.0)
        return pack_writer(self._arguments, self._name, self._appender.state(), self._rows, self._items)

    @property
    def interrupted(self) -> NDArray[np.bool_]:
        """Environments with more steps on the server than in the `state` that this writer continued, bool [N].

        The previous writer stored more steps after it saved its state. They are kept; new steps follow them as a new
        episode, so nothing is lost or stored twice. A program that resets these environments has nothing to do. If it
        repeats the same calls, it passes `replays`, and no environment is interrupted.
        """
        return self._interrupted

    def episode_steps(self, env: int = 0) -> int:
        """Return the steps of an environment's episode so far: the most that an item of it may have."""
        return int(self._rows.episode_steps[env])

    @property
    def next_steps(self) -> NDArray[np.int64]:
        """Number in its stream of each environment's next step, [N]: all before it were given to a writer.

        Not how many were appended: a flush pads what is not full, and numbers the steps that it repeats again.
        """
        steps: NDArray[np.int64] = self._rows.first_step + self._rows.filled
        return steps

    @property
    def stored_steps(self) -> NDArray[np.int64]:
        """Number in its stream of the first step of each environment that the server has not acknowledged, [N]."""
        return self._appender.next_steps

    @property
    def starts_window(self) -> bool:
        """Whether the next step is the first of a window with `across_episodes`."""
        return self._items.starts_window

    @property
    def env_steps(self) -> int:
        """Decisions of all writers that the present server has stored for the first of the tables, as acknowledged."""
        return self._appender.env_steps

    @property
    def epoch(self) -> int:
        """Number that the present server has given these streams, another each time they begin."""
        return self._appender.epoch

    @property
    def superseded_epoch(self) -> int:
        """Epoch of the streams of a former writer of this name that these took the place of; 0 if there were none."""
        return self._appender.superseded_epoch

    @property
    def unacknowledged_chunks(self) -> int:
        """Chunks on their way to the server, those that are still filling up not counted."""
        return self._appender.unacknowledged_chunks

    @property
    def blocked_s(self) -> float:
        """Seconds that `append` has waited so far, for the server or its rate limiter."""
        return self._appender.blocked_s + self._awaited_s

    @property
    def restarts(self) -> int:
        """How often the server lost the streams, as one that keeps nothing on disk does when it is restarted."""
        return self._appender.restarts

    @property
    def dropped_chunks(self) -> int:
        """Chunks that were not acknowledged when the server lost the streams."""
        return self._appender.dropped_chunks

    @property
    def dropped_items(self) -> int:
        """Items that were not sent: the server had lost some of their steps, or their window computed no priority."""
        return self._items.dropped

    def close(self) -> None:
        """End the calls and threads, within 2 s for each connection; what was not flushed is dropped.

        May be called twice.
        """
        self._is_closed = True
        if self._owner.is_here:
            self._appender.stop()
            self._close_clients()  # ends the call that the appender's thread may be waiting for
            self._appender.close()

    def _check_open(self) -> None:
        self._owner.check()
        if self._is_closed:
            raise FailedPrecondition("the writer is closed: nothing more can be written with it")

    def _close_clients(self) -> None:
        with self._clients_lock:
            clients = list(self._clients.values())
        for client in clients:
            client.close()

    def _found(self, table: TableConfig | str, timeout_s: float | None) -> TableConfig:
        """Return the configuration of a table; one that is named and not to be created may be waited for."""
        if self._creates and timeout_s is not None:
            return stored_table(self._addresses, table, timeout_s)
        return awaited_table(self._addresses, table, timeout_s, self._stop)

    def _connect(self, timeout_s: float | None) -> None:
        deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        try:
            while not self._appender.opened(min(max(deadline_s - time.monotonic(), 0.0), _LOOK_S)):
                if time.monotonic() >= deadline_s or self._stop.is_set():
                    raise self._unopened(timeout_s)
            self._check_server()
        except BaseException:
            self.close()
            raise

    def _unopened(self, timeout_s: float | None) -> Unavailable:
        where, failure = " or ".join(self._addresses), self._appender.last_failure
        when = "before `stop` was set" if timeout_s is None or self._stop.is_set() else f"within {timeout_s:g} s"
        why = str(failure or "")
        if failure is None:  # no attempt has ended yet
            with open_channel(self._addresses[0]) as channel:
                why = why_not(channel)
        return Unavailable(f"no replay server answered at {where} {when}{why and f': {why}'}")

    def _check_not_held(self) -> None:
        if self._held is not None:
            raise FailedPrecondition("the writer holds its messages: use `take_held` and `store`")

    def _check_server(self) -> None:
        """Raise InvalidArgument if the server would refuse a chunk of these streams for its size."""
        taken, chunk_bytes = (
            self._appender.max_request_bytes,
            most_chunk_bytes(self._signature, self._rows.chunk_length),
        )
        if taken and min(chunk_bytes, self._max_message_bytes) > taken:
            raise InvalidArgument(
                f"max_message_bytes is {self._max_message_bytes}, must be at most {taken}: the server takes no larger "
                f"requests (its server.max_request_bytes), and a chunk may have {chunk_bytes} bytes"
            )

    def _check_step(self, columns: Mapping[str, NDArray[Any]], *, is_batch: bool) -> None:
        """Raise InvalidArgument if a step is larger than a message may be, compressed as it is sent."""
        for env in range(self._num_envs if is_batch else 1):
            row = {name: values[env : env + 1] if is_batch else values[None] for name, values in columns.items()}
            size = sum(map(len, encode(self._signature, row)))
            if size > self._chunk_room:
                raise InvalidArgument(
                    f"a step has {size} bytes, must have at most {self._chunk_room} to fit in a message: use smaller "
                    "columns, or a greater max_message_bytes (and server.max_request_bytes)"
                )

    def _beside(
        self, beside: Mapping[str, ArrayLike] | None, payload: ArrayLike | None, batch: tuple[int, ...]
    ) -> dict[str, NDArray[Any]]:
        """The values of a step that are not columns of the table, each [*batch, ...], shaped as in the first step."""
        kept: dict[str, NDArray[Any]] = {}
        if self._wants_beside and beside is not None:
            kept = {name: np.asarray(values) for name, values in beside.items()}
        if self._payload_bytes or (payload is not None and np.size(payload)):
            kept[PAYLOAD] = self._payload(payload, batch)
        known = self._rows.beside
        if kept and not known and not self._rows.stream_steps.any():
            self._begin_beside(kept, batch)
        if kept.keys() != known.keys():
            given, missed = (sorted(columns.keys() - {PAYLOAD}) for columns in (kept, known))
            raise InvalidArgument(f"beside has columns {given}, must have {missed} as with the first step")
        for name, values in kept.items():
            if values.shape != (*batch, *known[name].shape[2:]):
                wanted = (*batch, *known[name].shape[2:])
                raise InvalidArgument(f"column {name!r} of beside has shape {values.shape}, must have {wanted}")
            if not np.can_cast(values.dtype, known[name].dtype, "same_kind"):
                raise InvalidArgument(
                    f"column {name!r} of beside has dtype {values.dtype}, which does not convert to "
                    f"{known[name].dtype} of the first step"
                )
        return kept

    def _begin_beside(self, kept: Mapping[str, NDArray[Any]], batch: tuple[int, ...]) -> None:
        """Make room for columns of `beside`. InvalidArgument: one is stored, too, or is not of every environment."""
        for name, values in kept.items():
            if name in self._rows.names:
                raise InvalidArgument(f"beside has column {name!r}, which is stored: windows see it in any case")
            if values.shape[: len(batch)] != batch:
                raise InvalidArgument(f"column {name!r} of beside has shape {values.shape}, must begin with {batch}")
        self._rows.keep_beside(kept, is_batch=bool(batch))

    def _payload(self, payload: ArrayLike | None, batch: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the bytes of a step's payloads, uint8 [*batch, bytes]."""
        if payload is None:
            raise InvalidArgument(f"payload is None, must have {self._payload_bytes} bytes: items of windows carry it")
        array = np.ascontiguousarray(payload)
        if array.nbytes != self._payload_bytes * (batch[0] if batch else 1) or array.shape[: len(batch)] != batch:
            raise InvalidArgument(
                f"payload has shape {array.shape} and {array.nbytes} bytes, must have {self._payload_bytes} bytes of "
                "each environment, as the payloads of the windows' table"
            )
        return array.reshape(*batch, -1).view(np.uint8)

    def _begin_behind(self) -> None:
        """Continue behind the last step that the server has of each environment, if the state knew of fewer."""
        if self._appender.restarts:
            return  # it has lost the streams, which begin again
        next_steps = self._appender.next_steps
        self._interrupted = next_steps > self._rows.first_step
        envs = np.flatnonzero(self._interrupted)
        if len(envs):
            _log.warning(
                "the server has steps written after the state was saved; continuing behind them", envs=envs.tolist()
            )
            self._rows.begin_behind(envs, next_steps[envs])
            self._items.forget(envs)

    def _create_tables(self, address: str) -> None:
        """Make a server's part of the tables, again where it lost them: called before each connection.

        One that was named is made only where it is not: an actor's token may write to a table and not make it.
        """
        if not self._creates:
            return
        with self._clients_lock:
            if self._is_closed:
                raise Unavailable("the writer is closed")
            if address not in self._clients:
                self._clients[address] = ReplayClient(address)
            client = self._clients[address]
        for table, is_named in zip(self._parts, self._are_named, strict=True):
            if is_named:
                with suppress(NotFound):
                    client.describe_table(table.name)
                    continue
            client.create_table(table)

    def _check(self, chunk_length: int) -> None:
        if not self._tables:
            raise InvalidArgument("tables is empty, must name at least one")
        if len(self._names) < len(self._tables):
            raise InvalidArgument(f"tables are {[table.name for table in self._tables]}, each must be there once")
        first = self._tables[0]
        for table in self._tables:
            if table.signature != first.signature:
                raise InvalidArgument(f"tables {first.name!r} and {table.name!r} differ in signature, must be equal")
        check_range("num_envs", self._num_envs, 1, MAX_ENV_COUNT)
        check_range("chunk_length", chunk_length, 1, 1024)
        check_range("max_message_bytes", self._max_message_bytes, LEAST_MESSAGE_BYTES, CHANNEL_MESSAGE_BYTES)

    def _table(self, name: str) -> int:
        check_type("table", name, str, "the name of one of the writer's tables")
        if name not in self._names:
            raise InvalidArgument(f"table is {name!r}, must be one of {sorted(self._names)}")
        return self._names[name]

    def _envs_of(self, env: int | None) -> NDArray[np.int64]:
        if env is None:
            return self._rows.all
        check_range("env", env, 0, self._num_envs - 1)
        return np.array([env])

    def _waiting(self) -> NDArray[np.int64]:
        """Return the environments whose chunks are to be sent as they are."""
        self._items.find()
        envs = [env for env in range(self._num_envs) if self._rows.fresh[env] or self._items.pending_in(env)]
        return np.array(envs, np.int64)

    def _tails(self, envs: NDArray[np.int64]) -> dict[int, Mapping[str, NDArray[Any]]]:
        """Return the rows that items to come may need of some environments, whose next chunks begin with them."""
        across_episodes = self._items.across_episodes
        return {env: self._rows.tail(env, across_episodes=across_episodes) for env in envs.tolist()}

    def _repeat(self, timeout_s: float | None, began_s: float = 0.0) -> None:
        """Repeat what the last flush had to: chunks begin with steps that were sent before, which may be more than one.

        Args:
            timeout_s: Longest wait of all of them together; 0 for none, None for no end.
            began_s: When the wait of the call began, by `time.monotonic`.

        Raises:
            Unavailable: They could not be sent in time; the next call continues.
        """
        while self._repeated:
            self._repeat_next(timeout_s, began_s)

    def _repeat_next(self, timeout_s: float | None, began_s: float = 0.0) -> None:
        env, rows = next(iter(self._repeated.items()))
        if self._rows.filled[env]:  # by those before
            self._send(np.array([env]), timeout_s, began_s)
        rows = self._rows.repeat(env, rows)
        if len(rows[""]):
            self._repeated[env] = rows
        else:
            del self._repeated[env]

    async def _room_for(self, chunks: Callable[[], int], timeout_s: float | None, began_s: float) -> None:
        """Repeat as `_repeat` does, and wait until so many chunks can be sent, counted again after each wait.

        Other tasks may write with this writer during a wait. They take turns: one that needs room for many chunks would
        never find it beside one that needs little.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def has_room() -> bool:
            count = 1 if self._repeated else chunks()
            return not count or (turn.done() and self._appender.has_room(count))

        self._turns.append(turn)
        self._begin_turn()
        try:
            await self._until(has_room, timeout_s, began_s, turn)
            while self._repeated:
                self._repeat_next(0.0)
                await self._until(has_room, timeout_s, began_s, turn)
        finally:
            self._turns.remove(turn)
            self._begin_turn()

    def _begin_turn(self) -> None:
        """Wake the first of the tasks that wait for room: it does not sleep away what the one before it has left."""
        if self._turns and not self._turns[0].done():
            self._turns[0].set_result(None)

    async def _until(
        self,
        condition: Callable[[], bool],
        timeout_s: float | None,
        began_s: float,
        turn: asyncio.Future[None] | None = None,
    ) -> None:
        """Wait in the event loop for a condition; a pause ends when `turn` comes. Unavailable: it took too long."""
        pause = Backoff(first_s=0.001, limit_s=0.05)
        while not condition():
            self._check_open()
            waited_s = time.monotonic() - began_s
            if timeout_s is not None and waited_s >= timeout_s:
                raise await asyncio.to_thread(self._overdue, timeout_s)
            if timeout_s is None and not self._told_held and waited_s >= _HELD_S and self._may_ask():
                await asyncio.to_thread(self._tell_held)
            if turn is None or turn.done():
                await asyncio.sleep(pause.next_s())
            else:
                await asyncio.wait((turn,), timeout=_LINE_S)

    def _check_kept(self) -> None:
        """Raise DataLoss if chunks were dropped since it was last called."""
        lost, self._told_dropped = self.dropped_chunks - self._told_dropped, self.dropped_chunks
        if lost:
            raise DataLoss(
                f"{lost} chunks of up to {self._rows.chunk_length} steps may be lost: the replay server at "
                f"{' or '.join(self._addresses)} had not acknowledged them when it lost the streams or was "
                "replaced, or their table was dropped; a server with a folder keeps them across restarts"
            )

    def _overdue(self, timeout_s: float) -> Unavailable:
        why = self._appender.last_failure or self._why_held(timeout_s)
        why = why or "it does not answer, its disk is full, or a rate limiter holds inserts back"
        return Unavailable(
            f"the replay server at {' or '.join(self._addresses)} did not acknowledge {self.unacknowledged_chunks} "
            f"chunks within {timeout_s:g} s: {why}"
        )

    def _may_ask(self) -> bool:
        return time.monotonic() >= self._ask_held_s

    def _why_held(self, timeout_s: float) -> str:
        """Return why the server holds back inserts, if it says so; it is asked at most once in `_HELD_S`."""
        address = self._appender.address
        if self._may_ask():
            self._held_why = ""  # of another time
            if address and timeout_s > 0:
                self._ask_held_s = time.monotonic() + _HELD_S  # before the question, which takes up to 1 s
                self._held_why = why_held_back(address, self._names, timeout_s)
        return self._held_why

    def _tell_held(self) -> None:
        """Log, once, why the server holds back inserts, if it says so."""
        if self._told_held:
            return
        if why := self._why_held(ASK_S):  # not while the server is away
            self._told_held = True
            # a writer whose tables are another program's, as an actor's are, waits for its reader all the time
            (_log.warning if self._creates else _log.info)("the replay server holds back inserts", reason=why)

    def _append(
        self, chunks: Sequence[Chunk], items: Sequence[ItemBatch], timeout_s: float | None, began_s: float
    ) -> bool:
        """Queue chunks as `StreamAppender.append` does; the error of a wait that is too long names the cause."""
        left_s = _HELD_S if timeout_s is None else max(0.0, began_s + timeout_s - time.monotonic())
        try:
            return self._appender.append(chunks, items, left_s)
        except AppendOverdue:
            if timeout_s is not None:
                raise self._overdue(timeout_s) from None
        self._tell_held()
        return self._appender.append(chunks, items, None)

    def _send(
        self, envs: NDArray[np.int64], timeout_s: float | None, began_s: float = 0.0, *, continues: bool = True
    ) -> None:
        """Append the present chunks of some environments and begin their next ones; for the wait see `_repeat`.

        Raises:
            Unavailable: `timeout_s` passed, or `stop` was set; nothing was sent.
        """
        while True:
            try:
                chunks, items = self._chunks(envs), self._items.batches(envs)
                if self._held is not None:
                    self._held += messages_of(chunks, items, self._max_message_bytes)
                elif not self._append(chunks, items, timeout_s, began_s):
                    raise Unavailable("`stop` was set before the steps were sent")
                break
            except StreamRestarted as restarted:
                _log.warning("streams restart from step 0", reason=str(restarted))
                self._rows.first_step[:] = 0
        self._items.sent(envs)
        self._rows.advance(envs, continues=continues)

    def _chunks(self, envs: NDArray[np.int64]) -> list[Chunk]:
        rows = self._rows
        return [
            Chunk(
                env_index=env,
                first_step=int(rows.first_step[env]),
                step_count=rows.chunk_length,
                decision_count=decisions if self._counts_decisions else 0,
                params_version=version,
                blocks=encode(self._signature, rows.chunk(env)),
            )
            for env, decisions, version in zip(
                envs.tolist(), rows.decisions(envs).tolist(), rows.params_versions[envs].tolist(), strict=True
            )
        ]

    def _flush_rest(self, timeout_s: float) -> None:
        """Flush; if a window computes no priority for some items, send the rest before that error is raised."""
        first: Exception | None = None
        while True:
            dropped = self.dropped_items
            try:
                self.flush(timeout_s)
                break
            except Exception as error:
                if isinstance(error, Unavailable) or self.dropped_items == dropped:
                    raise
                first = first or error
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Flush and close; where an error ended the block, that one is raised and a failure to flush is logged."""
        try:
            is_owner = self._owner.is_process  # while Python ends, too: then `flush` refuses
            if is_owner and not self._is_closed and self._held is None:
                self._flush_rest(FLUSH_S if kind is None else _FAILED_FLUSH_S)
        except Exception as failure:
            if kind is None:
                raise
            _log.warning("some steps of the failed `with` block may not be stored", reason=str(failure))
        finally:
            self.close()
