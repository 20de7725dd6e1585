"""What a series of faults did: counted, timed, and written as a row of benchmarks/results/faults.json."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.waiting import wait_until

Row = dict[str, object]


@dataclass
class FaultReport:
    """The history of one kind of fault, compared with what must have come of it.

    Attributes:
        name: What was done to which process.
        faults: How often.
        acknowledged: Things that a server had said it stored.
        acknowledged_lost: Those of them that were not there at the end. A promise broken if more than 0.
        duplicates: Things that were there twice.
        altered: Things that were there with other contents than were sent.
        unknown: Things that were there though nobody had sent them.
        missed: Aims that were not reached.
        recovery_s: Seconds from each fault to the first thing that a client achieved after it.
        figures: What else was counted, by name.
    """

    name: str
    faults: int = 0
    acknowledged: int = 0
    acknowledged_lost: int = 0
    duplicates: int = 0
    altered: int = 0
    unknown: int = 0
    missed: int = 0
    recovery_s: list[float] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled, altered or invented, and no aim was missed."""
        return not (self.acknowledged_lost or self.duplicates or self.altered or self.unknown or self.missed)

    def time_recovery(self, began_s: float, has_recovered: Callable[[], object], what: str) -> None:
        """Count a fault, and wait until a client gets on again.

        Args:
            began_s: When the process was killed or woken, by `time.monotonic`.
            has_recovered: Asked until it is true.
            what: What is waited for, for the message.
        """
        wait_until(has_recovered, what, longest_pause_s=0.02)
        self.faults += 1
        self.recovery_s.append(time.monotonic() - began_s)

    def row(self) -> Row:
        """Return the row of the results."""
        times = [round(value, 2) for value in sorted(self.recovery_s)]
        return {
            "name": self.name,
            "kills": self.faults,
            "acknowledged": self.acknowledged,
            "acknowledged_lost": self.acknowledged_lost,
            "duplicates": self.duplicates,
            "altered": self.altered,
            "unknown": self.unknown,
            "median_recovery_s": round(statistics.median(times), 2) if times else None,
            "worst_recovery_s": times[-1] if times else None,
            "spread": [times[0], times[-1]] if times else None,
            **({"missed": self.missed} if self.missed else {}),
            **self.figures,
        }


def pause(seconds: float) -> None:
    """Let the load continue for a moment; the moment is what a schedule of faults consists of."""
    threading.Event().wait(seconds)


def check(report: FaultReport, faults: int) -> None:
    """Fail unless there were so many faults, something was acknowledged, and no promise was broken."""
    assert report.is_clean, report
    assert report.faults == faults
    assert report.acknowledged > 0
