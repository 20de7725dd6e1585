"""How training goes: rates, waiting time and the agent's metrics, for the log, the status and Prometheus."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping

import structlog
import torch
from torch import Tensor

from tidemill.learner.status import LearnerState
from tidemill.services.learner import metrics
from tidemill.services.learner.counters import Counters

_WINDOW_S = 5.0  # rates are over this many newest seconds
_TICK_S = 1.0  # how often the device's metrics are read, which waits for the device

_UPDATE = metrics.STAGE_SECONDS.labels("update")

_log = structlog.get_logger()


class Progress:
    """Written by the training thread; the other threads read its attributes."""

    def __init__(self, counters: Counters, *, log_every_s: float, clock: Callable[[], float]) -> None:
        """Start to measure now.

        Args:
            counters: The learner's counters.
            log_every_s: Seconds between two lines in the log.
            clock: Monotonic time in seconds.
        """
        self.state = LearnerState.STARTING
        self.steps_per_s = 0.0
        self.wait_fraction = 0.0
        self.table_items = 0
        self.metrics: Mapping[str, float] = {}
        self._counters, self._clock, self._log_every_s = counters, clock, log_every_s
        self._waited_s = 0.0
        self._newest: dict[str, Tensor] = {}
        self._unread_steps = 0
        self.begin()

    def begin(self) -> None:
        """Measure from now on; once more when the counters were restored."""
        now = self._clock()
        self._marks = deque([(now, self._counters.learner_steps, self._waited_s)])
        self._next_tick, self._next_log, self._last_sign = now + _TICK_S, now + self._log_every_s, now

    def stepped(self, seconds: float, newest: Mapping[str, Tensor]) -> None:
        """Count a gradient step that took so long; `newest` are its metrics, still on the device."""
        self.state = LearnerState.TRAINING
        self._newest.update(newest)  # an update need not report every metric
        self._unread_steps += 1
        metrics.UPDATE_SECONDS.observe(seconds)
        _UPDATE.inc(seconds)
        self.tick()

    def waited(self, seconds: float, *, in_vain: bool) -> None:
        """Count time the training thread waited for a batch; `in_vain` says that none came."""
        if in_vain:
            self.state = LearnerState.WAITING
        self._waited_s += seconds
        metrics.WAIT_SECONDS.labels("data").inc(seconds)
        self.tick()

    def waited_for_ranks(self, seconds: float) -> None:
        """Count time the training thread waited for what the other ranks have to say."""
        self._waited_s += seconds
        metrics.WAIT_SECONDS.labels("ranks").inc(seconds)
        self.tick()

    def paused(self, seconds: float) -> None:
        """Count time in which no step was taken because a caller asked so."""
        self.state = LearnerState.PAUSED
        metrics.WAIT_SECONDS.labels("pause").inc(seconds)
        self.tick()

    def tick(self) -> None:
        """Bring rates and metrics up to date if it is time."""
        now = self._clock()
        if now < self._next_tick:
            return
        self._next_tick = now + _TICK_S
        self._update_rates(now)
        self._read_metrics(now)
        if now >= self._next_log:
            self._next_log = now + self._log_every_s
            self._write_log()

    def _update_rates(self, now: float) -> None:
        steps = self._counters.learner_steps
        self._marks.append((now, steps, self._waited_s))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _WINDOW_S:
            self._marks.popleft()
        since, steps_then, waited_then = self._marks[0]
        elapsed = max(now - since, 1e-9)
        self.steps_per_s = (steps - steps_then) / elapsed
        self.wait_fraction = min((self._waited_s - waited_then) / elapsed, 1.0)

    def _read_metrics(self, now: float) -> None:
        if self._unread_steps:
            self._last_sign = now
            self.metrics = _to_host(self._newest)
            for name, value in self.metrics.items():
                metrics.AGENT.labels(name).set(value)
        metrics.STEPS.inc(self._unread_steps)
        self._unread_steps = 0
        metrics.BLOCKED_RATIO.set(self.wait_fraction)
        metrics.STALLED_SECONDS.set(now - self._last_sign)
        metrics.ENV_STEPS.set(self._counters.env_steps)
        metrics.PARAMS_VERSION.set(self._counters.version)
        metrics.TABLE_ITEMS.set(self.table_items)

    def _write_log(self) -> None:
        numbers = {name: float(f"{value:.4g}") for name, value in self.metrics.items()}
        if broken := [name for name, value in numbers.items() if not math.isfinite(value)]:
            _log.warning("metrics are not finite: training has diverged", names=broken)
        _log.info(
            self.state.name.lower(),
            learner_steps=self._counters.learner_steps,
            env_steps=self._counters.env_steps,
            steps_per_s=round(self.steps_per_s, 1),
            wait_fraction=round(self.wait_fraction, 3),
            version=self._counters.version,
            **numbers,
        )


def _to_host(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Return what is still on the device, in one copy: that waits for all updates before it."""
    if not scalars:
        return {}
    values = torch.stack([value.detach().float() for value in scalars.values()]).tolist()
    return dict(zip(scalars, values, strict=True))
