"""A run whose network fails between any two of its processes, and a run whose processes are restarted in turn."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.fault_report import FaultReport, pause
from tests.chaos.network import FAULTS
from tests.chaos.separate import LINKS, SERVICES, SeparateRun

_LONGEST_PAUSE_S = 2.0


def harm_links(folder: Path, times: int, seed: int, longest_s: float) -> list[FaultReport]:
    """Harm each link of a run so many times, in random order and ways; return what became of it for each.

    What the two processes do together continues each time. At the end the actor flushes and stops, and the table has
    every step that it made, once and as the environment gave it: that is what `acknowledged` counts. Versions have
    risen only, for the evaluator as well.
    """
    reports = {link: FaultReport(f"network of a run: {about}") for link, about in LINKS.items()}
    rng = random.Random(seed)
    order = [(link, kind) for link in LINKS for kind in _kinds(rng, times)]
    rng.shuffle(order)
    with ExitStack() as stack:
        run = SeparateRun(folder, stack)
        for link, kind in order:
            pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
            FAULTS[kind]([run.proxies[link]], rng, longest_s)
            began_s, before = time.monotonic(), run.reached(link)
            reports[link].time_recovery(began_s, lambda k=link, b=before: run.reached(k) > b, f"{link} after {kind}")  # type: ignore[misc]
        run.compare(list(reports.values()))
    return list(reports.values())


def _kinds(rng: random.Random, times: int) -> list[str]:
    """Return so many faults, each kind as often as possible."""
    return [kind for _ in range(0, times, len(FAULTS)) for kind in rng.sample(sorted(FAULTS), len(FAULTS))][:times]


def restart_in_turn(folder: Path, times: int, seed: int) -> list[FaultReport]:
    """Restart every process of a run one after the other, so many times over, as an update of each does.

    Each ends with 0, and all that the processes do together continues before the next one's turn. Recoveries begin at
    the SIGTERM. What is compared at the end is as of `harm_links`.
    """
    reports = {name: FaultReport(f"rolling restart: {name}") for name in SERVICES}
    rng = random.Random(seed)
    with ExitStack() as stack:
        run = SeparateRun(folder, stack)
        for name in SERVICES * times:
            pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
            before = {link: run.reached(link) for link in LINKS}
            began_s = time.monotonic()
            run.restart(name)
            reports[name].time_recovery(
                began_s,
                lambda b=before: all(run.reached(link) > b[link] for link in LINKS),  # type: ignore[misc]
                f"the run continues after its {name} was restarted",
            )
        run.compare(list(reports.values()))
    return list(reports.values())
