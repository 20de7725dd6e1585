"""Turns the steps of an actor's environments into chunks and items and hands them to the replay service."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.codec import encode
from tidemill.logger import LateLogger
from tidemill.replay.writing.appender import StreamRestarted
from tidemill.replay.writing.chunk import SMALLEST_PRIORITY, Chunk, ItemBatch
from tidemill.types import Signature, WindowSpec

Array = NDArray[np.generic]
FirstPriority = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float32]]
"""`Policy.initial_priority`: steps, each [steps + 1, K], to priorities [K]."""

_log = LateLogger()


def all_alike(steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return 1 for each window: for a table that does not look at priorities."""
    return np.ones(steps["reward"].shape[1], np.float32)


@dataclass(frozen=True)
class Windows:
    """The windows that the rows of a chunk completed; lists have one entry a window.

    Attributes:
        env_index: Whose stream it is, int64 [K].
        last_row: Which of the rows since the last `take` is its last, int64 [K].
        length: Steps from the first of its history to its last, int64 [K].
        priority: First priority, float64 [K].
        recurrent_state: What the policy remembered when it first acted in the window, float32 [K, M]; M may be 0.
    """

    env_index: NDArray[np.int64]
    last_row: NDArray[np.int64]
    length: NDArray[np.int64]
    priority: NDArray[np.float64]
    recurrent_state: NDArray[np.float32]


class WindowTracker:
    """Watches the rows of N streams in step and names the windows that they complete, those of a chunk together.

    A window that starts acting at step s is complete with step s + `window.steps`. None starts at a final
    row, whose action the environment ignored. A stream that begins in the middle of an episode, after the
    replay service lost the one before, has no window before its history is whole: a shorter one would
    show the learner another stack than the policy saw. A window that is to `keep_all` knows neither exception.
    """

    def __init__(self, window: WindowSpec, num_envs: int, chunk_length: int, initial_priority: FirstPriority) -> None:
        """Start before step 0 of every stream; at most `chunk_length` rows come between two calls of `take`."""
        self._window, self._num_envs, self._initial_priority = window, num_envs, initial_priority
        self._room = window.steps + chunk_length
        self.restart()

    def restart(self) -> None:
        """Start again before step 0; the next row is the first of a new stream."""
        self._columns: dict[
            str, NDArray[Any]
        ] = {}  # each [room, N, ...]: the steps that windows still need, then new ones
        self._recurrent_states: deque[NDArray[np.float32]] = deque()  # of every step at which a window starts
        self._first_kept = self._next_step = self._taken = 0  # steps: the oldest kept, the next, the next to be taken
        self._first_start = np.zeros(self._num_envs, dtype=np.int64)

    def add(self, row: Mapping[str, NDArray[Any]], recurrent_state: NDArray[np.float32] | None = None) -> None:
        """Take one row of every stream.

        Args:
            row: `reward`, `terminated`, `truncated`, `is_first`, `is_reset_step` and priority inputs,
                each [N, ...]; the same names at every call.
            recurrent_state: What the policy remembered before this row, [N, M]; None if it remembers nothing.
        """
        if self._next_step == 0:
            history = 0 if self._window.keep_all else self._window.history
            self._first_start = np.where(row["is_first"], 0, history)
            self._columns = {name: np.zeros((self._room, *value.shape), value.dtype) for name, value in row.items()}
        if self._next_step % self._window.stride == 0:
            self._recurrent_states.append(
                np.zeros((self._num_envs, 0), np.float32) if recurrent_state is None else recurrent_state
            )
        at = self._next_step - self._first_kept
        for name, column in self._columns.items():
            column[at] = row[name]
        self._next_step += 1

    def take(self) -> Windows:
        """Return the windows that the rows since the last call completed, oldest first."""
        steps, stride = self._window.steps, self._window.stride
        first = max(self._taken - steps, 0)
        start = np.arange(first + -first % stride, self._next_step - steps, stride)  # [S]
        indices = (start - self._first_kept) + np.arange(steps + 1)[:, None]  # [steps + 1, S]
        of_windows = {name: column[indices] for name, column in self._columns.items()}  # [steps + 1, S, N, ...]
        may_start = self._window.keep_all | ~of_windows["is_reset_step"][0].astype(np.bool_)  # [S, N]
        starts = (start[:, None] >= self._first_start) & may_start
        window, env_index = np.nonzero(starts)
        if len(window):
            joined = {name: column.reshape(steps + 1, -1, *column.shape[3:]) for name, column in of_windows.items()}
            priority = self._initial_priority(joined).reshape(starts.shape)[starts]
        else:
            priority = np.zeros(0, np.float32)
        recurrent_state = [self._recurrent_states.popleft() for _ in start]
        taken = Windows(
            env_index,
            start[window] + steps - self._taken,
            np.minimum(self._window.history, start[window]) + steps + 1,
            priority.astype(np.float64),
            np.stack(recurrent_state)[starts] if recurrent_state else np.zeros((0, 0), np.float32),
        )
        self._keep(steps)
        self._taken = self._next_step
        return taken

    def _keep(self, count: int) -> None:
        """Keep the newest `count` rows, or as many as there are."""
        kept = self._next_step - self._first_kept
        count = min(count, kept)
        for column in self._columns.values():
            column[:count] = column[kept - count : kept].copy()
        self._first_kept = self._next_step - count


