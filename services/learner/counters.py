"""The numbers a learner counts on across restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_SERVER = "server_env_steps"
"""Before the name of a shard, which is empty for a single server, in a checkpoint."""

_LOST_AT_MOST = 0.9
"""Share of its count that a server which lost its last moments still has. One that started empty answers only when its
table has the least size again, which may be near the old count in a run that has just begun."""


@dataclass
class Counters:
    """Gradient steps, agent decisions and the published version.

    `env_steps` is written by the thread that receives samples, the rest by the training thread; all may read.
    """

    learner_steps: int = 0
    """Gradient steps, those before a resume included."""
    version: int = 0
    """Newest version of the parameters that the parameter server acknowledged; 0 means none."""
    generation: int = 0
    """Generation of this learner as a publisher; 0 means none yet."""
    _base_env_steps: int = 0
    _server_env_steps: dict[str, int] = field(default_factory=dict)

    @property
    def env_steps(self) -> int:
        """Agent decisions, those of earlier lives of the replay service included; never falls."""
        return self._base_env_steps + sum(self._server_env_steps.values())

    def observe_env_steps(self, server_env_steps: int, shard: str = "") -> None:
        """Take the count of a replay server, which starts at 0 again when the server starts empty.

        A count that fell by a tenth at most is that of a server which lost its last moments with the power: they were
        played all the same. Answers of one sample stream come in order, and only they may be given here. Several shards
        count each for itself, under its name.
        """
        before = self._server_env_steps.get(shard, 0)
        if server_env_steps < before:
            started_empty = server_env_steps < _LOST_AT_MOST * before
            self._base_env_steps += before if started_empty else before - server_env_steps
        self._server_env_steps[shard] = server_env_steps

    def state(self) -> dict[str, int]:
        """Return what a checkpoint keeps; the generation is handed out anew at each start."""
        return {
            "learner_steps": self.learner_steps,
            "version": self.version,
            "base_env_steps": self._base_env_steps,
            **{f"{_SERVER}{shard}": steps for shard, steps in self._server_env_steps.items()},
        }

    def load_state(self, state: Mapping[str, int]) -> None:
        """Continue from what `state` returned."""
        self.learner_steps = state["learner_steps"]
        self.version = state["version"]
        self._base_env_steps = state["base_env_steps"]
        counts = {name: value for name, value in state.items() if name.startswith(_SERVER)}
        self._server_env_steps = {name.removeprefix(_SERVER): value for name, value in counts.items()}
