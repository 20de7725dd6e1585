"""Calls of every RPC with bytes that no good client sends, by the hundred thousand."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from tests.chaos.fault_report import FaultReport
from tests.chaos.fuzz_cases import KINDS, STORES_NOTHING, Case, cases
from tests.chaos.fuzz_door import MOST_STREAMS, MOST_TABLES, STORED_BYTES, Door
from tests.support.processes import resident_mib

_BATCH = 1_000
"""Calls of one kind to the same servers, which are then replaced."""
_AT_A_TIME = 50
_OVER_HTTP = 20
"""One call of so many goes through a connection."""
_SHARES = {"bombs": 1, "streams out of order": 2}
"""Batches of a kind in a round, if not 5: bombs are the dearest, and there are few orders."""
_ROUND = [kind for turn in range(5) for kind in KINDS if turn < _SHARES.get(kind, 5)]
"""The kinds in turns, so that a few thousand calls are of every kind."""
_MOST_GROWTH_MIB = 256
"""By which this process, its servers and what attacks them may grow after the first round."""

_Code = grpc.StatusCode
_REFUSALS = {_Code.INVALID_ARGUMENT, _Code.NOT_FOUND, _Code.FAILED_PRECONDITION, _Code.RESOURCE_EXHAUSTED}
_REFUSALS.add(_Code.DATA_LOSS)  # parameters that do not match their checksum
RIGHT = {*_REFUSALS, _Code.OK, _Code.ALREADY_EXISTS, _Code.UNIMPLEMENTED, _Code.DEADLINE_EXCEEDED}
"""A server never answers UNKNOWN or INTERNAL, and never hangs up."""


def fuzz(folder: Path, count: int, seed: int) -> Iterator[FaultReport]:
    """Make so many calls, or a few more; yield what came of each kind of them so far, after every round of all kinds.

    Every call ends with the right status. After each batch the servers answer good calls, they hold no more than their
    limits allow, and nothing is stored by calls of which none can be good. `unknown` counts wrong statuses, `altered`
    batches that left what they must not, and `missed` servers that were not well, or too large.
    """
    reports = {kind: FaultReport(f"fuzz: {kind}") for kind in KINDS}
    codes = {kind: Counter[str]() for kind in KINDS}
    seconds = dict.fromkeys(KINDS, 0.0)
    mib: list[float] = []
    numbers, left = itertools.count(), count
    while left > 0:
        for kind in _ROUND:
            size, number, began_s = min(_BATCH, left), next(numbers), time.monotonic()
            if size <= 0:
                break
            left -= size
            place = folder / str(number)
            asyncio.run(_batch(place, kind, f"{seed} {number}", size, reports[kind], codes[kind]))
            shutil.rmtree(place)
            seconds[kind] += time.monotonic() - began_s
        mib.append(resident_mib(os.getpid()))
        grown = mib[-1] - mib[0] > _MOST_GROWTH_MIB
        for kind, report in reports.items():
            report.missed += grown
            report.acknowledged = codes[kind][_Code.OK.name]
            report.figures = {
                "codes": dict(codes[kind].most_common()),
                "calls_per_s": round(report.faults / seconds[kind]) if seconds[kind] else None,
                "resident_mib": [round(mib[0]), round(mib[-1])],
            }
        yield from (report for report in reports.values() if report.faults)


async def _batch(folder: Path, kind: str, seed: str, count: int, report: FaultReport, codes: Counter[str]) -> None:
    async with Door(folder) as door:
        before = door.stored()
        made = cases(kind, count, seed, door.corpus)
        for first in range(0, count, _AT_A_TIME):
            part = list(itertools.islice(made, _AT_A_TIME))
            answers = await asyncio.gather(*(_answer(door, case, first + i) for i, case in enumerate(part)))
            for i, (case, code) in enumerate(zip(part, answers, strict=True)):
                codes[code.name] += 1
                if code not in (_REFUSALS if case.refused else RIGHT):
                    report.unknown += 1
                    _tell(kind, seed, first + i, case, code)
        report.faults += count
        if kind in STORES_NOTHING and door.stored() != before:
            report.altered += 1
            sys.stderr.write(f"batch {seed!r} of {kind} stored {door.stored()}\n")
        report.missed += not await is_well(door)


async def _answer(door: Door, case: Case, number: int) -> grpc.StatusCode:
    return await (door.call(case) if number % _OVER_HTTP else door.call_over_http(case))


async def is_well(door: Door) -> bool:
    """True if good calls are answered, and the limits are held."""
    replay, params = "/tidemill.replay.v1.ReplayService", "/tidemill.params.v1.ParamService"
    good: Sequence[Case] = (
        Case(f"{replay}/DescribeTable", (b"\x0a\x01t",), refused=True),
        Case(f"{params}/ListVersions", (b"",), refused=True),
        Case("/tidemill.learner.v1.LearnerService/GetStatus", (b"",), refused=True),
    )
    codes = [await door.call_over_http(case) for case in good]
    return (
        codes == [_Code.OK] * len(good)
        and await door.lets_others_play()
        and len(door.replay.tables) <= MOST_TABLES
        and door.replay.streams.count <= MOST_STREAMS
        and door.replay.budget.size_bytes + door.replay.budget.beside_bytes <= STORED_BYTES
        and all(table.size <= table.config.max_items for table in door.replay.tables)
    )


def _tell(kind: str, seed: str, number: int, case: Case, code: grpc.StatusCode) -> None:
    messages = [message[:200].hex() for message in case.messages]
    sys.stderr.write(f"call {number} of {kind}, seed {seed!r}: {case.path} {messages} answers {code.name}\n")


def case_of(kind: str, seed: str, number: int, door: Door) -> Case:
    """Return a call again that was named on the output."""
    rng = random.Random(seed)
    return [KINDS[kind](rng, door.corpus) for _ in range(number + 1)][-1]
