"""Traffic of many actors against a real replay service and parameter server: which is full first, and at what rate.

What one real actor sends is recorded once, with its times. It is then sent by 1 to 1,000 replayed actors at the pace of
the recording, each with its own streams and connections, while a sampler draws and publishes at the rate of a
learner (traffic_sender.py). Senders and sampler share the cores with the services, so a small machine is full before
they are. Therefore the processor time of each service is given too, what 1,000 more steps cost it, and the rate at
which that makes a whole core: a service is one process whose work is nearly all in one thread.

    python -m benchmarks.traffic [--actors 1 4 8 16 32 64 256 1000] [--seconds 12] [--sent]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.actor import prepare
from benchmarks.learner_feed import START_S, process
from benchmarks.processes import processor_s
from benchmarks.rows import Row, row, write
from benchmarks.traffic_recorder import record
from benchmarks.traffic_recording import Recording
from benchmarks.traffic_sender import CONNECTIONS_PER_S, Figures, peak_mib
from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.replay.client import ReplayClient
from tidemill.services.learner.data.table import batches_per_sample

_ACTORS = (1, 4, 8, 16, 32, 64, 256, 1000)
_SERVICES = ("replay service", "parameter server")
_HEAD = """| Actors | Offered, steps/s | Accepted | Sampled, items/s | Acknowledged, ms: 50, 99 % | Versions missed \
| Cores: replay | parameters | senders | sampler | MiB: replay | parameters |
|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""
_WARM_UP_S = 4.0
_CONNECT_S = 2.0
_END_S = 60.0
_FULL = 0.95
"""Part of what is offered that is stored by services that keep up."""
_WHOLE_CORE = 0.9
"""Share of a core of a process that is full: a service's work is that of one thread, nearly."""


@dataclass(frozen=True)
class Run:
    """A run whose traffic is replayed."""

    path: str
    updates_per_s: float
    """Of its learner."""

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return from_document(RunConfig, read_document(Path(self.path)))


@dataclass(frozen=True)
class Outcome:
    """Figures of one number of actors."""

    actors: int
    seconds: float
    offered: float
    """Steps per second that the actors of the recording make."""
    figures: dict[str, Figures]
    """Of the `senders` and the `learner`."""
    shares: dict[str, float]
    """Seconds of a core per second of each service and of the `senders` and the `learner`, by name."""
    peaks_mib: dict[str, float]
    """Largest resident memory of the same."""

    @property
    def accepted(self) -> float:
        """Steps per second that were acknowledged."""
        return self.figures["senders"].decisions / self.seconds

    @property
    def sampled(self) -> float:
        """Items per second that were sampled."""
        return self.figures["learner"].sampled / self.seconds


