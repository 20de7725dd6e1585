"""Who samples for whom: the ranks of a machine share a mirror, or all of them keep their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import CASES
from tests.support.feeder import SPEC, TABLE, Feeder
from tests.support.replay_service import LocalServer, local_server
from tests.support.waiting import WAIT_S
from tidemill.config.load import load
from tidemill.config.run import ClusterSettings
from tidemill.config.sections import LearnerConfig
from tidemill.config.services import LearnerSettings
from tidemill.config.table import TableSettings
from tidemill.replay import ReplayClient, ReplayWriter
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.sample_stream import SampleStream
from tidemill.replay.sampling.shared_mirror import DealtSampler
from tidemill.replay.sampling.source import OpenedSource, SampleShape
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.registry import stored_columns
from tidemill.services.learner.data import sampling as sampling_module
from tidemill.services.learner.data.device_rows import DeviceRows
from tidemill.services.learner.data.sampling import LearnerRows
from tidemill.services.learner.distributed.learner_group import RankInfo, SingleLearner, StepVote
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.training import pace as pace_module
from tidemill.services.learner.training.pace import FreeRunning, Learning
from tidemill.services.learner.training.trainer import BatchSource, TrainerOutputs
from tidemill.types import signature_of

TABLE_CONFIG = TableConfig(
    TABLE, signature_of(SPEC), SelectorConfig(SelectorKind.UNIFORM), max_items=1_000, max_item_steps=2
)


class _Threads(SingleLearner):
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=WAIT_S)
        self._said: list[bytes] = []
        self._votes: list[StepVote] = []

    def broadcast(self, data: bytes) -> bytes:
        """Return the answer of one of them, the same to all."""
        self._said.append(data)
        self._barrier.wait()
        return min(self._said)

    def all_agree(self, vote: StepVote) -> StepVote:
        """True if any lacks something."""
        self._votes.append(vote)
        self._barrier.wait()
        agreed = vote._replace(lacks_batch=any(said.lacks_batch for said in self._votes[-self._barrier.parties :]))
        self._barrier.wait()  # before anybody votes again
        return agreed


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server that is fed."""
    with local_server() as server:
        feeder = Feeder(server.address, chunks_per_s=100.0)
        yield server
        feeder.close()


def _open_rank(
    config: LearnerConfig, rank: RankInfo, group: _Threads, stack: ExitStack, on_device: bool
) -> tuple[OpenedSource, LearnerRows]:
    device = torch.device("cpu") if on_device or config.learner.mirror_device == "device" else None
    rows = LearnerRows(config, rank, group, stride=1, device=device)

    def connect(mirror: TableMirror | None, in_flight: int) -> SampleStream:
        servers = ShardDirectory(config.cluster.replay)
        stream = SampleStream(servers, TABLE_CONFIG, 8, max_in_flight_batches=in_flight, mirror=mirror)
        return stack.enter_context(closing(stream))

    return rows.open(TABLE_CONFIG, SampleShape(8, in_flight=2, hold=4), connect, stack), rows


def _open(
    server: LocalServer, ranks: list[RankInfo], stack: ExitStack, *settings: str, on_device: bool = False
) -> list[tuple[OpenedSource, LearnerRows]]:
    """Open what each rank samples with, its observations on a device that they may lie on, and take a batch by each."""
    config = load(LearnerConfig, ["--cluster.replay", server.address, *settings], prog="learner", description="")
    group = _Threads(len(ranks))
    with ThreadPoolExecutor(len(ranks)) as pool:
        opening = [pool.submit(_open_rank, config, rank, group, stack, on_device) for rank in ranks]
        opened = [future.result(WAIT_S) for future in opening]
    for sampling, kept in opened:
        batch = sampling.source.take(WAIT_S)
        assert batch is not None
        if (mirror := sampling.mirror) is not None:
            rows, there = mirror.rows_of(batch, 2), kept.on_device
            found = there.take(torch.from_numpy(rows)).numpy() if there else mirror.columns["observation"][rows]
            assert np.isfinite(found).all()
            assert found.any()
            assert mirror.is_intact(batch)
    return opened


def _kinds(opened: list[tuple[OpenedSource, LearnerRows]]) -> list[type]:
    return [type(sampling.source) for sampling, _ in opened]


def _ranks(*machines: int) -> list[RankInfo]:
    """Return so many ranks on each machine."""
    size, ranks = sum(machines), list[RankInfo]()
    for machine, count in enumerate(machines):
        ranks += [RankInfo(len(ranks), size, local, len(machines), machine, count) for local in range(count)]
    return ranks


