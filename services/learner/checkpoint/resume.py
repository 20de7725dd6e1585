"""Captures and restores the state of a running learner, with generators: for checkpoints, on its device, for ranks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import structlog
import torch
from torch import Tensor

from tidemill.errors import FatalError, InvalidArgument
from tidemill.rl.agents.interface import Agent
from tidemill.rl.state_tree import clone_tree, copied_to_cpu, flatten, shapes_of
from tidemill.services.learner.checkpoint.format import Checkpoint, decode, encode
from tidemill.services.learner.checkpoint.store import CheckpointStore, check_fits
from tidemill.services.learner.status.counters import Counters


def seed_rng(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """Return the state of all of them, as a tree that a checkpoint can hold; of GPUs if this process has opened CUDA.

    A learner that is to leave a broken GPU alone asks nothing of its driver, which may not answer.
    """
    numpy_state: dict[str, Any] = dict(np.random.get_state(legacy=False))
    words = numpy_state["state"]
    return {
        "python": random.getstate(),
        "numpy": numpy_state | {"state": {"key": words["key"].tolist(), "pos": int(words["pos"])}},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def fits_devices(state: dict[str, Any]) -> bool:
    """True if this process has as many GPUs as the state has generators, so `load_rng_state` can set them all."""
    return len(state["cuda"]) == (torch.cuda.device_count() if torch.cuda.is_initialized() else 0)


def load_rng_state(state: dict[str, Any]) -> None:
    """Continue from what `rng_state` returned; GPU states are skipped where their number differs."""
    random.setstate(state["python"])
    words = state["numpy"]["state"]
    key = np.asarray(words["key"], dtype=np.uint32)
    np.random.set_state(state["numpy"] | {"state": {"key": key, "pos": words["pos"]}})
    torch.set_rng_state(state["torch"])
    if state["cuda"] and fits_devices(state):
        torch.cuda.set_rng_state_all(state["cuda"])


_RESTORED = "weights, targets, optimizers, schedules, counters and random generators are restored"

_log = structlog.get_logger()


@dataclass(frozen=True)
class LearnerSnapshot:
    """A learner between two updates, on its device: what a checkpoint is made of."""

    counters: dict[str, int]
    agent: Any
    """A tree of tensors that nothing writes to."""
    rng: dict[str, Any]

    @property
    def learner_steps(self) -> int:
        """Updates behind it."""
        return self.counters["learner_steps"]

    @property
    def size_bytes(self) -> int:
        """Memory of its tensors."""
        return sum(tensor.nbytes for tensor in flatten(self.agent)[1].values())


class HasState(Protocol):
    """What a run in lock-step keeps besides: its newest priorities."""

    def state(self) -> dict[str, Any]:
        """Return it as a tree of tensors and numbers, which nothing writes to."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""


