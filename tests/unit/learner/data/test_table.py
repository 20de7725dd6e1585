"""The table a run asks for, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from tests.support.learner_fakes import FakeAgent
from tests.support.naming import naming
from tests.support.replay_service import local_server, open_appender, write
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.config.load import load_config
from tidemill.config.sections import LearnerConfig
from tidemill.config.services import LearnerSettings
from tidemill.config.sources import SourceSettings
from tidemill.config.table import TableSettings
from tidemill.errors import AlreadyExists, FatalError, Unavailable
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.table_config import RateLimiterConfig, SelectorKind, TableConfig, TableUpdate, shard_config
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.services.learner.data import table as table_module
from tidemill.services.learner.data.table import batches_per_sample, create_table, create_tables, table_config
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.training.pace import FreeRunning
from tidemill.types import EnvSpec, WindowSpec, signature_of

_SPEC = EnvSpec((8,), "float32", action_shape=(2,))


class _Agent(FakeAgent):
    window = WindowSpec(history=3, steps=3, stride=2)


def _config(table: TableSettings, learner: LearnerSettings, batch_size: int = 128) -> TableConfig:
    return table_config(table, learner, _Agent(), signature_of(_SPEC), batch_size)


def test_table_has_the_environments_columns_and_the_agents_lengths() -> None:
    """The signature is the environment's; an item is history + steps + 1 = 7 steps."""
    config = _config(TableSettings(name="main", max_items=5_000), LearnerSettings())
    names = [column.name for column in config.signature]
    assert names == ["observation", "action", "reward", "terminated", "truncated", "is_first"]
    assert (config.name, config.max_items, config.max_item_steps) == ("main", 5_000, 7)
    assert config.max_times_sampled == 0


def test_ratio_is_in_samples_an_insert() -> None:
    """0.25 updates of 128 items a decision, one item every 2 decisions: 64 samples an insert."""
    limiter = _config(TableSettings(min_size=500), LearnerSettings(updates_per_env_step=0.25)).rate_limiter
    assert limiter.min_size == 500
    assert limiter.samples_per_insert == pytest.approx(64.0)
    assert limiter.error_buffer == pytest.approx(100 * 128)


def test_error_buffer_is_never_less_than_one_sample_call() -> None:
    """A buffer of 2 updates must still let a call of 8 batches through."""
    table = TableSettings(error_buffer_updates=2)
    limiter = _config(table, LearnerSettings(batches_per_sample=8)).rate_limiter
    assert limiter.error_buffer == 8 * 128


@pytest.mark.parametrize(
    "shape, batch_size, asked, expected",
    [
        ((8,), 256, 0, 8),
        ((8,), 32, 0, 8),
        ((8,), 1_000, 0, 2),
        ((8,), 4_096, 0, 1),
        ((84, 84), 32, 0, 4),
        ((84, 84), 512, 0, 4),
        ((84, 84), 4_096, 0, 1),
        ((84, 84), 512, 3, 3),
    ],
)
def test_small_batches_are_drawn_several_at_once(
    shape: tuple[int, ...], batch_size: int, asked: int, expected: int
) -> None:
    """About 2048 items make a call, of at most eight batches, or four of images, unless the settings say otherwise."""
    signature = signature_of(EnvSpec(shape, "uint8", num_actions=2))
    learner = LearnerSettings(batches_per_sample=asked)
    assert batches_per_sample(TableSettings(), learner, signature, batch_size, 2) == expected
    assert batches_per_sample(TableSettings(sampler="fifo"), learner, signature, batch_size, 2) == (asked or 1)


@pytest.mark.parametrize("batch_size, expected", [(32, 4), (64, 2), (512, 1)])
def test_images_that_are_sent_whole_are_drawn_fewer_at_once(batch_size: int, expected: int) -> None:
    """Without a mirror 128 images cost as much as a call."""
    signature = signature_of(EnvSpec((84, 84), "uint8", num_actions=2))
    assert batches_per_sample(TableSettings(), LearnerSettings(mirror_mib=0), signature, batch_size, 2) == expected


