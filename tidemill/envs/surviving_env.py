"""A batch of environments whose failures end neither the batch nor the run: each is restarted while the rest plays on.

How a stream stays true is up to whoever writes it. Of the step in which an environment fails nothing is known, so the
action before it is the episode's last: `VectorStep.is_cut` has the step before marked as truncated, and the row of this
step becomes the final observation, which was seen. Until the environment is back `VectorStep.is_absent` leaves its rows
out, or, with `waits`, the whole batch waits: for algorithms whose streams must advance together.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array, Bools
from tidemill.envs.actions import as_batch
from tidemill.envs.failures import Restarts
from tidemill.envs.interface import VectorStep
from tidemill.envs.parts import Part
from tidemill.errors import EnvFailed
from tidemill.types import EnvSpec

_POLL_S = 0.02
_IDLE_POLLS = 10  # few, as whoever steps has other work, and its steps are timed


class SurvivingEnv:
    """`VectorEnv` over parts; raises EnvFailed, which is final, for what fails more often than the policy allows."""

    def __init__(self, parts: Sequence[Part], restarts: Restarts, *, waits: bool, stop: threading.Event) -> None:
        """Put the parts side by side.

        Args:
            parts: The environments, in their order; closed with this.
            restarts: Decides when a unit is restarted; counts units in the order of the parts.
            waits: Whether a step waits until every environment is back.
            stop: Ends every wait.
        """
        self._parts, self._restarts, self._waits, self._stop = parts, restarts, waits, stop
        self._ranges: list[slice] = []  # environments of each part
        self._places: list[tuple[Part, int, slice]] = []  # of each unit: its part, its number there, its environments
        start = 0
        for part in parts:
            size = part.num_envs // part.units
            self._ranges.append(slice(start, start + part.num_envs))
            for unit in range(part.units):
                self._places.append((part, unit, slice(start + unit * size, start + (unit + 1) * size)))
            start += part.num_envs
        self.num_envs = start
        """Environments in the batch."""
        self._first_unit = np.cumsum([0, *(part.units for part in parts)])
        self._is_up = np.ones(len(self._places), np.bool_)
        self._is_starting = [False] * len(self._places)
        self._mask: Bools | None = None

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment."""
        return self._parts[0].spec

    @property
    def action_mask(self) -> Bools:
        """Which actions are legal at the newest observations, [N, A]; all of one that is down."""
        assert self._mask is not None, "the environments have no action masks"
        return self._mask

    def reset(self, seed: int) -> Array:
        """Reset every environment, environment i with seed + i unless one fails; see `VectorEnv.reset`."""
        self._restarts.begin(seed)
        self._is_up[:], self._is_starting = True, [False] * len(self._places)
        for part, envs in zip(self._parts, self._ranges, strict=True):
            with contextlib.suppress(EnvFailed):  # its process is gone, and the reset below starts another
                part.begin_reset(seed + envs.start, len(self._parts))
        rows = [self._reset(number, seed + places.start) for number, places in enumerate(self._ranges)]
        self._read_mask()
        return np.concatenate(rows)

    def _reset(self, number: int, seed: int) -> Array:
        part, first = self._parts[number], int(self._first_unit[number])
        while True:
            try:
                return part.reset(seed)
            except EnvFailed as error:
                if self._stop.is_set():
                    raise
                unit = first + (error.index or 0 if part.units > 1 else 0)
                self._restarts.failed(unit, error)
                while not self._restarts.is_due(unit):
                    if self._stop.wait(_POLL_S):
                        raise
                seed = self._restarts.next_seed(unit)

    def step(self, action: Array) -> VectorStep:
        """Act in every environment that is up, or reset it if it had ended; see `VectorEnv.step`."""
        action = as_batch(action, (self.num_envs, *self.spec.action_shape))
        was_down = None if self._is_up.all() else ~self._is_up
        for part, envs in zip(self._parts, self._ranges, strict=True):
            part.begin(action[envs])
        done = [part.finish() for part in self._parts]
        self._restarts.stepped(self._is_up)
        for (_, failures), first in zip(done, self._first_unit.tolist(), strict=False):
            for number, error in failures:
                self._is_up[first + number] = False
                if not self._stop.is_set():  # or it may only have needed longer than it was waited for
                    self._restarts.failed(first + number, error)
        step = done[0][0] if len(done) == 1 else _joined([each for each, _ in done])
        if was_down is None and self._is_up.all():
            self._read_mask()
            return step
        return self._with_restarts(step, was_down)

    def _with_restarts(self, step: VectorStep, was_down: Bools | None) -> VectorStep:
        """Restart what is due, and put first observations of what is back into a step."""
        self._revive(step)
        polls = 0
        while self._has_to_wait(polls) and not self._stop.wait(_POLL_S):
            self._revive(step)
            polls += 1
        self._read_mask()
        is_absent = None
        if was_down is not None:
            is_absent = np.zeros(self.num_envs, np.bool_)
            for unit in np.flatnonzero(was_down):
                is_absent[self._places[unit][2]] = True
        return replace(step, is_absent=is_absent)

    def _has_to_wait(self, polls: int) -> bool:
        """True if a step has to wait on after so many polls; where nothing is up, so that steps of nothing are few."""
        if self._waits:
            return not self._is_up.all()
        return not self._is_up.any() and polls < _IDLE_POLLS

    def _revive(self, step: VectorStep) -> None:
        if self._stop.is_set():
            return
        for unit in np.flatnonzero(~self._is_up).tolist():
            part, number, envs = self._places[unit]
            if not self._is_starting[unit] and not self._restarts.is_due(unit):
                continue
            try:
                if not self._is_starting[unit]:
                    part.restart(number, self._restarts.next_seed(unit))
                    self._is_starting[unit] = True
                rows = part.restarted(number)
            except EnvFailed as error:
                self._is_starting[unit] = False
                self._restarts.failed(unit, error)
                continue
            if rows is not None:
                self._is_up[unit], self._is_starting[unit] = True, False
                step.observation[envs], step.is_first[envs] = rows, True

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture of one environment; see `VectorEnv.render`."""
        for part, envs in zip(self._parts, self._ranges, strict=True):
            if envs.start <= env_index < envs.stop:
                return part.render(env_index - envs.start)
        return None

    def close(self) -> None:
        """Close every environment; closing twice does nothing."""
        for part in self._parts:
            part.begin_close()
        for part in self._parts:
            part.close()

    def _read_mask(self) -> None:
        if not self.spec.masks_actions:
            return
        masks = [mask for part in self._parts if (mask := part.action_mask) is not None]
        self._mask = masks[0] if len(masks) == 1 else np.concatenate(masks)
        if not self._is_up.all():
            self._mask = self._mask.copy()
            for unit in np.flatnonzero(~self._is_up):
                self._mask[self._places[unit][2]] = True


def _joined(steps: Sequence[VectorStep]) -> VectorStep:
    """Return the step of several parts, side by side."""
    episodes, start = [], 0
    for step in steps:
        episodes += [replace(each, env_index=each.env_index + start) for each in step.episodes]
        start += len(step.reward)
    is_cut = None
    if any(step.is_cut is not None for step in steps):
        nowhere = [np.zeros(len(step.reward), np.bool_) for step in steps]
        cuts = [none if step.is_cut is None else step.is_cut for step, none in zip(steps, nowhere, strict=True)]
        is_cut = np.concatenate(cuts)
    return VectorStep(
        observation=np.concatenate([step.observation for step in steps]),
        reward=np.concatenate([step.reward for step in steps]),
        terminated=np.concatenate([step.terminated for step in steps]),
        truncated=np.concatenate([step.truncated for step in steps]),
        is_first=np.concatenate([step.is_first for step in steps]),
        is_reset_step=np.concatenate([step.is_reset_step for step in steps]),
        episodes=tuple(episodes),
        is_cut=is_cut,
    )