class ResumableState:
    """An agent and its counters, as the training thread leaves them between two updates."""

    def __init__(
        self,
        agent: Agent,
        counters: Counters,
        *,
        algorithm: str,
        config_digest: str,
        settings: Mapping[str, Any] | None = None,
        table: Mapping[str, Any] | None = None,
        written_by: Mapping[str, str] | None = None,
        priorities: HasState | None = None,
    ) -> None:
        self._agent, self._counters = agent, counters
        self._algorithm, self._config_digest = algorithm, config_digest
        self._settings, self._table = settings or {}, table or {}
        self._written_by = written_by or {}
        self._priorities = priorities
        self._draws_anew = False  # since the newest state that was loaded

    def capture(self) -> Checkpoint:
        """Return a copy of everything needed to resume exactly; training may continue meanwhile."""
        return Checkpoint(
            algorithm=self._algorithm,
            network=shapes_of(self._agent.policy_state()),
            config_digest=self._config_digest,
            counters=self._counters.state(),
            agent=copied_to_cpu(self._agent.state_dict()),
            rng=copied_to_cpu(rng_state()),
            written_by=self._written_by,
            fencing_token=self._counters.fencing_token,
            priorities=self._priorities.state() if self._priorities is not None else {},
            settings=self._settings,
            table=self._table,
        )

    def snapshot(self) -> LearnerSnapshot:
        """Return a copy of the present state that stays on its device: quicker than `capture`, and for `roll_back`."""
        return LearnerSnapshot(self._counters.state(), clone_tree(self._agent.state_dict()), rng_state())

    def roll_back(self, snapshot: LearnerSnapshot) -> None:
        """Restore the state that `snapshot` captured."""
        self._agent.load_state_dict(snapshot.agent)
        self._counters.load_state(snapshot.counters)
        load_rng_state(snapshot.rng)

    def to_bytes(self) -> bytes:
        """Return the state of `capture` as bytes, for `load_bytes`."""
        return encode(self.capture())

    def load_bytes(self, data: bytes) -> None:
        """Load the state of another rank of the same run.

        Raises:
            FatalError: It is of another algorithm or network.
        """
        checkpoint, source = decode(data, "rank 0"), Path("rank 0")
        check_fits(source, checkpoint, self.capture())
        self._load(source, checkpoint)
        self._counters.fencing_token = checkpoint.fencing_token

    def restore(self, store: CheckpointStore) -> str:
        """Continue from the newest whole checkpoint; return a description of what was restored, empty if there is none.

        Raises:
            ConfigError: There are checkpoints, none of them whole; the message names them and what to do.
            FatalError: The checkpoint is of another algorithm or network; the message names both.
        """
        found = store.newest()
        if found is None:
            store.check_unused()
            return ""
        path, checkpoint = found
        check_fits(path, checkpoint, self.capture())
        self._load(path, checkpoint)
        before, now = checkpoint.settings, self._settings
        both = [name for name in before if name in now]  # a version of Tidemill may add some or leave some out
        if changed := [f"{name} {now[name]!r} (it was {before[name]!r})" for name in both if now[name] != before[name]]:
            what = "settings of agent or environment changed since the checkpoint"
            _log.warning(what, changed=", ".join(changed), path=str(path))
        return self._described(path, checkpoint)

    def _described(self, path: Path, checkpoint: Checkpoint) -> str:
        counters = self._counters
        where = f"{path.stem}: {counters.learner_steps:,} updates, {counters.env_steps:,} agent decisions"
        lost = ["batches that were ready but not trained on"]
        if self._draws_anew:
            lost.append("the generator of the agent's noise, which was on another kind of device and is seeded again")
        # a process on a CPU has not opened CUDA, and draws from no GPU; older versions saved theirs all the same
        if checkpoint.rng["cuda"] and torch.cuda.is_initialized() and not fits_devices(checkpoint.rng):
            lost.append("random generators of the GPUs, whose number changed")
        before, now = checkpoint.written_by, self._written_by
        changed = [
            f"{name} {before[name]} then, {now.get(name)} now" for name in before if before[name] != now.get(name)
        ]
        with_what = f", with {'; '.join(changed)}" if changed else ""
        return f"{where}; {_RESTORED}{with_what}; not restored: {', '.join(lost)}"

    def _load(self, path: Path, checkpoint: Checkpoint) -> None:
        stored, own = (state.get("noise") for state in (checkpoint.agent, self._agent.state_dict()))
        if isinstance(stored, Tensor) and isinstance(own, Tensor):
            self._draws_anew = stored.numel() != own.numel()
        try:
            self._agent.load_state_dict(checkpoint.agent)
        except torch.OutOfMemoryError:
            raise
        except (InvalidArgument, KeyError, RuntimeError, ValueError) as error:
            raise FatalError(f"{path} does not fit this run's agent: {error}") from error
        self._counters.load_state(checkpoint.counters)
        load_rng_state(checkpoint.rng)
        if self._priorities is not None and checkpoint.priorities:
            self._priorities.load_state(checkpoint.priorities)
