"""The counters of a learner, which continue across restarts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.replay.batch import StoredSteps

_SERVER = "server_env_steps"
_HISTORY = "server_history"
_COUNT = "server_count"
"""Each before the name of a shard, which is empty for a single server, in a checkpoint."""

_UNKNOWN = StoredSteps(-1, 0)


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
    _stored: dict[str, StoredSteps] = field(default_factory=dict)
    _waiting: dict[str, int] = field(default_factory=dict)  # what a table said since its last batch
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def env_steps(self) -> int:
        """Agent decisions, including those before restarts of the replay service; never falls."""
        with self._lock:
            stored, waiting = self._stored, self._waiting
            shards = {**stored, **waiting}
            steps = (max(stored.get(shard, _UNKNOWN).env_steps, waiting.get(shard, 0)) for shard in shards)
            return self._base_env_steps + sum(steps)

    def observe(self, stored: StoredSteps, shard: str = "") -> None:
        """Take the count of a table, which starts at 0 again when it is reset or its server starts empty.

        Within a history a count falls if the server lost its last moments with the power, or if it is of a version that
        does not tell of a reset: the decisions were made all the same. Answers of one sample stream come in order, and
        only they may be given here. Several shards count each for itself, under its name.
        """
        with self._lock:
            before = self._stored.get(shard, _UNKNOWN)
            if not stored.continues(before):
                self._base_env_steps += before.env_steps
            elif stored.env_steps < before.env_steps:
                self._base_env_steps += before.env_steps - stored.env_steps
            self._stored[shard] = stored
            self._waiting.pop(shard, None)

    def observe_waiting(self, env_steps: int, shard: str = "") -> None:
        """Take the count of a replay server that no batch has come from, which is not part of a checkpoint."""
        with self._lock:
            self._waiting[shard] = max(env_steps, self._waiting.get(shard, 0))

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