@pytest.mark.parametrize("item_steps, expected", [(2_048, 8), (2_049, 7), (3_001, 5), (10_001, 1), (65_535, 1)])
def test_long_items_are_drawn_fewer_at_once(item_steps: int, expected: int) -> None:
    """A server refuses a call for more than 2**22 steps; hindsight's items may have thousands each."""
    found = batches_per_sample(TableSettings(), LearnerSettings(), signature_of(_SPEC), 256, item_steps)
    assert found == expected


def test_share_of_a_source_counts_among_the_steps_of_a_call() -> None:
    """Of 1,024 items 256 are the table's own: the source's 768 may be as long."""
    learner = LearnerSettings(sources={"demos": SourceSettings(fraction=0.75)})
    assert batches_per_sample(TableSettings(), learner, signature_of(_SPEC), 256, 1_001) == 4


def test_table_is_the_same_for_every_number_of_learners() -> None:
    """Of 256 items 179 are the table's own, of two halves 90 each: a run continues with more learners or fewer."""
    sources = {"demos": SourceSettings(fraction=0.3)}
    config = LearnerConfig(
        agent=DQNConfig(batch_size=256),
        table=TableSettings(max_items=100_000),
        learner=LearnerSettings(updates_per_env_step=0.25, sources=sources),
    )
    tables = {
        FreeRunning(config, Counters(), RankInfo(0, size, 0)).table(_Agent(), signature_of(_SPEC)) for size in (1, 2, 4)
    }
    assert len(tables) == 1


def test_no_ratio_means_no_buffer() -> None:
    """`updates_per_env_step` 0 trains as fast as possible once `min_size` is reached."""
    limiter = _config(TableSettings(), LearnerSettings(updates_per_env_step=0)).rate_limiter
    assert (limiter.samples_per_insert, limiter.error_buffer, limiter.min_size) == (0.0, 0.0, 1_000)


def test_sampler_follows_the_settings() -> None:
    """Only the prioritized sampler has an exponent; a FIFO table hands each item out once, and is a queue."""
    learner = LearnerSettings()
    prioritized = _config(TableSettings(sampler="prioritized", priority_exponent=0.5), learner)
    assert (prioritized.sampler.kind, prioritized.sampler.priority_exponent) == (
        SelectorKind.PRIORITIZED,
        0.5,
    )
    assert _config(TableSettings(), learner).sampler.kind is SelectorKind.UNIFORM
    fifo = _config(TableSettings(sampler="fifo"), LearnerSettings(updates_per_env_step=0))
    assert (fifo.sampler.kind, fifo.max_times_sampled) == (SelectorKind.FIFO, 1)
    assert fifo.rate_limiter.queue_size == fifo.max_items // 2  # inserts wait, and nothing is evicted unseen
    small = TableSettings(sampler="fifo", max_items=200, min_size=50)
    assert _config(small, LearnerSettings(updates_per_env_step=0)).rate_limiter.queue_size == 128, "a batch fits"


def test_largest_ratio_of_a_queue_is_held_by_its_limiter() -> None:
    """An item makes at most 1 / batch_size updates and comes every 2 decisions."""
    fifo = TableSettings(sampler="fifo")
    held = _config(fifo, LearnerSettings(updates_per_env_step=1 / 64), batch_size=32)
    assert held.rate_limiter.samples_per_insert == 1


def test_table_is_made_also_if_the_name_of_the_shards_is_not_known_yet() -> None:
    """A directory asks for it in a thread, and at first nobody may answer."""
    config, asked = _config(TableSettings(), LearnerSettings()), list[str]()

    def resolve(name: str) -> Sequence[str]:
        asked.append(name)
        if len(asked) < 3:
            raise OSError("no such name")
        return [server.address]

    with (
        local_server() as server,
        closing(ShardDirectory(["dns:///replay:7401"], 2, every_s=0.01, resolve=resolve)) as directory,
        ReplayClient(server.address) as client,
    ):
        assert create_tables(directory, config).items == 0
        assert client.describe_table(config.name).config == shard_config(config, 2)