class ChunkAppender(Protocol):
    """What a writer asks of a `ShardedAppender` or a `StreamAppender`."""

    @property
    def env_steps(self) -> int:
        """Agent decisions stored by the server that is written to, of all actors."""

    def append(self, chunks: Sequence[Chunk], items: Sequence[ItemBatch] = (), timeout_s: float | None = None) -> bool:
        """Queue chunks and the items that end in them; wait while too much is unacknowledged."""


class ChunkBuilder:
    """Room for `chunk_length` rows of each of N streams, column by column.

    Each stream's rows lie side by side in memory, [N, chunk_length, ...]: a chunk is encoded without a copy.
    """

    def __init__(self, signature: Signature, num_envs: int, chunk_length: int) -> None:
        """Take the memory once; it is used again for every chunk."""
        self._columns: dict[str, Array] = {
            column.name: np.zeros((num_envs, chunk_length, *column.shape), dtype=column.dtype) for column in signature
        }
        self._length = chunk_length
        self.filled = 0

    @property
    def is_full(self) -> bool:
        """Whether every row is filled."""
        return self.filled == self._length

    def add(self, row: Mapping[str, Array]) -> None:
        """Copy one row of every stream, each column [N, ...]."""
        for name, column in self._columns.items():
            column[:, self.filled] = row[name]
        self.filled += 1

    def columns_of(self, env_index: int) -> dict[str, Array]:
        """Return the filled rows of one stream, each [filled, ...]; valid until the next `clear`."""
        return {name: column[env_index, : self.filled] for name, column in self._columns.items()}

    def clear(self) -> None:
        """Forget the rows."""
        self.filled = 0


