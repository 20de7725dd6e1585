"""The newest rows of every stream of a writer, by column: the chunk that fills up, and what came before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tidemill.arrays import Array, Bools, Ints
from tidemill.errors import InvalidArgument
from tidemill.types import Signature

_NUMBERS = ("filled", "fresh", "episode_steps", "first_step", "_kept", "params_versions")
_ROWS, _BESIDE, _STREAM_STEPS = "rows/", "beside/", "stream_steps"
_NONE = np.zeros(0, np.int64)


class StreamRows:
    """At least `history` rows that are sent and up to `chunk_length` that are not, of each of N streams.

    Streams need not be in step; those that are take a row in one copy for each column. What was sent is kept because
    the priorities of items that end later are computed from it, and because a chunk that is flushed before it is full
    is padded: the next one then begins with the rows that items to come may reach back to. A stream's rows are a ring
    of chunks, so that a chunk is encoded where it is and nothing is moved.

    Attributes:
        all: 0 .. N - 1, int64 [N].
        filled: Rows of the present chunk, [N].
        fresh: How many of these are new, not repeated, [N].
        episode_steps: Steps since the episode began, [N].
        stream_steps: Steps since the writer began, [N].
        first_step: Number of the chunk's first row in its stream, [N].
        params_versions: Version of the parameters that chose the newest action, uint64 [N].
        is_decision: Whether each row is a decision of the agent, [N, rows].
    """

    def __init__(self, signature: Signature, num_envs: int, chunk_length: int, history: int) -> None:
        """Take the memory once."""
        self.chunk_length, self._history = chunk_length, history
        self._capacity = chunk_length * (1 + -(-history // chunk_length))
        self._columns: dict[str, Array] = {}  # each [N, capacity, ...]
        self._beside: dict[str, Array] = {}
        self._by_row: dict[str, Array] = {}  # views of all of them, [capacity, N, ...]
        self.all = np.arange(num_envs)
        for column in signature:
            self._columns[column.name] = self._made(column.name, np.dtype(column.dtype), column.shape)
        self.is_decision: Bools = np.ones((num_envs, self._capacity), np.bool_)
        self._decisions_by_row, self._has_others = self.is_decision.swapaxes(0, 1), False
        self._counts = np.zeros((4, num_envs), np.int64)  # all that a row adds one to
        self.filled, self.fresh, self.episode_steps, self.stream_steps = self._counts
        self.first_step, self._kept, self._begin = np.zeros((3, num_envs), np.int64)
        self.params_versions = np.zeros(num_envs, np.uint64)
        self._level: int | None = 0  # rows of every stream's chunk, where these are equal
        self._base = 0  # then also where every chunk begins

    def keep_beside(self, columns: Mapping[str, Array], *, is_batch: bool) -> None:
        """Make room for columns that `add` is given from now on and no chunk has; each [N, ...], or [...] of one."""
        for name, values in columns.items():
            shape = values.shape[1:] if is_batch else values.shape
            self._beside[name] = self._made(name, values.dtype, shape)

    @property
    def beside(self) -> Mapping[str, Array]:
        """Columns that are kept and not sent, each [N, rows, ...]."""
        return self._beside

    def full(self, envs: Ints) -> Ints:
        """Return those of some streams whose chunk is full."""
        if self._level is not None:
            return envs if self._level == self.chunk_length else _NONE
        full: Ints = envs[self.filled[envs] == self.chunk_length]
        return full

    def add(
        self, columns: Mapping[str, Array], envs: Ints, is_decision: Bools | None = None, params_version: int = 0
    ) -> None:
        """Copy a row of some streams, none of whose chunks is full.

        Args:
            columns: Those of the signature and those beside it, each [len(envs), ...], or [...] of a single stream.
            envs: The streams.
            is_decision: Whether the row is a decision, [len(envs)] or of a single stream []; None: it is.
            params_version: Version of the parameters that chose the action.
        """
        if is_decision is not None:
            self._has_others = True
        if self._level is not None and len(envs) == len(self.all):
            row = self._base + self._level
            for name, values in columns.items():
                self._by_row[name][row] = values
            if self._has_others:
                self._decisions_by_row[row] = True if is_decision is None else is_decision
            self.params_versions.fill(params_version)
            self._counts += 1
            self._level += 1
            return
        self._level = None
        rows = self._begin[envs] + self.filled[envs]
        for name, values in columns.items():
            self._by_row[name][rows, envs] = values
        self._decisions_by_row[rows, envs] = True if is_decision is None else is_decision
        self.params_versions[envs] = params_version
        self._counts[:, envs] += 1

    def chunk(self, env: int) -> dict[str, Array]:
        """Return the rows of a stream's chunk, [chunk_length, ...], zeros where it is not full; valid until `add`."""
        begin = int(self._begin[env])
        end, filled = begin + self.chunk_length, int(self.filled[env])
        if filled < self.chunk_length:
            for column in self._columns.values():
                column[env, begin + filled : end] = 0
        return {name: column[env, begin:end] for name, column in self._columns.items()}

    def decisions(self, envs: Ints) -> Ints:
        """Return how many of the new rows of some streams' chunks are decisions, [len(envs)]."""
        if not self._has_others:
            fresh: Ints = self.fresh[envs]
            return fresh
        if self._level is not None and len(envs) == len(self.all) and (self.fresh == self._level).all():
            of_all: Ints = np.count_nonzero(self.is_decision[:, self._base : self._base + self._level], axis=1)
            return of_all
        offsets = np.arange(self.chunk_length)
        filled = self.filled[envs][:, None]
        is_new = (offsets >= filled - self.fresh[envs][:, None]) & (offsets < filled)
        flags = self.is_decision[envs[:, None], self._begin[envs][:, None] + offsets]
        counts: Ints = (flags & is_new).sum(1)
        return counts

    def rows_of(self, envs: Ints, offsets: Ints) -> Ints:
        """Return where rows are in the columns, given their places in the present chunks, before them if negative."""
        return (self._begin[envs] + offsets) % self._capacity

    def column(self, name: str) -> Array:
        """Return a column, stored or beside, [N, rows, ...]. KeyError: there is none of this name."""
        return self._columns[name] if name in self._columns else self._beside[name]

    @property
    def names(self) -> list[str]:
        """Names of all columns, stored or beside."""
        return [*self._columns, *self._beside]

    def held(self, envs: Ints) -> Ints:
        """Return how many rows up to the newest one a message with the present chunk may reach back to, [len(envs)]."""
        filled = self.filled[envs]
        return np.where(filled > 0, self._kept[envs] + filled, 0)

    def available(self, envs: Ints) -> int:
        """Return how many steps an item may have that ends with the newest one, in each of some streams."""
        return int(np.minimum(self.held(envs), self.episode_steps[envs]).min())

    def advance(self, envs: Ints, *, continues: bool) -> None:
        """Begin the next chunk of some streams, whose rows follow on those of this one, or not."""
        self._begin[envs] = (self._begin[envs] + self.chunk_length) % self._capacity
        kept = np.minimum(self._kept[envs] + self.chunk_length, self._history)
        self._kept[envs] = kept if continues else 0
        self.first_step[envs] += self.chunk_length
        self.filled[envs] = self.fresh[envs] = 0
        if self._level is not None and len(envs) == len(self.all):
            self._level, self._base = 0, int(self._begin[0])
        else:
            self._find_level()

    def chosen(self, envs: ArrayLike) -> Ints:
        """Return the streams that indices or a bool mask [N] name, of a single one also a bool.

        Raises:
            InvalidArgument: They name others, or one twice, as a mask of numbers does.
        """
        given, count = np.asarray(envs), len(self.all)
        if given.dtype == np.bool_:
            if np.atleast_1d(given).shape != (count,):
                raise InvalidArgument(f"the mask of environments has shape {given.shape}, must have ({count},)")
            return np.flatnonzero(given)
        indices = np.unique(given) if given.dtype.kind in "iu" else self.all[:0]
        if given.size and not (len(indices) == given.size and 0 <= indices[0] <= indices[-1] < count):
            raise InvalidArgument(
                f"envs are {given.tolist()}, must be a bool mask [{count}], or indices 0 .. {count - 1}, each once"
            )
        return given.astype(np.int64).reshape(-1)

    def state(self) -> dict[str, Array]:
        """Return everything there is, by name; `restore` takes it back."""
        offsets = np.arange(-self._history, self.chunk_length)
        envs, rows = self.all[:, None], self.rows_of(self.all[:, None], offsets)
        found = {f"{_ROWS}{name}": column[envs, rows] for name, column in self._columns.items()}
        found |= {f"{_BESIDE}{name}": column[envs, rows] for name, column in self._beside.items()}
        if self._has_others:
            found["is_decision"] = self.is_decision[envs, rows]
        return found | {name: getattr(self, name) for name in (*_NUMBERS, _STREAM_STEPS)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Continue where other rows of the same signature were."""
        begin = self._capacity - self.chunk_length
        self._begin[:] = begin
        rows = slice(begin - self._history, None)
        for name, column in self._columns.items():
            column[:, rows] = state[f"{_ROWS}{name}"]
        beside = {name.removeprefix(_BESIDE): column for name, column in state.items() if name.startswith(_BESIDE)}
        self.keep_beside({name: column[:, 0] for name, column in beside.items()}, is_batch=True)
        for name, column in beside.items():
            self._beside[name][:, rows] = column
        if (flags := state.get("is_decision")) is not None:
            self._has_others = True
            self.is_decision[:, rows] = flags
        for name in _NUMBERS:
            getattr(self, name)[:] = state[name]
        self.stream_steps[:] = state.get(_STREAM_STEPS, self.first_step + self.filled)
        self._find_level()

    def begin_behind(self, envs: Ints, next_steps: Ints) -> None:
        """Begin an empty chunk and an episode at a given step [len(envs)] of some streams."""
        self.first_step[envs] = next_steps
        self._counts[:, envs] = 0
        self._kept[envs] = 0
        self._find_level()

    def tail(self, env: int, *, across_episodes: bool) -> dict[str, Array]:
        """Return copies of the newest rows of a stream that an item to come may still need, oldest first, by column."""
        held = int(self._kept[env] + self.filled[env])
        count = min(self._history, held, held if across_episodes else int(self.episode_steps[env]))
        rows = self.rows_of(self.all[env : env + 1], np.arange(-count, 0) + self.filled[env])
        kept = {name: self.column(name)[env, rows] for name in self.names}
        return kept | {"": self.is_decision[env, rows]}

    def repeat(self, env: int, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Put rows into a stream's empty chunk; return those that it has no room for, none in any column if all fit."""
        count = min(len(rows[""]), self.chunk_length)
        begin = int(self._begin[env])
        for name, values in rows.items():
            column = self.column(name) if name else self.is_decision
            column[env, begin : begin + count] = values[:count]
        self.filled[env] = count
        self._find_level()
        return {name: values[count:] for name, values in rows.items()}

    def _made(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        column = np.zeros((len(self.all), self._capacity, *shape), dtype)
        self._by_row[name] = column.swapaxes(0, 1)
        return column

    def _find_level(self) -> None:
        """Find out whether all streams are in step."""
        begin, filled = self._begin, self.filled
        is_even = bool((filled == filled[0]).all() and (begin == begin[0]).all())
        self._level, self._base = (int(filled[0]), int(begin[0])) if is_even else (None, 0)