def test_name_of_shards_that_stays_unknown_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has a bound."""
    monkeypatch.setattr(table_module, "_RESOLVE_S", 0.01)
    with (
        closing(ShardDirectory(["dns:///replay:7401"], resolve=lambda _: ())) as directory,
        pytest.raises(Unavailable, match=naming("dns:///replay:7401")),
    ):
        create_tables(directory, _config(TableSettings(), LearnerSettings()))


def _on_policy(actors: int, **table: Any) -> TableConfig:  # noqa: ANN401 - what the section takes
    config = load_config(
        {"agent": {"algorithm": "ppo"}, "env": {"num_envs": 128}, "actor": {"count": actors}, "table": table}
    )
    return _config(config.table, config.learner, batch_size=config.agent.batch_size)


def test_changed_number_of_actors_changes_the_table_of_an_on_policy_run() -> None:
    """Its default batch follows the number, and the table the batch, on all shards, there and back."""
    with ExitStack() as stack:
        servers = [stack.enter_context(local_server()) for _ in range(2)]
        clients = [stack.enter_context(ReplayClient(server.address)) for server in servers]
        directory = stack.enter_context(closing(ShardDirectory([server.address for server in servers])))
        for actors, batch in ((2, 256), (4, 512), (2, 256)):
            table = _on_policy(actors)
            create_tables(directory, table)
            assert (table.rate_limiter.min_size, table.max_items) == (batch, 4 * batch)
            assert [client.describe_table(table.name).config for client in clients] == [shard_config(table, 2)] * 2
        with pytest.raises(AlreadyExists):
            clients[0].create_table(shard_config(_on_policy(4), 2))  # by any other client it is refused


def test_start_of_a_learner_keeps_what_was_changed_in_use() -> None:
    """A limit that an operator changed stays until the run's settings give another one."""
    with (
        local_server() as server,
        ReplayClient(server.address) as client,
        closing(ShardDirectory([server.address])) as directory,
    ):
        table = _on_policy(2)
        create_tables(directory, table)
        client.update_table(table.name, TableUpdate(max_items=700))
        create_tables(directory, table)
        assert client.describe_table(table.name).config == replace(table, max_items=700)
        create_tables(directory, _on_policy(2, min_size=200))
        changed = client.describe_table(table.name).config
        assert (changed.max_items, changed.rate_limiter.min_size) == (700, 200)
        for max_items in (2048, 1500, 2048):  # as an operator tried it, and back to what the table has had
            create_tables(directory, _on_policy(2, max_items=max_items))
            assert client.describe_table(table.name).config.max_items == max_items
            client.update_table(table.name, TableUpdate(max_items=1500))
        with pytest.raises(FatalError, match=naming("max_item_steps table.name")):
            create_tables(directory, replace(table, max_item_steps=9))


def test_waiting_sample_is_admitted_by_the_limits_of_the_learners_start() -> None:
    """On a server without a log, too."""
    with (
        local_server() as server,
        ReplayClient(server.address) as client,
        closing(ShardDirectory([server.address])) as directory,
    ):
        config = make_config(limiter=RateLimiterConfig(min_size=12))
        create_tables(directory, config)
        with open_appender(server.address) as appender:
            write(appender, range(8))
            assert appender.flush(WAIT_S)
        with ReplaySampler([server.address], config, 1) as sampler:
            table = server.replay.find(config.name)
            wait_until(lambda: server.admission.waiting(table, "sample") > 0, "the sampler to wait")
            create_tables(directory, make_config(limiter=RateLimiterConfig(min_size=1)))
            assert sampler.take(WAIT_S) is not None
            assert client.describe_table(config.name).config.rate_limiter.min_size == 1


class _TakenName:
    def create_table(self, config: TableConfig, *, redeclare: bool) -> bool:
        raise AlreadyExists("table 'replay' has other columns")


def test_name_taken_by_another_run_is_fatal_and_says_what_to_do() -> None:
    """The message keeps the server's reason and names the way out."""
    config = _config(TableSettings(), LearnerSettings())
    with pytest.raises(FatalError, match=naming("table.name set back tidemill replay update")):
        create_table(_TakenName(), config)  # type: ignore[arg-type]