class RolloutWriter:
    """Collects rows step by step; every `chunk_length` steps it appends one chunk of every stream.

    All streams of an actor advance together, so their chunks are full in the same step and travel in one
    message, with the items that end in them.

    Example:
        >>> import numpy as np
        >>> import tidemill
        >>> env = tidemill.make_env(tidemill.EnvSettings("CartPole-v1"), 2, training=True)
        >>> signature, window = tidemill.signature_of(env.spec), tidemill.WindowSpec(history=0, steps=1)
        >>> uniform = tidemill.SelectorConfig(tidemill.SelectorKind.UNIFORM)
        >>> table = tidemill.TableConfig("cartpole", signature, uniform, max_items=1000, max_item_steps=2)
        >>> with tidemill.ReplayClient("127.0.0.1:7401") as replay:
        ...     replay.create_table(table)
        True
        >>> addresses, tables, length = ["127.0.0.1:7401"], ["cartpole"], 16
        >>> with tidemill.ShardedAppender.connect(addresses, "me", 2, signature, tables, length) as appender:
        ...     writer = tidemill.RolloutWriter(appender, signature, window, 2, length, None)
        ...     observation, is_first = env.reset(seed=0), np.ones(2, bool)
        ...     for _ in range(64):
        ...         action = np.random.randint(2, size=2)
        ...         step = env.step(action)
        ...         row = {"observation": observation, "action": action, "reward": step.reward, "is_first": is_first}
        ...         row |= {"terminated": step.terminated, "truncated": step.truncated}
        ...         writer.add(row, {}, step.is_reset_step, params_version=0)
        ...         observation, is_first = step.observation, step.is_first
        ...     appender.flush(timeout_s=10.0)
        True
    """

    def __init__(
        self,
        appender: ChunkAppender,
        signature: Signature,
        window: WindowSpec,
        num_envs: int,
        chunk_length: int,
        initial_priority: FirstPriority | None,
    ) -> None:
        """Start at step 0 of every stream.

        Args:
            appender: Sends the chunks; its first table takes the items.
            signature: Columns of the streams.
            window: Which windows become items.
            num_envs: Number of streams.
            chunk_length: Steps of a chunk.
            initial_priority: Gives a window its first priority; None if the table does not look at it.
        """
        self._appender, self._signature = appender, signature
        self._num_envs = num_envs
        self._rows = ChunkBuilder(signature, num_envs, chunk_length)
        self._stride = window.stride
        self._wants_inputs = initial_priority is not None
        self._windows = WindowTracker(window, num_envs, chunk_length, initial_priority or all_alike)
        self._first_step = 0
        self._clear()

    @property
    def env_steps(self) -> int:
        """Agent decisions of the whole cluster, as of the last acknowledgement."""
        return self._appender.env_steps

    @property
    def starts_window(self) -> bool:
        """Whether the next row is the first of a window."""
        return (self._first_step + self._rows.filled) % self._stride == 0

    def add(
        self,
        row: Mapping[str, Array],
        priority_inputs: Mapping[str, Array],
        is_reset_step: NDArray[np.bool_],
        params_version: int,
        recurrent_state: NDArray[np.float32] | None = None,
    ) -> None:
        """Take one row of every stream; waits while too much is unacknowledged.

        Args:
            row: Every column of the signature, each [N, ...].
            priority_inputs: What the policy wants back for initial priorities, each [N].
            is_reset_step: Rows whose action the environment ignored, [N].
            params_version: Version of the parameters that chose the actions; 0 for none.
            recurrent_state: The policy's before it chose them, [N, M], handed to the learner with each item that starts
                here; None without one.
        """
        self._rows.add(row)
        self._decisions += ~is_reset_step
        scalars = {name: row[name] for name in ("reward", "terminated", "truncated", "is_first")}
        inputs = priority_inputs if self._wants_inputs else {}
        self._windows.add({**scalars, **inputs, "is_reset_step": is_reset_step}, recurrent_state)
        if self._rows.is_full:
            self._append(params_version)

    def _append(self, params_version: int) -> None:
        chunks = [
            Chunk(
                env_index=env_index,
                first_step=self._first_step,
                step_count=self._rows.filled,
                decision_count=int(self._decisions[env_index]),
                params_version=params_version,
                blocks=encode(self._signature, self._rows.columns_of(env_index)),
            )
            for env_index in range(self._num_envs)
        ]
        windows = self._windows.take()
        items = ItemBatch(
            table_index=0,
            chunk_indices=windows.env_index,  # one chunk of every stream, in order
            last_offsets=windows.last_row,
            lengths=windows.length,
            priorities=windows.priority + SMALLEST_PRIORITY,
            payloads=tuple(recurrent_state.tobytes() for recurrent_state in windows.recurrent_state)
            if windows.recurrent_state.shape[1]
            else (),
        )
        self._first_step += self._rows.filled
        self._clear()
        self._send(chunks, [items])

    def _send(self, chunks: list[Chunk], items: list[ItemBatch]) -> None:
        try:
            self._appender.append(chunks, items)
        except StreamRestarted as restarted:
            _log.warning("this actor's streams restart from step 0", reason=str(restarted))
            self._first_step = 0
            self._windows.restart()

    def _clear(self) -> None:
        self._rows.clear()
        self._decisions = np.zeros(self._num_envs, dtype=np.int64)
