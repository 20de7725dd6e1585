"""What of a running learner goes into a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from tidemill.errors import FatalError, InvalidArgument
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.checkpoint import CheckpointStore, check_fits
from tidemill.services.learner.checkpoint_format import Checkpoint, decode, encode
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.held import Held, copied
from tidemill.services.learner.rng import fits_devices, load_rng_state, rng_state
from tidemill.services.learner.state_tree import shapes_of, snapshot

_RESTORED = "weights, targets, optimizers, schedules, counters and random generators are back"

_log = structlog.get_logger()


class Resumable:
    """An agent and its counters, as the training thread leaves them between two gradient steps."""

    def __init__(
        self,
        agent: Agent,
        counters: Counters,
        *,
        algorithm: str,
        config_digest: str,
        written_by: Mapping[str, str] | None = None,
    ) -> None:
        self._agent, self._counters = agent, counters
        self._algorithm, self._config_digest = algorithm, config_digest
        self._written_by = written_by or {}

    def capture(self) -> Checkpoint:
        """Return a copy of everything needed to go on exactly; training may go on meanwhile."""
        return Checkpoint(
            algorithm=self._algorithm,
            network=shapes_of(self._agent.policy_state()),
            config_digest=self._config_digest,
            counters=self._counters.state(),
            agent=snapshot(self._agent.state_dict()),
            rng=snapshot(rng_state()),
            written_by=self._written_by,
            generation=self._counters.generation,
        )

    def hold(self) -> Held:
        """Return a copy of the state of now that stays on its device: quicker than `capture`, and for `go_back`."""
        return Held(self._counters.state(), copied(self._agent.state_dict()), rng_state())

    def go_back(self, held: Held) -> None:
        """Become the learner that `hold` saw."""
        self._agent.load_state_dict(held.agent)
        self._counters.load_state(held.counters)
        load_rng_state(held.rng)

    def encoded(self) -> bytes:
        """Return what `capture` does as bytes, for `adopt`."""
        return encode(self.capture())

    def adopt(self, data: bytes) -> None:
        """Become the learner that another rank of the same run is.

        Raises:
            FatalError: It is of another algorithm or network.
        """
        checkpoint, source = decode(data, "rank 0"), Path("rank 0")
        check_fits(source, checkpoint, self.capture())
        self._load(source, checkpoint)
        self._counters.generation = checkpoint.generation

    def restore(self, store: CheckpointStore) -> str:
        """Go on from the newest whole checkpoint; return in words what was restored, empty if there is none.

        Raises:
            FatalError: The checkpoint is of another algorithm or network; the message names both.
        """
        found = store.newest()
        if found is None:
            return ""
        path, checkpoint = found
        check_fits(path, checkpoint, self.capture())
        self._load(path, checkpoint)
        if checkpoint.config_digest != self._config_digest:
            _log.warning("settings of agent or environment changed since the checkpoint", path=str(path))
        return self._described(path, checkpoint)

    def _described(self, path: Path, checkpoint: Checkpoint) -> str:
        counters = self._counters
        where = f"{path.stem}: {counters.learner_steps:,} gradient steps, {counters.env_steps:,} agent decisions"
        lost = ["batches that were ready and not trained on"]
        if not fits_devices(checkpoint.rng):
            lost.append("random generators of the GPUs, whose number is another")
        before, now = checkpoint.written_by, self._written_by
        changed = [
            f"{name} {before[name]} then, {now.get(name)} now" for name in before if before[name] != now.get(name)
        ]
        with_what = f", with {'; '.join(changed)}" if changed else ""
        return f"{where}; {_RESTORED}{with_what}; not restored: {', '.join(lost)}"

    def _load(self, path: Path, checkpoint: Checkpoint) -> None:
        try:
            self._agent.load_state_dict(checkpoint.agent)
        except (InvalidArgument, KeyError, RuntimeError, ValueError) as error:
            raise FatalError(f"{path} does not fit this run's agent: {error}") from error
        self._counters.load_state(checkpoint.counters)
        load_rng_state(checkpoint.rng)