def main() -> None:
    """Measure and print; write benchmarks/results/traffic.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    runs = ["configs/quickstart.yaml", "configs/pong_dqn.yaml"]
    parser.add_argument("--config", nargs="+", default=runs, help="runs whose actors are recorded")
    what = "updates/s of each run's learner: about those of a core for the first, of a GPU for the second"
    parser.add_argument("--updates-per-s", nargs="+", type=float, default=[400.0, 300.0], help=what)
    parser.add_argument("--actors", nargs="+", type=int, default=_ACTORS, help="numbers of actors")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a recording and of one measurement")
    parser.add_argument("--senders", type=int, default=2, help="processes of the actors")
    parser.add_argument("--sent", action="store_true", help="send versions as to other machines, not as files of this")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for path, updates_per_s in zip(arguments.config, arguments.updates_per_s, strict=True):
        run = Run(path, updates_per_s)
        rows += _rows(run, list(_outcomes(run, arguments)))
    write("traffic", rows)


def _outcomes(run: Run, a: argparse.Namespace) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        recording, path = record(run.config, run.path, a.seconds), Path(folder) / "recording"
        recording.save(path)
        print(f"\n{run.config.env.id}: one actor makes {recording.steps_per_s:,.0f} env steps/s\n\n{_HEAD}", flush=True)
        for actors in a.actors:
            outcome = _outcome(run, recording, path, actors, a)
            yield outcome
            print(_line(outcome), flush=True)


def _line(outcome: Outcome) -> str:
    """Return the main figures as a row of a table in Markdown."""
    senders = outcome.figures["senders"]
    versions = senders.missed + len(senders.versions_ms)
    p50_ms, p99_ms = np.percentile(senders.acknowledged_ms or [np.nan], [50, 99])
    cells = [
        f"{outcome.actors:,}",
        f"{outcome.offered:,.0f}",
        f"{outcome.accepted:,.0f}",
        f"{outcome.sampled:,.0f}",
        f"{p50_ms:,.0f}, {p99_ms:,.0f}",
        f"{senders.missed / versions:.0%}" if versions else "none came",
        *(f"{share:.2f}" for share in outcome.shares.values()),
        *(f"{outcome.peaks_mib[name]:,.0f}" for name in _SERVICES),
    ]
    return f"| {' | '.join(cells)} |"


def _outcome(run: Run, recording: Recording, path: Path, actors: int, a: argparse.Namespace) -> Outcome:
    config = run.config
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-"))
        replay, params = f"unix://{folder}/r", f"unix://{folder}/p"
        options = ["--paramserver.server.address", params, "--run.root", folder]
        services = {
            "replay service": stack.enter_context(
                process(None, "tidemill.services.replay", run.path, "--replay.server.address", replay)
            ),
            "parameter server": stack.enter_context(process(None, "tidemill.services.paramserver", run.path, *options)),
        }
        client = stack.enter_context(ReplayClient(replay))
        client.wait_for_ready(START_S)
        prepare(config, client, params)
        places = ["--replay", replay, "--params", params]
        own = ["--recording", str(path), "--step", str(a.senders), "--count", str(actors)]
        own += [] if a.sent else ["--from-file"]
        senders = [_started([*places, "actors", *own, "--first", str(i)]) for i in range(min(a.senders, actors))]
        learner = _started([*places, "learner", *_learner(run, client)])
        from_s = _begin([*senders, learner], actors, a.seconds)
        time.sleep(from_s - time.monotonic())
        before = {name: processor_s(pid) for name, pid in services.items()}
        time.sleep(from_s + a.seconds - time.monotonic())
        shares = {name: (processor_s(pid) - before[name]) / a.seconds for name, pid in services.items()}
        peaks = {name: peak_mib(pid) for name, pid in services.items()}
        figures = {"senders": _sum([_figures(sender) for sender in senders]), "learner": _figures(learner)}
    shares |= {name: each.processor_s / a.seconds for name, each in figures.items()}
    peaks |= {name: each.peak_mib for name, each in figures.items()}
    return Outcome(actors, a.seconds, actors * recording.steps_per_s, figures, shares, peaks)


def _learner(run: Run, client: ReplayClient) -> list[str]:
    """Return the options of the sampler: calls, mirror and versions of the run's learner."""
    config, table = run.config, client.describe_table(run.config.table.name).config
    batch = config.agent.batch_size
    batches = batches_per_sample(config.table, config.learner, table.signature, batch, table.max_item_steps)
    chunks_per_item = -(-table.max_item_steps // config.table.chunk_length) + 1
    slots = table.max_items // config.table.chunk_length + 8 * batches * batch * chunks_per_item
    publish_s = max(config.learner.publish_every / run.updates_per_s, 0.2)  # as `learner.publish_least_s` on a GPU
    options = ["--table", table.name, "--items", str(batches * batch), "--publish-every-s", str(publish_s)]
    calls_per_s, slot_steps = run.updates_per_s / batches, config.table.chunk_length
    options += ["--calls-per-s", str(calls_per_s), "--mirror", str(slots), str(slot_steps)]
    return [*options, "--sets-priorities"] if config.table.sampler == "prioritized" else options


def _started(words: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.traffic_sender", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _begin(clients: Sequence[subprocess.Popen[str]], actors: int, seconds: float) -> float:
    """Tell processes that are ready when to begin; return when figures begin."""
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()
    begin_s = time.monotonic() + _CONNECT_S + actors / CONNECTIONS_PER_S
    from_s = begin_s + _WARM_UP_S
    for client in clients:
        assert client.stdin is not None
        print(begin_s, from_s, from_s + seconds, file=client.stdin, flush=True)
    return from_s


def _figures(client: subprocess.Popen[str]) -> Figures:
    said, _ = client.communicate(timeout=_END_S)
    if client.returncode:
        raise SystemExit("a client process ended early; the reason is above")
    return Figures(**json.loads(said))


def _sum(parts: Sequence[Figures]) -> Figures:
    """Return the figures of several processes as those of one."""
    return Figures(
        processor_s=sum(part.processor_s for part in parts),
        peak_mib=sum(part.peak_mib for part in parts),
        decisions=sum(part.decisions for part in parts),
        acknowledged_ms=list(itertools.chain.from_iterable(part.acknowledged_ms for part in parts)),
        versions_ms=list(itertools.chain.from_iterable(part.versions_ms for part in parts)),
        missed=sum(part.missed for part in parts),
        sampled=sum(part.sampled for part in parts),
    )


def _rows(run: Run, outcomes: Sequence[Outcome]) -> Iterator[Row]:
    for outcome in outcomes:
        yield from _rows_of(run, outcome)
    env = run.config.env.id
    kept_up = [outcome for outcome in outcomes if outcome.accepted >= _FULL * outcome.offered]
    for name in _SERVICES if len(kept_up) > 1 else ():
        first, last = kept_up[0], kept_up[-1]
        cost_s = (last.shares[name] - first.shares[name]) / (last.accepted - first.accepted)
        what = f"processor time for 1,000 more env steps, {name}, {env}, from {first.actors} to {last.actors} actors"
        yield row(what, "ms", [1e6 * cost_s])
        at_full = last.accepted + (1 - last.shares[name]) / cost_s
        yield row(f"env steps/s at which that is a whole core, {name}, {env}", "1/s", [at_full])
    for outcome in outcomes:
        if outcome.accepted < _FULL * outcome.offered:
            most = max(each.accepted for each in outcomes)
            yield row(f"most env steps/s accepted, {env}; {outcome.actors} actors fill {_full(outcome)}", "1/s", [most])
            return


def _full(outcome: Outcome) -> str:
    """Return the name of the part that is full: a service that takes a whole core, or the cores that all share."""
    name = max(outcome.shares, key=lambda name: outcome.shares[name])
    return f"the {name}" if outcome.shares[name] > _WHOLE_CORE else f"the {os.cpu_count()} cores, most of it the {name}"


def _rows_of(run: Run, outcome: Outcome) -> Iterator[Row]:
    senders = outcome.figures["senders"]
    case = f"{run.config.env.id}, {outcome.actors} actors"
    yield row(f"env steps/s accepted, {case}, against offered", "1/s", [outcome.accepted], [outcome.offered])
    wanted = run.updates_per_s * run.config.agent.batch_size
    yield row(f"items/s sampled, {case}, against the learner's", "1/s", [outcome.sampled], [wanted])
    waits = {"append to acknowledgement": senders.acknowledged_ms, "version stored to arrival": senders.versions_ms}
    for name, waits_ms in waits.items():
        for percent in (50, 99) if waits_ms else ():
            yield row(f"{name}, {case}, {percent} % within", "ms", [float(np.percentile(waits_ms, percent))])
    came = len(senders.versions_ms)
    yield row(f"versions that actors missed, {case}, against all", "1", [senders.missed], [came + senders.missed or 1])
    for name, share in outcome.shares.items():
        yield row(f"seconds of a core per second, {name}, {case}", "1", [share])
        yield row(f"largest memory, {name}, {case}", "MiB", [outcome.peaks_mib[name]])


if __name__ == "__main__":
    main()
