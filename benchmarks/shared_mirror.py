"""Memory and traffic of the ranks of one machine, with a mirror each and with a shared one: `make bench-mirror`.

Rows are counts, not times: MiB that all ranks together have (proportional set size) beyond what they had before they
sampled, and MiB of samples that came from the replay service, once every rank has read so many items. Frames are made
up and as compressible as Atari's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.learner_cases import CASES
from benchmarks.learner_feed import servers
from benchmarks.processes import free_port, memory_mib
from benchmarks.rows import Row, row, write
from tidemill.config.load import load
from tidemill.config.sections import LearnerConfig
from tidemill.envs.make import spec_of
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.sample_call import SampleCall
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.sampling.source import SampleShape
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.registry import stored_columns
from tidemill.services.learner.data.sampling import LearnerRows
from tidemill.services.learner.data.table import batches_per_sample, table_config
from tidemill.services.learner.distributed.learner_group import RankInfo, StepVote, joined_group

_RANKS = (1, 2, 4)
_WAIT_S = 300.0
_MIB = 2**20
_ROWS_AT_ONCE = 64  # so that what is copied is small beside what is kept


def sample(arguments: list[str], items: int) -> dict[str, float]:
    """Be one rank: read so many items; return the MiB received and taken."""
    config, rank = load(LearnerConfig, arguments, prog="rank", description=""), RankInfo.from_env()
    received = _count_bytes()
    agent = build_agent(config.agent, spec_of(config.env), seed=1)
    signature, size = stored_columns(config.agent, spec_of(config.env)), config.agent.batch_size
    table = table_config(config.table, config.learner, agent, signature, size)
    batches = batches_per_sample(config.table, config.learner, signature, size, table.max_item_steps)
    per_sample = rank.local_batch_size(config) * batches
    with ExitStack() as stack:
        group = stack.enter_context(joined_group(rank, torch.device("cpu"), _WAIT_S))
        before = memory_mib(os.getpid())
        rows = LearnerRows(config, rank, group, stride=agent.window.stride)

        def connect(mirror: TableMirror | None, in_flight: int) -> SampleStream:
            servers = stack.enter_context(closing(ShardDirectory(config.cluster.replay)))
            stream = SampleStream(servers, table, per_sample, max_in_flight_batches=in_flight, mirror=mirror)
            return stack.enter_context(closing(stream))

        sampling = rows.open(table, SampleShape(per_sample, in_flight=2, hold=4), connect, stack)
        deadline, checked = time.monotonic() + _WAIT_S, 0
        while checked < items and time.monotonic() < deadline:
            if (batch := sampling.source.take(1.0)) is not None:
                assert sampling.mirror is not None
                _read(sampling.mirror, sampling.mirror.rows_of(batch, agent.window.length).ravel())
                checked += per_sample
        group.all_agree(StepVote(stop=False, pause=False, lacks_batch=False, largest_weight=0.0))
        taken = memory_mib(os.getpid()) - before
        group.all_agree(StepVote(stop=False, pause=False, lacks_batch=False, largest_weight=0.0))
    return {"received": received[0] / _MIB, "taken": taken}


def _read(mirror: TableMirror, rows: NDArray[np.int64]) -> None:
    for column in mirror.columns.values():
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            column[rows[start : start + _ROWS_AT_ONCE]]  # copied, and dropped


def _count_bytes() -> list[int]:
    """Count the bytes of samples that come to this process from now on."""
    total, answered = [0], SampleStream.answered

    def counted(self: SampleStream, call: SampleCall, answer: pb.SampleResponse) -> None:
        total[0] += answer.ByteSize()
        answered(self, call, answer)

    SampleStream.answered = counted  # type: ignore[method-assign]
    return total


def measure(ranks: int, arguments: list[str], items: int) -> list[dict[str, float]]:
    """Run the given number of ranks as processes; return the figures of each."""
    port = str(free_port())
    torchrun = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "benchmarks.shared_mirror", "--rank", "--items", str(items), *arguments]
    children = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | torchrun | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]
    try:
        return [json.loads(child.communicate(timeout=_WAIT_S)[0].splitlines()[-1]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.communicate()


def main() -> None:
    """Measure and write benchmarks/results/shared_mirror.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--items", type=int, default=50_000, help="that each rank reads")
    parser.add_argument("--env-steps", type=int, default=20_000, help="steps in the table")
    options, rest = parser.parse_known_args()
    if options.rank:
        print(json.dumps(sample(rest, options.items)))
        return
    case, rows = CASES["nature_dueling_dqn_512"], list[Row]()
    config = case.config()
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        path = case.write(Path(folder))
        with servers(config, path, options.env_steps) as addresses:
            for ranks in _RANKS:
                for name, switch in (("one mirror", "--learner.share-mirror"), ("each", "--learner.no-share-mirror")):
                    told = measure(ranks, ["--config", path, *addresses[:2], switch], options.items)
                    what = f"{ranks} ranks, {name}"
                    rows.append(row(f"memory taken, {what}", "MiB", [sum(each["taken"] for each in told)]))
                    rows.append(row(f"samples received, {what}", "MiB", [sum(each["received"] for each in told)]))
    write("shared_mirror", rows)


if __name__ == "__main__":
    main()
