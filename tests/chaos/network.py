"""A network that cuts, delays, loses and swallows what servers and their clients send each other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from tests.chaos import params, replay
from tests.chaos.fault_report import FaultReport, pause
from tests.support import replay_service
from tests.support.params_service import server_process
from tests.support.proxy import Proxy
from tests.support.replay_log import RANKED, load, options
from tests.support.waiting import wait_until
from tidemill.replay.client import ReplayClient

Fault = Callable[[Sequence[Proxy], random.Random, float], None]
"""Causes a fault of some links for at most so many seconds; returns when the network is whole again."""

_LONGEST_PAUSE_S = 1.0
_MOST_BYTES = 30_000
"""What still passes at most before a cut in mid-message: a seventh of what a publisher sends."""
_WATCHERS = 2


def _cut(proxies: Sequence[Proxy], _rng: random.Random, _longest_s: float) -> None:
    for proxy in proxies:
        proxy.cut()


def _cut_in_mid_message(proxies: Sequence[Proxy], rng: random.Random, _longest_s: float) -> None:
    for proxy in proxies:
        proxy.cut_after(rng.randint(1, _MOST_BYTES))
    wait_until(lambda: not any(proxy.is_about_to_cut for proxy in proxies), "the bytes pass", longest_pause_s=0.01)


def _lasting(harm: Callable[[Proxy, random.Random], AbstractContextManager[None]]) -> Fault:
    def fault(proxies: Sequence[Proxy], rng: random.Random, longest_s: float) -> None:
        with ExitStack() as stack:
            for proxy in proxies:
                stack.enter_context(harm(proxy, rng))
            pause(rng.uniform(0.0, longest_s))

    return fault


FAULTS: dict[str, Fault] = {
    "cut": _cut,
    "cut in mid-message": _cut_in_mid_message,
    "acknowledgements lost": _lasting(lambda proxy, _: proxy.without_answers()),
    "delayed": _lasting(lambda proxy, rng: proxy.delayed(rng.uniform(0.01, 0.2))),
    "black hole": _lasting(lambda proxy, _: proxy.black_hole()),
    "refused": _lasting(lambda proxy, _: proxy.refusing()),
}


def harm_replay(folder: Path, kind: str, times: int, seed: int, longest_s: float) -> FaultReport:
    """Cause a fault so many times between actors and replay, learner and replay, or both.

    The writers repeat what was not acknowledged, so all that they sent must be there once, and nothing else; and the
    learner samples and ranks again.
    """
    report, rng = FaultReport(f"network of the replay server: {kind}"), random.Random(f"{seed} {kind}")
    for first in range(0, times, replay.FAULTS_PER_ROUND):
        _harm_one_replay(folder / str(first), kind, min(replay.FAULTS_PER_ROUND, times - first), report, rng, longest_s)
    return report


def _harm_one_replay(
    folder: Path, kind: str, times: int, report: FaultReport, rng: random.Random, longest_s: float
) -> None:
    with ExitStack() as stack:
        process = replay_service.server_process("127.0.0.1:0", *options(folder, segment_mib=1))
        server = stack.enter_context(process)
        stack.enter_context(ReplayClient(server.address)).create_table(RANKED)
        actors, learner = (stack.enter_context(Proxy(server.address)) for _ in range(2))
        writing = stack.enter_context(load(actors.address, replay.WRITERS))
        sampling = stack.enter_context(replay.sampling(learner.address))
        for links in _links(rng, times, [actors], [learner]):
            FAULTS[kind](links, rng, longest_s)
            began_s, stored, ranked = time.monotonic(), writing.acknowledged, sampling.ranked
            report.time_recovery(
                began_s,
                lambda s=stored, r=ranked: writing.acknowledged > s and sampling.ranked > r,  # type: ignore[misc]
                "the writers and the learner continue",
            )
        writing.stop()
        replay.compare(report, server.address, writing)


def harm_params(folder: Path, kind: str, times: int, seed: int, longest_s: float) -> FaultReport:
    """Cause a fault so many times between the learner, those who watch, or both, and the parameter server.

    What was acknowledged is there with its bytes, and to those who watch versions only grow.
    """
    report, rng = FaultReport(f"network of the parameter server: {kind}"), random.Random(f"{seed} {kind}")
    with ExitStack() as stack:
        server = stack.enter_context(server_process(folder))
        learner, *others = (stack.enter_context(Proxy(server.address)) for _ in range(1 + _WATCHERS))
        publisher = params.Publisher(learner.address, rng.randbytes(params.BLOB_BYTES))
        watchers = [params.Watcher(proxy.address, reads_files=proxy is others[0]) for proxy in others]
        with params.running(publisher, *watchers):
            for links in _links(rng, times, [learner], others):
                FAULTS[kind](links, rng, longest_s)
                began_s, before = time.monotonic(), len(publisher.acknowledged)
                report.time_recovery(began_s, lambda b=before: len(publisher.acknowledged) > b, "it is published")  # type: ignore[misc]
                newest = max(publisher.acknowledged)
                wait_until(lambda n=newest: all(each.newest >= n for each in watchers), "it is seen")  # type: ignore[misc]
        params.compare(report, server, publisher, watchers)
    return report


def _links(rng: random.Random, times: int, *groups: list[Proxy]) -> Iterator[list[Proxy]]:
    """Yield so many times, after a moment of load, the links to harm: one group's, or all."""
    for _ in range(times):
        pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
        yield rng.choice([*groups, [proxy for group in groups for proxy in group]])
