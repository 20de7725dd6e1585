"""The counters of a learner, which continue across restarts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from tidemill.replay.batch import StoredSteps

_SERVER = "server_env_steps"
_HISTORY = "server_history"
_COUNT = "server_count"
"""Each before the name of a shard, which is empty for a single server, in a checkpoint."""

_UNKNOWN = StoredSteps(-1, 0)
_ENV_STEPS = attrgetter("env_steps")


@dataclass
class Counters:
    """Updates, agent decisions and the published version.

    `env_steps` is written by the thread that receives samples and by the one that asks the table while none come, the
    rest by the training thread; all may read. A count moves from one field to another when a server starts empty, so
    they are read and written together.
    """

    learner_steps: int = 0
    """Updates, those before a resume included."""
    version: int = 0
    """Newest version of the parameters that the parameter server acknowledged; 0 means none."""
    fencing_token: int = 0
    """Fencing token of this learner as a publisher; 0 means none yet."""
    _base_env_steps: int = 0
    _stored: dict[str, StoredSteps] = field(default_factory=dict)  # as of each shard's last batch
    _counts: dict[str, list[StoredSteps]] = field(default_factory=dict)  # that of the last batch, and those since
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def env_steps(self) -> int:
        """Agent decisions, including those before restarts of the replay service and resets; never falls."""
        with self._lock:
            return self._base_env_steps + sum(_sum(counts) for counts in self._counts.values())

    def observe(self, stored: StoredSteps, shard: str = "") -> None:
        """Take the count of a table, which starts at 0 again when it is reset or its server starts empty.

        Within a history a count falls if the server lost its last moments with the power, or if it is of a version that
        does not tell of a reset: the decisions were made all the same. Answers of one sample stream come in order, and
        only they may be given here. Several shards count each for itself, under its name.
        """
        with self._lock:
            self._follow(stored, shard)
            before, counts = self._stored.get(shard, _UNKNOWN), self._counts.setdefault(shard, [])
            while counts and not stored.continues(counts[0]):
                self._base_env_steps += counts.pop(0).env_steps
            if counts and stored.continues(before) and stored.env_steps < before.env_steps:
                self._base_env_steps += counts[0].env_steps - stored.env_steps
                counts[0] = stored
            else:
                counts[:1] = [max([stored, *counts[:1]], key=_ENV_STEPS)]  # a table is asked after a batch was drawn
            self._stored[shard] = stored

    def observe_waiting(self, stored: StoredSteps, shard: str = "") -> None:
        """Take the count of a table that no batch has come from, which is not part of a checkpoint.

        A server of an earlier version does not name its count, which is then known once a batch comes.
        """
        with self._lock:
            self._follow(stored, shard)
            counts = self._counts.setdefault(shard, [])
            if counts and stored.continues(counts[-1]):
                counts[-1] = max(stored, counts[-1], key=_ENV_STEPS)
            elif stored.store_id:
                counts.append(stored)

    def state(self) -> dict[str, int]:
        """Return the state for a checkpoint; a new fencing_token is acquired at each start."""
        with self._lock:
            return {
                "learner_steps": self.learner_steps,
                "version": self.version,
                "base_env_steps": self._base_env_steps,
                **{f"{_SERVER}{shard}": stored.env_steps for shard, stored in self._stored.items()},
                **{f"{_HISTORY}{shard}": stored.store_id for shard, stored in self._stored.items()},
                **{f"{_COUNT}{shard}": stored.count_id for shard, stored in self._stored.items()},
            }

    def load_state(self, state: Mapping[str, int]) -> None:
        """Continue from what `state` returned."""
        self.learner_steps = state["learner_steps"]
        self.version = state["version"]
        self._base_env_steps = state["base_env_steps"]
        shards = [name.removeprefix(_SERVER) for name in state if name.startswith(_SERVER)]
        self._stored = {
            shard: StoredSteps(
                state.get(f"{_HISTORY}{shard}", 0), state[f"{_SERVER}{shard}"], state.get(f"{_COUNT}{shard}", 0)
            )
            for shard in shards
        }
        self._counts = {shard: [stored] for shard, stored in self._stored.items()}

    def _follow(self, stored: StoredSteps, shard: str) -> None:
        """Rename the shard whose count this is: a replaced pod keeps its store and gets another address, its name."""
        if not stored.count_id:
            return
        for name, counts in self._counts.items():
            if name != shard and any(
                (count.store_id, count.count_id) == (stored.store_id, stored.count_id) for count in counts
            ):
                names = {name: shard, shard: name}  # two may have exchanged theirs
                self._counts = {names.get(each, each): count for each, count in self._counts.items()}
                self._stored = {names.get(each, each): last for each, last in self._stored.items()}
                return


def _sum(counts: list[StoredSteps]) -> int:
    return sum(count.env_steps for count in counts)
