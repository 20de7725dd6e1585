"""Every algorithm with replay, updated from batches of two tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import DISTINCT_CASES
from tests.support.replay_service import LocalServer, local_server
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.run import ClusterSettings
from tidemill.config.sections import LearnerConfig
from tidemill.config.services import LearnerSettings
from tidemill.config.sources import SourceSettings
from tidemill.config.table import TableSettings
from tidemill.replay import ReplayClient, ReplayWriter, TableConfig
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.registry import LearnsOnPolicy, stored_columns
from tidemill.rl.transitions import gather_frame_stacks
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.training.pace import FreeRunning, Learning
from tidemill.services.learner.training.trainer import TrainerOutputs

_CASES = [name for name, (agent, _) in DISTINCT_CASES.items() if not isinstance(agent, LearnsOnPolicy)]
_MIRRORED = ("dqn", "dqn_image", "r2d2", "sac_normalized")
"""Kinds of columns: vectors, images, a recurrent state, statistics of observations."""
_OWN, _OTHER = 1, 3
"""What all observations of a table show."""


@pytest.fixture
def servers() -> Iterator[list[LocalServer]]:
    """Two that know nothing of each other."""
    with local_server() as first, local_server() as second:
        yield [first, second]


def _fill(address: str, table: TableConfig, shown: int) -> None:
    """Write items of whole length whose observations are all the same."""
    rng, payload = np.random.default_rng(0), bytes(table.payload_bytes)
    with ReplayClient(address) as client:
        client.create_table(table)
    with ReplayWriter(address, table) as writer:
        for number in range(3 * table.max_item_steps):
            row: dict[str, Any] = {}
            for column in table.signature:
                value = np.zeros(column.shape, column.dtype)
                if column.name.startswith("observation"):
                    value += np.asarray(shown, column.dtype)
                elif column.name in ("action", "reward") and column.dtype == "float32":
                    value = rng.uniform(-1, 1, column.shape).astype(np.float32)
                row[column.name] = value
            writer.append(row | {"is_first": number == 0})
            if number + 1 >= table.max_item_steps:
                writer.create_item(table.name, last=table.max_item_steps, priority=1.0, payload=payload)


@pytest.mark.parametrize(
    "case, mirror_mib, mirror_device",
    [
        *((case, 0, "host") for case in _CASES),
        *((case, 64, device) for case in _MIRRORED for device in ("host", "device")),
    ],
)
def test_batches_of_two_tables(servers: list[LocalServer], case: str, mirror_mib: int, mirror_device: str) -> None:
    """Each item is from the table that its priority goes to, whether or not the run's own rows are kept."""
    settings, spec = DISTINCT_CASES[case]
    agent = build_agent(settings, spec, seed=1)
    config = LearnerConfig(
        cluster=ClusterSettings(replay=(servers[0].address,)),
        agent=settings,
        table=TableSettings(sampler="prioritized", min_size=1, max_items=1000),
        learner=LearnerSettings(
            device="cpu",
            updates_per_env_step=0,
            mirror_mib=mirror_mib,
            mirror_device=mirror_device,  # type: ignore[arg-type]
            sources={"other": SourceSettings(fraction=0.25, table="replay", replay=(servers[1].address,))},
        ),
    )
    pace = FreeRunning(config, Counters(), RankInfo())
    table = pace.table(agent, stored_columns(settings, spec))
    for server, shown in zip(servers, (_OWN, _OTHER), strict=True):
        _fill(server.address, table, shown)
    count = settings.batch_size // 4
    with ExitStack() as stack:
        directory = ShardDirectory(config.cluster.replay)
        feed = pace.open(Learning(agent, table, torch.device("cpu"), spec), TrainerOutputs(None), directory, stack)
        batch = feed.batches.take(WAIT_S)
        assert batch is not None
        assert batch.sizes == (settings.batch_size - count, count)
        columns = gather_frame_stacks(batch.columns)
        for items, shown in zip((items for _, items in batch.tables()), (_OWN, _OTHER), strict=True):
            seen = columns["observation"][items]
            assert bool((seen == shown).all()), (case, seen.flatten()[:8])
        update = agent.update(batch.columns, batch.weight)
        assert update.priority.shape == (settings.batch_size,)
        assert bool(torch.isfinite(update.priority).all())
        sender = feed.outputs.priorities
        assert sender is not None
        assert feed.outputs.prioritized == {0, 1}
        for number, items in batch.tables():
            sender.send(batch.keys[items], update.priority[items], number)
        sender.flush()
        for server in servers:
            wait_until(lambda at=server: at.replay.find("replay").counters.priority_updates > 0, "priorities")  # type: ignore[misc]