@pytest.mark.requires_linux
@pytest.mark.parametrize(
    "machines, kinds",
    [
        ((1,), [SampleStream]),
        ((3,), [SampleStream, DealtSampler, DealtSampler]),
        ((2, 1), [SampleStream, DealtSampler, SampleStream]),
        ((2, 2), [SampleStream, DealtSampler] * 2),
    ],
)
def test_first_rank_of_a_machine_samples_for_it(
    server: LocalServer, machines: tuple[int, ...], kinds: list[type]
) -> None:
    """A rank that is alone on its machine samples for itself."""
    with ExitStack() as stack:
        assert _kinds(_open(server, _ranks(*machines), stack)) == kinds


@pytest.mark.parametrize(
    "settings, keeps",
    [
        (("--learner.no-share-mirror",), True),
        (("--learner.mirror-mib", "0"), False),
        (("--table.sampler", "fifo", "--learner.updates-per-env-step", "0"), True),
        (("--learner.mirror-device", "device"), True),
    ],
)
def test_every_rank_samples_for_itself_when_told_to(
    server: LocalServer, settings: tuple[str, ...], keeps: bool
) -> None:
    """Without the setting, without a mirror, of a queue, and with a mirror on each rank's own device."""
    with ExitStack() as stack:
        opened = _open(server, _ranks(2), stack, *settings)
        assert _kinds(opened) == [SampleStream] * 2
        assert [sampling.mirror is not None for sampling, _ in opened] == [keeps] * 2


@pytest.mark.requires_linux
@pytest.mark.parametrize("have_room, kinds", [(2, [SampleStream, SampleStream]), (1, [SampleStream, DealtSampler])])
def test_every_rank_keeps_a_mirror_on_its_device_if_all_have_room(
    server: LocalServer, have_room: int, kinds: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All agree: where one has none, they share the mirror in the host's memory."""
    room = iter([True] * have_room + [False] * (2 - have_room))

    def open_rows(*given: Any) -> DeviceRows:  # noqa: ANN401 - as DeviceRows takes them
        if next(room):
            return DeviceRows(*given)
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(sampling_module, "DeviceRows", open_rows)
    with ExitStack() as stack:
        opened = _open(server, _ranks(2), stack, on_device=True)
        assert _kinds(opened) == kinds
        assert [kept.on_device is not None for _, kept in opened] == [have_room == 2] * 2


@pytest.mark.parametrize("refused", ["memfd_create", "ftruncate"])
def test_ranks_keep_their_own_where_memory_cannot_be_shared(
    server: LocalServer, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the other machine, too: all decide alike."""

    def refuse(*_: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(os, refused, refuse)
    with ExitStack() as stack:
        opened = _open(server, _ranks(2, 2), stack)
        assert _kinds(opened) == [SampleStream] * 4
        assert all(sampling.mirror is not None for sampling, _ in opened)


def test_rank_of_a_queue_takes_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two ranks leaves the other's half of a rollout alone, however late the other comes."""
    monkeypatch.setattr(pace_module, "collect", lambda *_: None)  # the ranks of this test are one process
    agent_settings, spec = CASES["ppo"]
    agent, columns = build_agent(agent_settings, spec, seed=1), stored_columns(agent_settings, spec)
    with local_server() as server, ExitStack() as stack:
        config = LearnerConfig(
            cluster=ClusterSettings(replay=(server.address,)),
            agent=agent_settings,
            table=TableSettings(sampler="fifo", min_size=1, max_items=64),
            learner=LearnerSettings(device="cpu", updates_per_env_step=0),
        )
        directory = ShardDirectory(config.cluster.replay)

        def batches_of(rank: RankInfo) -> BatchSource:
            pace = FreeRunning(config, Counters(), rank)
            learning = Learning(agent, pace.table(agent, columns), torch.device("cpu"), spec)
            return pace.open(learning, TrainerOutputs(None), directory, stack).batches

        ranks = _ranks(2)
        table = FreeRunning(config, Counters(), ranks[0]).table(agent, columns)
        with ReplayClient(server.address) as client, ReplayWriter(server.address, table) as writer:
            client.create_table(table)
            for number in range(agent_settings.batch_size + table.max_item_steps - 1):
                row = {column.name: np.zeros(column.shape, column.dtype) for column in table.signature}
                writer.append(row | {"is_first": number == 0})
                if number + 1 >= table.max_item_steps:
                    writer.create_item(table.name, last=table.max_item_steps, priority=1.0)
        first = batches_of(ranks[0])
        assert first.take(WAIT_S) is not None
        assert batches_of(ranks[1]).take(WAIT_S) is not None
        assert first.take(0.0) is None
