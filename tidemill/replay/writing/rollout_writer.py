"""Turns the steps of an actor's environments into chunks and items and hands them to the replay service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.codec import encode
from tidemill.logger import LateLogger
from tidemill.replay.writing.appender import StreamRestarted
from tidemill.replay.writing.chunk import SMALLEST_PRIORITY, Chunk, ItemBatch
from tidemill.replay.writing.windows import FirstPriority, WindowTracker, all_alike
from tidemill.types import Signature, WindowSpec

Array = NDArray[np.generic]

_log = LateLogger()


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
