"""A run whose processes see the time of day jump by an hour, as at a wrong date that is set right.

libfaketime answers them when they ask for the time of day; their monotonic clocks continue, as on a machine whose date
is set. Nothing may be lost or doubled by it, and what the processes do together continues.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.fault_report import FaultReport, pause
from tests.chaos.separate import LINKS, SERVICES, SeparateRun

_JUMP_S = 3600
_LONGEST_PAUSE_S = 2.0
_SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds)\n"
"""Python sleeps until a monotonic time, which libfaketime 0.9.10 takes for a time of day and refuses with EINVAL."""


def libfaketime() -> Path | None:
    """Return the library of the package `faketime`; None if it is not installed."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def jump_clocks(folder: Path, times: int, seed: int, whose: Sequence[str] = (*SERVICES, "all")) -> list[FaultReport]:
    """Let the clock of each process of a run, and with `all` of all at once, jump so many times forward and back.

    A jump back follows each jump forward at some distance, so that clocks differ between the processes meanwhile. What
    is compared at the end is as of `harm_links`.

    Raises:
        FileNotFoundError: libfaketime is not installed.
    """
    library = libfaketime()
    if library is None:
        raise FileNotFoundError("libfaketime: install the package `faketime`")
    reports = {name: FaultReport(f"time of day jumps by an hour: {name}") for name in whose}
    rng, clocks = random.Random(seed), _Clocks(folder, library)
    with ExitStack() as stack:
        run = SeparateRun(folder, stack, clocks.variables)
        for name, seconds in _order(rng, times, whose):
            pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
            before = {link: run.reached(link) for link in LINKS}
            began_s = time.monotonic()
            clocks.jump(name, seconds)
            reports[name].time_recovery(
                began_s,
                lambda b=before: all(run.reached(link) > b[link] for link in LINKS),  # type: ignore[misc]
                f"the run continues after the clock of {name} has jumped by {seconds} s",
            )
        run.compare(list(reports.values()))
    return list(reports.values())


def _order(rng: random.Random, times: int, whose: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Return jumps in random order, of each kind as many; one that is back comes after one that is forward."""
    names = [name for name in whose for _ in range(2 * times)]
    rng.shuffle(names)
    is_forward = dict.fromkeys(names, False)
    for name in names:
        is_forward[name] = not is_forward[name]
        yield name, _JUMP_S if is_forward[name] else -_JUMP_S


class _Clocks:
    """How far the time of day of each process is ahead, in files that libfaketime reads again each time."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._folder, self._library = folder, library
        self._ahead_s = dict.fromkeys(SERVICES, 0)
        (folder / "sleep").mkdir()
        (folder / "sleep" / "sitecustomize.py").write_text(_SLEEP)
        for name in SERVICES:
            self._write(name)

    def variables(self, name: str) -> Mapping[str, str]:
        """Return the environment variables of a process whose clock can jump."""
        return {
            "LD_PRELOAD": str(self._library),
            "PYTHONPATH": str(self._folder / "sleep"),
            "FAKETIME_TIMESTAMP_FILE": str(self._file(name)),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its former name
        }

    def jump(self, name: str, seconds: int) -> None:
        """Let the clock of a process jump, or those of `all`."""
        for each in SERVICES if name == "all" else (name,):
            self._ahead_s[each] += seconds
            self._write(each)

    def _write(self, name: str) -> None:
        text = f"{self._ahead_s[name]:+d}\n"
        new = self._file(name).with_suffix(".new")
        new.write_text(text)
        new.replace(self._file(name))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"
