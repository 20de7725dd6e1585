"""Streams that wait: order, cancellation, time, and no deadlock whatever the table."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.replay_streams import (
    FIFO,
    UNIFORM,
    append,
    make_chunk,
    make_config,
    make_items,
    make_replay,
    open_streams,
    sample_from,
)
from tidemill.errors import NotFound
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, TableConfig
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.tables.table import Table


class Scene:
    """A table, a admission with a clock set by hand, and an actor that appends four items a call."""

    def __init__(self, config: TableConfig) -> None:
        self.now_s = 0.0
        self.replay = make_replay(config)
        self.table: Table = self.replay.find(config.name)
        self.admission = AdmissionQueue(lambda: self.now_s)
        self.opened = open_streams(self.replay, tables=(config.name,))
        self.step = 0

    async def insert(self, items: int = 4) -> None:
        """Append a chunk and items in it through the admission."""

        def act() -> None:
            chunk = make_chunk(0, 0, self.step, 4)
            self.step += 4
            append(self.replay, self.opened, [chunk], [make_items(0, [(0, i % 4, 1) for i in range(items)])])

        await self.admission.insert((self.table,), act)

    async def sample(self, batch_size: int) -> int:
        """Sample through the admission; return the size of the batch."""
        sample = await self.admission.sample(self.table, batch_size, False, lambda: sample_from(self.table, batch_size))
        return len(sample.keys)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_sample_waits_for_the_item_that_completes_min_size() -> None:
    """A sample below min_size is answered by the insert that reaches it."""
    scene = Scene(make_config(limiter=RateLimiterConfig(min_size=8)))
    pending = asyncio.create_task(scene.sample(2))
    await scene.insert()
    await settle()
    assert not pending.done()
    await scene.insert()
    assert await asyncio.wait_for(pending, 60) == 2


async def test_insert_waits_for_samples_when_it_is_ahead() -> None:
    """With one sample per insert, the insert beyond the buffer waits for a sample."""
    scene = Scene(make_config(limiter=RateLimiterConfig(1, samples_per_insert=1.0, error_buffer=5.0)))
    await scene.insert()
    await scene.insert()
    pending = asyncio.create_task(scene.insert())
    await settle()
    assert not pending.done()
    await scene.sample(4)
    await asyncio.wait_for(pending, 60)


async def test_waiting_calls_go_on_in_order_of_arrival() -> None:
    """Of two waiting samples the first is served first, also when only the second's batch would fit."""
    scene = Scene(make_config(sampler=FIFO, max_times_sampled=1))
    served: list[str] = []

    async def sample(name: str, size: int) -> None:
        await scene.sample(size)
        served.append(name)

    tasks = [asyncio.create_task(sample("large", 6)), asyncio.create_task(sample("small", 2))]
    await settle()
    await scene.insert()
    await settle()
    assert served == []
    await scene.insert()
    await asyncio.gather(*tasks)
    assert served == ["large", "small"]


async def test_cancelled_call_lets_the_next_one_on() -> None:
    """A caller that goes away does not hold up those behind it."""
    scene = Scene(make_config(sampler=FIFO, max_times_sampled=1))
    large, small = asyncio.create_task(scene.sample(6)), asyncio.create_task(scene.sample(2))
    await settle()
    await scene.insert()
    await settle()
    large.cancel()
    assert await asyncio.wait_for(small, 60) == 2


async def test_error_of_a_waiting_act_reaches_its_caller_only() -> None:
    """An act that fails when its turn comes fails its own call, and the rest continue."""
    scene = Scene(make_config())

    def fail() -> None:
        raise ValueError("mine")

    failing = asyncio.create_task(scene.admission.sample(scene.table, 1, False, fail))
    fine = asyncio.create_task(scene.sample(1))
    await settle()
    await scene.insert()
    with pytest.raises(ValueError, match="mine"):
        await failing
    assert await fine == 1


async def test_insert_into_several_tables_waits_for_all_and_does_not_hold_up_others() -> None:
    """A blocked table holds up those who insert into it, not those who insert elsewhere."""
    replay = make_replay(make_config("full", limiter=RateLimiterConfig(queue_size=1)), make_config("open"))
    admission = AdmissionQueue(lambda: 0.0)
    full, other = replay.find("full"), replay.find("open")
    opened = open_streams(replay, tables=("full",))
    append(replay, opened, [make_chunk(0, 0, 0, 4)], [make_items(0, [(0, 0, 1)])])
    both = asyncio.create_task(admission.insert((full, other), lambda: None))
    await settle()
    assert not both.done()
    behind = asyncio.create_task(admission.insert((other,), lambda: None))
    await settle()
    assert not behind.done()  # it came later and shares a table
    full.reset()
    admission.changed()
    await asyncio.wait_for(asyncio.gather(both, behind), 1)


