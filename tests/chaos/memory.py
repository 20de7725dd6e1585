"""What each process of a run holds in memory over its life, and how fast that grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.processes import resident_mib

_EVERY_S = 2.0


@dataclass
class Life:
    """One process, from its first sample to its last.

    Attributes:
        seconds: When each sample was taken, since the record began.
        mib: Resident memory then.
    """

    seconds: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def after(self, warm_up_s: float) -> Life:
        """Return the readings without so many seconds of their beginning."""
        first = int(np.searchsorted(self.seconds, self.seconds[0] + warm_up_s))
        return Life(self.seconds[first:], self.mib[first:])

    @property
    def length_s(self) -> float:
        """Seconds between the first sample and the last."""
        return self.seconds[-1] - self.seconds[0] if self.seconds else 0.0


def slope_mib_per_h(lives: Sequence[Life]) -> float | None:
    """Return the growth of memory: the slope that all lives share by least squares, each with a separate level.

    None if there is nothing to fit.
    """
    lives = [life for life in lives if len(life.seconds) > 1]
    spread = sum(float(np.square(np.subtract(life.seconds, np.mean(life.seconds))).sum()) for life in lives)
    if not spread:
        return None
    together = sum(float(np.subtract(life.seconds, np.mean(life.seconds)) @ np.asarray(life.mib)) for life in lives)
    return together / spread * 3600.0


class MemoryRecord:
    """Polls the memory of processes that come and go every few seconds, in a separate thread."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """Begin.

        Args:
            processes: Returns the process ids of those that live, by their kinds.
        """
        self._processes, self._ended, self._began_s = processes, threading.Event(), time.monotonic()
        self._lives: dict[str, dict[int, Life]] = {}
        self._thread = threading.Thread(target=self._record)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def figures(self, warm_up_s: float) -> dict[str, dict[str, object]]:
        """Return for each kind of process how many there were, what they held at most, and how that grew.

        Args:
            warm_up_s: What is left out of each life's beginning, in which a process fills its buffers.
        """
        return {kind: _figures(list(lives.values()), warm_up_s) for kind, lives in sorted(self._lives.items())}

    def _record(self) -> None:
        while not self._ended.wait(_EVERY_S):
            now_s = time.monotonic() - self._began_s
            for kind, pid in self._processes().items():
                if mib := resident_mib(pid):
                    life = self._lives.setdefault(kind, {}).setdefault(pid, Life())
                    life.seconds.append(now_s)
                    life.mib.append(mib)


def _figures(lives: Sequence[Life], warm_up_s: float) -> dict[str, object]:
    warm = [life for each in lives if (life := each.after(warm_up_s)).length_s > warm_up_s]
    longest = max(warm, key=lambda life: life.length_s, default=Life())
    slopes = {"slope_mib_per_h": slope_mib_per_h(warm), "longest_slope_mib_per_h": slope_mib_per_h([longest])}
    return {
        "lives": len(lives),
        "most_mib": round(max(max(life.mib) for life in lives), 1),
        "fitted_lives": len(warm),
        "fitted_min": round(sum(life.length_s for life in warm) / 60.0, 1),
        "longest_min": round(longest.length_s / 60.0, 1),
        **{name: None if slope is None else round(slope, 2) for name, slope in slopes.items()},
    }
