"""A partition as two machines see it: a server and its clients in two network namespaces, with a wire between them.

`python -m tests.chaos.partition FOLDER TIMES SEED KIND` runs in the clients' namespace and prints what came of it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import grpc

from tests.chaos import replay
from tests.chaos.fault_report import FaultReport, pause
from tests.support.launched import ROOT
from tests.support.replay_log import RANKED, load, options
from tests.support.replay_service import ServerProcess
from tests.support.waiting import WAIT_S, crowd, wait_until
from tidemill.replay.client import ReplayClient
from tidemill.rpc.channel import open_channel

KINDS = ("link down", "packets dropped")
NOTICED_WITHIN_S = 10.0 * crowd()
"""A dead connection is noticed after nine seconds; with gRPC's own limit for a ping it takes a minute."""
_CLIENTS, _SERVER = "10.77.0.1", "10.77.0.2"
_PORT = 7401
_LONGEST_PAUSE_S = 1.0
_LONGEST_HEALING_S = 5.0


@dataclass(frozen=True)
class Wire:
    """Two namespaces and what joins them."""

    clients: str
    server: str

    def part(self, kind: str) -> None:
        """Let nothing pass."""
        if kind == "link down":
            _run("ip", "-n", self.server, "link", "set", "wire", "down")
        else:
            for chain in ("INPUT", "OUTPUT"):
                _run(
                    *self.in_server,
                    "iptables",
                    "-I",
                    chain,
                    "!",
                    "-i" if chain == "INPUT" else "-o",
                    "lo",
                    "-j",
                    "DROP",
                )

    def heal(self, kind: str) -> None:
        """Let everything pass again."""
        if kind == "link down":
            _run("ip", "-n", self.server, "link", "set", "wire", "up")
        else:
            _run(*self.in_server, "iptables", "-F")

    @property
    def in_server(self) -> tuple[str, ...]:
        """The words before a command that runs in the server's namespace."""
        return ("ip", "netns", "exec", self.server)


def why_not() -> str:
    """Return why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} missing: install the packages `iproute2` and `iptables`"
    name = f"tidemill-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"the kernel makes no network namespace: {made.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return ""


@contextmanager
def wire() -> Iterator[Wire]:
    """Make two namespaces with a wire between them; all is gone afterwards."""
    joined = Wire(f"tidemill-{os.getpid()}-clients", f"tidemill-{os.getpid()}-server")
    try:
        for name in (joined.clients, joined.server):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        other_end = ("peer", "name", "wire", "netns", joined.server)
        _run("ip", "-n", joined.clients, "link", "add", "wire", "type", "veth", *other_end)
        for name, address in ((joined.clients, _CLIENTS), (joined.server, _SERVER)):
            _run("ip", "-n", name, "address", "add", f"{address}/30", "dev", "wire")
            _run("ip", "-n", name, "link", "set", "wire", "up")
        yield joined
    finally:
        for name in (joined.clients, joined.server):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def part(folder: Path, times: int, seed: int, kinds: Sequence[str] = KINDS) -> Iterator[FaultReport]:
    """Cut the wire so many times in each way while actors write and a learner samples; yield what came of it.

    Everything that was written is there once, and the clients notice within `NOTICED_WITHIN_S` that nothing passes
    any more.

    Raises:
        OSError: There can be no namespaces here.
    """
    if reason := why_not():
        raise OSError(reason)
    for kind in kinds:
        with wire() as joined:
            arguments = [str(folder / kind), str(times), str(seed), kind, joined.clients, joined.server]
            command = ["ip", "netns", "exec", joined.clients, sys.executable, "-m", __name__, *arguments]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stderr
            yield FaultReport(**json.loads(ended.stdout.splitlines()[-1]))


def _part(folder: Path, times: int, seed: int, kind: str, joined: Wire) -> FaultReport:
    """Do so, from within the clients' namespace."""
    report, rng = FaultReport(f"partition of two machines: {kind}"), random.Random(f"{seed} {kind}")
    address, noticed_s = f"{_SERVER}:{_PORT}", list[float]()
    with ExitStack() as stack:
        arguments = ("--replay.server.insecure", *options(folder, segment_mib=1))
        server = ServerProcess(address, *arguments, before=joined.in_server)
        stack.callback(server.close)
        stack.enter_context(ReplayClient(address)).create_table(RANKED)
        writing = stack.enter_context(load(address, replay.WRITERS))
        sampling = stack.enter_context(replay.sampling(address))
        wait_until(lambda: sampling.ranked > 0, "the learner")  # which finds its table before anything parts them
        for _ in range(times):
            pause(rng.uniform(0.0, _LONGEST_PAUSE_S))
            noticed_s.append(_noticed_s(address, partial(joined.part, kind)))
            pause(rng.uniform(0.0, _LONGEST_HEALING_S))
            stored, ranked = writing.acknowledged, sampling.ranked
            began_s = time.monotonic()
            joined.heal(kind)
            report.time_recovery(
                began_s,
                lambda s=stored, r=ranked: writing.acknowledged > s and sampling.ranked > r,  # type: ignore[misc]
                "the writers and the learner continue",
            )
        writing.stop()
        replay.compare(report, address, writing)
    report.missed += sum(seconds > NOTICED_WITHIN_S for seconds in noticed_s)
    report.figures["noticed_s"] = [round(seconds, 1) for seconds in sorted(noticed_s)]
    return report


def _noticed_s(address: str, begin: Callable[[], None]) -> float:
    """Begin a partition; return after how many seconds a client's connection is known to be dead."""
    ready, lost = threading.Event(), threading.Event()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            ready.set()
        elif ready.is_set():
            lost.set()

    with open_channel(address) as channel:
        channel.subscribe(changed, try_to_connect=True)
        assert ready.wait(WAIT_S), "no connection"
        began_s = time.monotonic()
        begin()
        assert lost.wait(WAIT_S), "a dead connection is not noticed"
        return time.monotonic() - began_s


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    sys.stdout.write(
        json.dumps(
            asdict(_part(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Wire(*sys.argv[5:])))
        )
    )
