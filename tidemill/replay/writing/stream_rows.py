"""The newest rows of every stream of a writer, by column: the chunk that fills up, and what came before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.errors import InvalidArgument
from tidemill.types import Signature

Array = NDArray[Any]
Ints = NDArray[np.int64]

_NUMBERS = ("filled", "fresh", "episode_steps", "first_step", "_kept")


class StreamRows:
    """`history` rows that are sent and up to `chunk_length` that are not, of each of N streams.

    Streams need not be in step. What was sent is kept because a chunk that is flushed before it is full is padded: the
    next one then begins with the rows that items to come may reach back to.

    Attributes:
        all: 0 .. N - 1, int64 [N].
        filled: Rows of the present chunk, [N].
        fresh: How many of these are new, not repeated, [N].
        episode_steps: Steps since the episode began, [N].
        first_step: Number of the chunk's first row in its stream, [N].
    """

    def __init__(self, signature: Signature, num_envs: int, chunk_length: int, history: int) -> None:
        """Take the memory once."""
        self.chunk_length, self._history = chunk_length, history
        self._columns: dict[str, Array] = {
            column.name: np.zeros((num_envs, history + chunk_length, *column.shape), column.dtype)
            for column in signature
        }
        self.all = np.arange(num_envs)
        self.filled, self.fresh, self.episode_steps, self.first_step, self._kept = np.zeros((5, num_envs), np.int64)

    def add(self, columns: Mapping[str, Array], envs: Ints, *, alone: bool) -> None:
        """Copy a row of some streams, none of whose chunks is full; each column [len(envs), ...], or [...] of one."""
        if alone:
            env = int(envs[0])
            row = self._history + int(self.filled[env])
            for name, values in columns.items():
                self._columns[name][env, row] = values
        else:
            at = self._history + self.filled[envs]
            for name, values in columns.items():
                self._columns[name][envs, at] = values
        self.filled[envs] += 1
        self.fresh[envs] += 1
        self.episode_steps[envs] += 1

    def chunk(self, env: int) -> dict[str, Array]:
        """Return the rows of a stream's chunk, [chunk_length, ...], zeros where it is not full; valid until `add`."""
        begin, end = self._history, self._history + int(self.filled[env])
        for column in self._columns.values():
            column[env, end:] = 0
        return {name: column[env, begin:] for name, column in self._columns.items()}

    def available(self, envs: Ints) -> int:
        """Return how many steps an item may have that ends with the newest one, in each of some streams."""
        held = np.where(self.filled[envs] > 0, self._kept[envs] + self.filled[envs], 0)
        return int(np.minimum(held, self.episode_steps[envs]).min())

    def advance(self, envs: Ints, *, continues: bool) -> None:
        """Begin the next chunk of some streams, whose rows follow on those of this one, or not."""
        for env in envs.tolist():
            if continues and self._history:
                for column in self._columns.values():
                    column[env, : self._history] = column[env, self.chunk_length :].copy()
            kept = int(self._kept[env]) + self.chunk_length
            self._kept[env] = min(kept, self._history) if continues else 0
        self.first_step[envs] += self.chunk_length
        self.filled[envs] = self.fresh[envs] = 0

    def chosen(self, envs: ArrayLike) -> Ints:
        """Return the streams that indices or a mask [N] name. InvalidArgument: they name others."""
        given, count = np.asarray(envs), len(self.all)
        if given.dtype == np.bool_:
            if given.shape != (count,):
                raise InvalidArgument(f"the mask of environments has shape {given.shape}, must have ({count},)")
            return np.flatnonzero(given)
        if given.size and not 0 <= given.min() <= given.max() < count:
            raise InvalidArgument(f"envs are {given.tolist()}, must be 0 .. {count - 1}")
        return given.astype(np.int64).reshape(-1)

    def state(self) -> dict[str, Array]:
        """Return everything there is, by name; `restore` takes it back."""
        rows = {f"rows/{name}": column for name, column in self._columns.items()}
        return rows | {name: getattr(self, name) for name in _NUMBERS}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on where other rows of the same signature were."""
        for name, column in self._columns.items():
            column[:] = state[f"rows/{name}"]
        for name in _NUMBERS:
            getattr(self, name)[:] = state[name]

    def begin_behind(self, envs: Ints, next_steps: Ints) -> None:
        """Begin an empty chunk and an episode at a given step [len(envs)] of some streams."""
        self.first_step[envs] = next_steps
        for name in ("filled", "fresh", "episode_steps", "_kept"):
            getattr(self, name)[envs] = 0

    def tail(self, env: int) -> list[dict[str, Array]]:
        """Return copies of the newest rows of a stream that an item of its episode may still need, oldest first."""
        end = self._history + int(self.filled[env])
        count = int(min(self._history, self.episode_steps[env], self._kept[env] + self.filled[env]))
        rows = range(end - count, end)
        return [{name: column[env, row].copy() for name, column in self._columns.items()} for row in rows]

    def repeat(self, env: int, rows: list[dict[str, Array]]) -> list[dict[str, Array]]:
        """Put rows into a stream's empty chunk; return those that it has no room for."""
        for row in rows[: self.chunk_length]:
            for name, value in row.items():
                self._columns[name][env, self._history + self.filled[env]] = value
            self.filled[env] += 1
        return rows[self.chunk_length :]
