"""Progress of training: rates, waiting time and the agent's metrics, for the log, the status and Prometheus."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

import structlog
import torch
from torch import Tensor

from tidemill.learner.status import POLICY_LAG, LearnerState, LearnerStatus, SourceStatus
from tidemill.replay.sampling.shard_report import ShardReport
from tidemill.services.learner.status import metrics
from tidemill.services.learner.status.control import Control
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.divergence import Diverged, lost

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
        self.on_update: Callable[[int, Mapping[str, float]], None] = lambda *_: None
        """Called with the updates and all metrics whenever new ones were read; must not block."""
        self.state = LearnerState.STARTING
        self.steps_per_s = 0.0
        self.wait_fraction = 0.0
        self.policy_lag = 0.0
        self.table_items = 0
        self.metrics: Mapping[str, float] = {}
        self._counters, self._clock, self._log_every_s = counters, clock, log_every_s
        self._waited_s, self._is_over = 0.0, False
        self._newest: dict[str, Tensor] = {}
        self._unread_steps = 0
        self.restart()
        metrics.STALLED_SECONDS.set_function(self._stalled_s)

    def restart(self) -> None:
        """Measure from now on; once more when the counters were restored."""
        now = self._clock()
        self._marks = deque([(now, self._counters.learner_steps, self._waited_s)])
        self._next_tick, self._next_log, self._last_sign = now + _TICK_S, now + self._log_every_s, now
        metrics.ENV_STEPS.set(self._counters.env_steps or math.nan)  # until they are restored, 0 would be wrong

    def record_step(self, seconds: float, newest: Mapping[str, Tensor]) -> None:
        """Count an update and its duration; `newest` are its metrics, still on the device."""
        self.state = LearnerState.TRAINING
        self._newest.update(newest)  # an update need not report every metric
        self._unread_steps += 1
        metrics.UPDATE_SECONDS.observe(seconds)
        _UPDATE.inc(seconds)
        self.tick()

    def record_wait(self, seconds: float, *, got_batch: bool) -> None:
        """Count time the training thread waited for a batch; `got_batch` says whether one came."""
        if not got_batch:
            self.state = LearnerState.WAITING
        self._waited_s += seconds
        metrics.WAIT_SECONDS.labels("data").inc(seconds)
        self.tick()

    def record_rank_wait(self, seconds: float) -> None:
        """Count time the training thread waited for the votes of the other ranks."""
        self._waited_s += seconds
        metrics.WAIT_SECONDS.labels("ranks").inc(seconds)
        self.tick()

    def record_pause(self, seconds: float) -> None:
        """Count time in which a caller had paused training."""
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

    def check(self) -> None:
        """Raise Diverged if a loss was not finite when the metrics were last read."""
        if said := lost(self.metrics):
            raise Diverged(said)

    def finish(self) -> None:
        """Read the metrics of the last updates, when there will be no more."""
        now = self._clock()
        self._update_rates(now)
        self._read_metrics(now)
        self._is_over = True

    def _stalled_s(self) -> float:
        """Return the time since the newest update, for the thread that is asked for metrics: training may hang."""
        return 0.0 if self._is_over else max(self._clock() - self._last_sign, 0.0)

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
            own = {"env_steps": float(self._counters.env_steps), "steps_per_s": self.steps_per_s}
            own["wait_fraction"] = self.wait_fraction
            own[POLICY_LAG] = self.policy_lag
            self.on_update(self._counters.learner_steps, {**self.metrics, **own})
        metrics.STEPS.inc(self._unread_steps)
        self._unread_steps = 0
        metrics.BLOCKED_RATIO.set(self.wait_fraction)
        metrics.ENV_STEPS.set(self._counters.env_steps)
        metrics.PARAMS_VERSION.set(self._counters.version)
        metrics.TABLE_ITEMS.set(self.table_items)

    def _write_log(self) -> None:
        numbers = {name: float(f"{value:.4g}") for name, value in self.metrics.items()}
        if broken := [name for name, value in numbers.items() if not math.isfinite(value)]:
            _log.warning("metrics are not finite", names=broken)
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
    """Return the values that are still on the device, by one copy, which waits for all earlier updates."""
    if not scalars:
        return {}
    values = torch.stack([value.detach().float() for value in scalars.values()]).tolist()
    return dict(zip(scalars, values, strict=True))


class StatusReporter:
    """Written by the main thread as the learner starts and restores; read by the server's thread."""

    def __init__(self, control: Control, counters: Counters, progress: Progress, *, max_learner_steps: int) -> None:
        self._control, self._counters, self._progress = control, counters, progress
        self._max_learner_steps = max_learner_steps
        self._started = time.monotonic()
        self.restored = ""
        """Description of the restored state."""
        self.shards: Callable[[], tuple[ShardReport, ...]] = tuple
        """Reports on the replay shards."""
        self.sources: Callable[[], tuple[SourceStatus, ...]] = tuple
        """Reports on the sources of batches besides the run's own table."""
        self.checkpoint_steps: Callable[[], int] = lambda: 0
        """Updates in the newest checkpoint."""
        self.checkpoint_error: Callable[[], str] = str
        """Reason the newest checkpoint failed; empty if it succeeded."""

    def read(self) -> LearnerStatus:
        """Return the status at this moment."""
        progress, counters = self._progress, self._counters
        stopping = self._control.stop_reason is not None
        return LearnerStatus(
            state=LearnerState.STOPPING if stopping else progress.state,
            learner_steps=counters.learner_steps,
            env_steps=counters.env_steps,
            steps_per_s=progress.steps_per_s,
            wait_fraction=progress.wait_fraction,
            params_version=counters.version,
            fencing_token=counters.fencing_token,
            checkpoint_steps=self.checkpoint_steps(),
            table_items=progress.table_items,
            metrics={**progress.metrics, POLICY_LAG: progress.policy_lag},
            uptime_s=time.monotonic() - self._started,
            max_learner_steps=self._max_learner_steps,
            restored=self.restored,
            checkpoint_error=self.checkpoint_error(),
            shards=self.shards(),
            sources=self.sources(),
        )