async def test_blocked_time_is_that_during_which_anybody_waits() -> None:
    """Two samples that wait at the same time count once; the side that does not wait counts nothing."""
    scene = Scene(make_config())
    tasks = [asyncio.create_task(scene.sample(1))]
    await settle()
    scene.now_s = 3.0
    tasks.append(asyncio.create_task(scene.sample(1)))
    await settle()
    scene.now_s = 5.0
    assert scene.admission.blocked_s(scene.table, "sample") == 5.0
    await scene.insert()
    await asyncio.gather(*tasks)
    scene.now_s = 9.0
    assert scene.admission.blocked_s(scene.table, "sample") == 5.0
    assert scene.admission.blocked_s(scene.table, "insert") == 0.0


LIMITERS = st.one_of(
    st.builds(RateLimiterConfig, min_size=st.integers(1, 12)),
    st.builds(
        RateLimiterConfig,
        min_size=st.integers(1, 12),
        samples_per_insert=st.floats(0.05, 20),
        error_buffer=st.floats(0.01, 50),
    ),
    st.builds(RateLimiterConfig, queue_size=st.integers(1, 12)),
)
SAMPLERS = st.sampled_from([UNIFORM, FIFO, SelectorConfig(SelectorKind.PRIORITIZED, 1.0)])


@settings(max_examples=40, deadline=None)
@given(
    limiter=LIMITERS,
    sampler=SAMPLERS,
    max_times_sampled=st.integers(0, 3),
    batch_size=st.integers(1, 40),
    items=st.integers(1, 12),
)
def test_no_table_lets_both_sides_wait_for_each_other(
    limiter: RateLimiterConfig, sampler: SelectorConfig, max_times_sampled: int, batch_size: int, items: int
) -> None:
    """An inserting and a sampling loop, of any batch sizes, over any table that accepts them, never both wait."""
    config = make_config(limiter=limiter, sampler=sampler, max_times_sampled=max_times_sampled, max_items=40)

    async def both_sides() -> None:
        scene = Scene(config)
        tasks: dict[str, asyncio.Task[object]] = {}
        progress = {"insert": 0, "sample": 0}

        async def loop(name: str) -> None:
            while True:
                await (scene.insert(items) if name == "insert" else scene.sample(batch_size))
                progress[name] += 1
                await asyncio.sleep(0)

        for name in ("insert", "sample"):
            tasks[name] = asyncio.create_task(loop(name))
        for _ in range(12):
            before = sum(progress.values())
            await settle()
            assert sum(progress.values()) > before, (progress, scene.table.size)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    asyncio.run(both_sides())


class _Table:
    """A table that admits inserts or not."""

    def __init__(self, *, admits: bool = True) -> None:
        self.admits, self.dropped = admits, False

    def can_insert(self) -> bool:
        return self.admits

    def has_draws(self, _size: int, _without_replacement: bool) -> bool:
        return True

    def check_there(self) -> None:
        if self.dropped:
            raise NotFound("it is gone")


async def test_insert_that_has_lost_a_table_leaves_the_lines_of_the_others() -> None:
    """Also where another stands before it in one of them; that line would have been looked at for ever."""
    gone, held = cast(Any, _Table()), cast(Any, _Table(admits=False))
    admission = AdmissionQueue(lambda: 0.0)
    first = asyncio.create_task(admission.insert((held,), lambda: 1))
    await settle()
    second = asyncio.create_task(admission.insert((held, gone), lambda: 2))
    await settle()
    gone.dropped = True
    admission.changed()
    admission.forget(gone)
    with pytest.raises(NotFound):
        await asyncio.wait_for(second, 60)
    held.admits = True
    admission.changed()
    assert await asyncio.wait_for(first, 60) == 1
    admission.changed()


async def test_call_that_is_cancelled_as_its_table_is_dropped_holds_nobody_up() -> None:
    """Those behind it hear that the table is gone, although its own task has not run yet."""
    table = cast(Any, _Table(admits=False))
    admission = AdmissionQueue(lambda: 0.0)
    first, second = (asyncio.create_task(admission.insert((table,), lambda: 1)) for _ in range(2))
    await settle()
    first.cancel()
    table.dropped = True
    admission.changed()
    admission.forget(table)
    with pytest.raises(NotFound):
        await asyncio.wait_for(second, 60)
