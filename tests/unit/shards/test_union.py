"""One table over several shards: its splits, its weights and its rate limiter, against a model of the servers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.replay_streams import make_config
from tidemill.replay.sampling.plan import Draw, Plan
from tidemill.replay.sampling.sharded_table import ShardedTable
from tidemill.replay.table_config import RateLimiterConfig, SelectorConfig, SelectorKind, shard_config
from tidemill.services.replay.tables.rate_limiter import RateLimiter


def union_of(
    states: dict[str, tuple[int, float, float]], limiter: RateLimiterConfig | None = None, max_times_sampled: int = 0
) -> ShardedTable:
    """Return a union whose shards have told (items, total_weight, diff)."""
    config = make_config(max_items=100_000, limiter=limiter, max_times_sampled=max_times_sampled)
    union = ShardedTable(config, len(states), np.random.default_rng(1))
    for shard, told in states.items():
        union.join(shard)
        union.answered(Draw(shard, 0, 0), *told)
    return union


def planned(union: ShardedTable, batch_size: int) -> Plan:
    """Return the next plan; there must be one."""
    plan = union.plan(batch_size)
    assert plan is not None
    return plan


def test_batch_is_split_by_mass_and_shares_say_so() -> None:
    """Masses 1 : 3 give 25 and 75 of 100 items, with shares a quarter and three quarters."""
    plan = planned(union_of({"a": (50, 1.0, 0.0), "b": (50, 3.0, 0.0), "empty": (0, 0.0, 0.0)}), 100)
    assert {draw.shard: draw.items for draw in plan.draws} == {"a": 25, "b": 75}
    assert [plan.fraction(shard) for shard in ("a", "b", "empty")] == [0.25, 0.75, 0.0]


def test_nothing_is_planned_without_items_or_mass() -> None:
    """No shard, only empty ones, or items none of which can be picked: the batch waits."""
    for states in ({}, {"a": (0, 0.0, 0.0)}, {"a": (5, 0.0, 0.0), "b": (0, 0.0, 0.0)}):
        union = ShardedTable(make_config(), 2, np.random.default_rng(1)) if not states else union_of(states)
        assert union.plan(4) is None


def test_min_size_is_that_of_the_whole_table() -> None:
    """Two shards with 6 items each make up a minimum of 12; later fewer items are enough."""
    union = union_of({"a": (6, 6.0, 0.0), "b": (5, 5.0, 0.0)}, RateLimiterConfig(min_size=12))
    assert union.plan(4) is None
    union.answered(Draw("b", 0, 0), 6, 6.0, 0.0)
    assert union.plan(4) is not None
    union.leave("b")
    assert union.plan(4) is not None
    union.leave("a")
    union.join("a")
    assert union.plan(4) is None
    union.answered(Draw("a", 0, 0), 6, 6.0, 0.0)
    assert union.plan(4) is not None  # it came back with what it had
    union.answered(Draw("a", 0, 0), 0, 0.0, 0.0)
    union.answered(Draw("a", 0, 0), 6, 6.0, 0.0)
    assert union.plan(4) is None  # every item was lost: it begins again


def test_queue_that_runs_dry_need_not_reach_its_minimum_again() -> None:
    """Its shards stay live with nothing in them; if all are lost, they may come back as new ones."""
    union = union_of({"a": (12, 12.0, 0.0)}, RateLimiterConfig(min_size=12), max_times_sampled=1)
    union.answered(Draw("a", 12, 12), 12, 12.0, 0.0)
    union.answered(Draw("a", 0, 0), 4, 4.0, 0.0)
    assert union.plan(4) is not None
    union.leave("a")
    union.join("a")
    union.answered(Draw("a", 0, 0), 4, 4.0, 0.0)
    assert union.plan(4) is None


@pytest.mark.parametrize("queue_size, taken", [(1000, 500), (0, 1000)])
def test_shard_that_takes_no_more_items_reaches_the_minimum(queue_size: int, taken: int) -> None:
    """All writers are on one of two shards: it holds no more than its part, and they wait until some are sampled."""
    limiter = RateLimiterConfig(min_size=1500 if not queue_size else 1000, queue_size=queue_size)
    union = ShardedTable(make_config(max_items=2000, limiter=limiter), 2, np.random.default_rng(1))
    for shard in ("a", "b"):
        union.join(shard)
    union.answered(Draw("a", 0, 0), taken - 1, taken - 1.0, 0.0)
    assert union.plan(4) is None
    union.answered(Draw("a", 0, 0), taken, float(taken), 0.0)
    assert union.plan(4) is not None


def test_full_queue_is_asked_for_the_items_that_a_batch_lacks() -> None:
    """Its writers wait for samples, and its server admits more only for a draw that waits for them."""
    limiter = RateLimiterConfig(queue_size=1000)
    config = make_config(max_items=2000, limiter=limiter, max_times_sampled=1)
    union = ShardedTable(config, 2, np.random.default_rng(1))
    for shard in ("a", "b"):
        union.join(shard)
    union.answered(Draw("b", 0, 0), 100, 100.0, 0.0)
    union.answered(Draw("a", 0, 0), 499, 499.0, 0.0)
    assert union.plan(900) is None, "writers of the shard can continue"
    union.answered(Draw("a", 0, 0), 500, 500.0, 0.0)
    assert union.plan(1200) is None, "the shard never has so many"
    plan = planned(union, 900)
    assert {draw.shard: draw.items for draw in plan.draws} == {"a": 800, "b": 100}
    for draw in plan.draws:
        union.asked(draw)
    assert union.plan(900) is None
    assert union.is_held_back, "the other shard is still watched"
    waiting = next(draw for draw in plan.draws if draw.shard == "a")
    union.answered(Draw("b", 100, 0), 399, 399.0, 0.0)
    assert union.may_wait(waiting)
    union.answered(Draw("b", 0, 0), 300, 300.0, 0.0)
    assert not union.may_wait(waiting), "all writers moved to the other shard, which can make up for what is lacking"


def test_samples_are_counted_without_a_ratio() -> None:
    """A ratio may be set while the table is in use: its writers wait for samples that this reader counts."""
    assert sum(draw.counted or 0 for draw in planned(union_of({"a": (4, 4.0, 0.0)}), 4).draws) == 4


def test_inserts_before_min_size_are_taken_off_the_count() -> None:
    """A shard that is ahead of its small minimum is told so until the whole table is at its minimum."""
    limiter = RateLimiterConfig(min_size=100, samples_per_insert=2.0, error_buffer=10.0)
    union = union_of({"a": (60, 60.0, 20.5), "b": (0, 0.0, 0.0)}, limiter)
    assert union.plan(4) is None
    look = union.probe("a")
    assert look == Draw("a", 0, 21)
    union.asked(look)
    assert union.probe("a").counted == 0  # not twice
    union.answered(look, 100, 100.0, -0.5)
    assert union.plan(4) is not None
    union.answered(Draw("a", 0, 0), 110, 110.0, 20.5)
    assert union.probe("a").counted == 0


def test_samples_wait_for_the_ratio_over_all_shards() -> None:
    """Leads of -30 and +15 with a buffer of 10 hold batches back, unless a shard holds back its inserts."""
    limiter = RateLimiterConfig(min_size=1, samples_per_insert=1.0, error_buffer=10.0)
    assert union_of({"a": (9, 9.0, -15.0), "b": (9, 9.0, 4.0)}, limiter).plan(4) is None
    assert union_of({"a": (9, 9.0, -12.0), "b": (9, 9.0, 4.0)}, limiter).plan(4) is not None
    assert union_of({"a": (9, 9.0, -30.0), "b": (9, 9.0, 5.1)}, limiter).plan(4) is not None


def test_whole_batch_is_counted_where_inserts_are_furthest_ahead() -> None:
    """Even by a shard that gives no item of it."""
    limiter = RateLimiterConfig(min_size=1, samples_per_insert=1.0, error_buffer=100.0)
    plan = planned(union_of({"a": (9, 9.0, 3.0), "b": (9, 0.0, 8.0)}, limiter), 5)
    assert plan.draws == (Draw("a", 5, 0), Draw("b", 0, 5))


def test_items_that_may_be_sampled_once_are_not_promised_twice() -> None:
    """With 6 items of which 4 are asked for, a batch of 4 waits and one of 2 is drawn from those left."""
    union = union_of({"a": (4, 4.0, 0.0), "b": (2, 2.0, 0.0)}, max_times_sampled=1)
    union.asked(Draw("a", 4, 0))
    assert union.plan(4) is None
    assert planned(union, 2).draws == (Draw("b", 2, 2),)


def test_items_that_an_answer_brings_are_not_planned_again() -> None:
    """An answer tells of the table before its draw: of 6 items, 4 of them drawn, 2 are left, with their weight."""
    union = union_of({"a": (6, 12.0, 0.0), "b": (4, 8.0, 0.0)}, max_times_sampled=1)
    draw = Draw("a", 4, 0)
    union.asked(draw)
    union.answered(draw, 6, 12.0, 0.0)
    assert union.plan(7) is None
    assert union.is_held_back
    assert (union.items, union.total_weight) == (10, 20.0)  # as the batch's were
    plan = planned(union, 6)
    assert plan.weights == {"a": 4.0, "b": 8.0}
    assert {draw.shard: draw.items for draw in plan.draws} == {"a": 2, "b": 4}
    assert not union.is_held_back


def test_items_that_may_be_sampled_again_are_planned_again() -> None:
    """Not every sample of a table that gives each item twice takes one out of it."""
    union = union_of({"a": (6, 6.0, 0.0)}, max_times_sampled=2)
    draw = Draw("a", 4, 0)
    union.asked(draw)
    union.answered(draw, 6, 6.0, 0.0)
    assert planned(union, 6).draws == (Draw("a", 6, 6),)


def test_draw_may_wait_where_no_other_shard_has_its_items() -> None:
    """Other readers of a queue took what it was to get; in a table without limit only a lost shard does not answer."""
    states = {"a": (4, 4.0, 0.0), "b": (3, 3.0, 0.0)}
    for max_times_sampled, items, may_wait in ((1, 4, True), (1, 3, False), (1, 0, False), (0, 4, False)):
        assert union_of(states, max_times_sampled=max_times_sampled).may_wait(Draw("a", items, 0)) == may_wait


def test_shard_weighs_what_it_has_left_to_give() -> None:
    """Of 4 items of weight 4 that may be sampled once, 3 are asked for: 1 is left, beside 4 on the other shard."""
    union = union_of({"a": (4, 4.0, 0.0), "b": (4, 4.0, 0.0)}, max_times_sampled=1)
    union.asked(Draw("a", 3, 0))
    plan = planned(union, 5)
    assert plan.weights == {"a": 1.0, "b": 4.0}
    assert {draw.shard: draw.items for draw in plan.draws} == {"a": 1, "b": 4}


@pytest.mark.parametrize("max_times_sampled, without_replacement", [(1, False), (0, True), (1, True)])
def test_shard_is_asked_for_no_more_than_it_has(max_times_sampled: int, without_replacement: bool) -> None:
    """If no item may come twice, a heavy shard of 2 items gives 2, the light one the other 6; with 9 a batch waits."""
    config = make_config(max_items=100_000, max_times_sampled=max_times_sampled)
    union = ShardedTable(config, 2, np.random.default_rng(1), without_replacement=without_replacement)
    for shard, items, weight in (("heavy", 2, 98.0), ("light", 6, 2.0)):
        union.join(shard)
        union.answered(Draw(shard, 0, 0), items, weight, 0.0)
    assert {draw.shard: draw.items for draw in planned(union, 8).draws} == {"heavy": 2, "light": 6}
    assert union.plan(9) is None


@given(st.lists(st.floats(0.1, 1e3), min_size=2, max_size=6), st.integers(1, 300), st.integers(0, 2**32))
def test_lost_draws_go_to_the_others_with_unchanged_proportions(weights: list[float], size: int, seed: int) -> None:
    """Size and count of the batch stay, the lost shard gives nothing, and the shares are those without it."""
    states = {f"s{i}": (10, total_weight, float(seed % (i + 2))) for i, total_weight in enumerate(weights)}
    union = union_of(states, RateLimiterConfig(1, 1.0, 1e9))
    plan = planned(union, size)
    lost = [draw for draw in plan.draws if draw.shard == "s0"]
    union.leave("s0")
    again = union.replan(plan, lost)
    assert again is not None
    kept = [draw for draw in plan.draws if draw.shard != "s0"]
    assert sum(draw.items for draw in (*kept, *again.draws)) == size
    assert sum(draw.counted or 0 for draw in (*kept, *again.draws)) == size
    for index, total_weight in enumerate(weights[1:], start=1):
        assert again.fraction(f"s{index}") == pytest.approx(total_weight / sum(weights[1:]))


def test_nobody_makes_up_for_a_draw_when_all_are_lost() -> None:
    """The batch is then planned again, once there is a shard."""
    union = union_of({"a": (4, 4.0, 0.0)})
    plan = planned(union, 2)
    union.leave("a")
    assert union.replan(plan, plan.draws) is None


def test_nobody_makes_up_for_items_without_replacement() -> None:
    """A second draw of a shard could repeat items of its first; one that is only counted brings none."""
    union = ShardedTable(make_config(), 2, np.random.default_rng(1), without_replacement=True)
    for shard in ("a", "b"):
        union.join(shard)
        union.answered(Draw(shard, 0, 0), 8, 8.0, 0.0)
    plan = planned(union, 8)
    union.leave("a")
    assert union.replan(plan, [draw for draw in plan.draws if draw.shard == "a"]) is None
    assert union.replan(plan, [Draw("a", 0, 8)]) is not None


@pytest.mark.parametrize("known", [(1.0, 1.0, 1.0), (5.0, 1.0, 0.2), (3.0, 60.0, 10.5)])
def test_weighted_mean_is_that_of_the_table_however_old_the_weights(known: tuple[float, ...]) -> None:
    """Weights 1 / (N P), with P the share that was used times the shard's own probability, undo any split.

    Three shards of priorities alpha-scaled to weights; the value of an item is its number. The weighted mean over
    200,000 draws is within 4 standard errors of the plain mean.
    """
    rng = np.random.default_rng(7)
    weights = [rng.random(size) + 0.05 for size in (5, 20, 40)]
    values = [np.arange(size) + 100.0 * i for i, size in enumerate((5, 20, 40))]
    union = union_of({f"s{i}": (len(w), known[i], 0.0) for i, w in enumerate(weights)})
    drawn = []
    for _ in range(2000):
        plan = planned(union, 100)
        for draw in plan.draws:
            i = int(draw.shard[1:])
            q = weights[i] / weights[i].sum()
            slots = rng.choice(len(q), size=draw.items, p=q)
            drawn.append(values[i][slots] / (65 * plan.fraction(draw.shard) * q[slots]))
    sample = np.concatenate(drawn)
    error = sample.std() / np.sqrt(len(sample))
    assert abs(sample.mean() - np.concatenate(values).mean()) < 4 * error


@dataclass
class _Cluster:
    """Shards with real rate limiters, writers on some of them, and a sampler that knows what it was told."""

    config: RateLimiterConfig
    count: int
    limiters: list[RateLimiter] = field(init=False)
    sizes: list[int] = field(init=False)
    inserts: int = 0
    samples: int = 0
    above_min: int = 0

    def __post_init__(self) -> None:
        whole = make_config(max_items=10**6, limiter=self.config)
        self.shard = shard_config(whole, self.count).rate_limiter
        self.limiters = [RateLimiter(self.shard) for _ in range(self.count)]
        self.sizes = [0] * self.count
        self.union = ShardedTable(whole, self.count, np.random.default_rng(3))
        for i in range(self.count):
            self.union.join(str(i))

    def insert(self, shard: int, items: int) -> bool:
        """Insert if the shard's limiter admits it."""
        limiter = self.limiters[shard]
        if not limiter.can_insert(self.sizes[shard]):
            return False
        self.sizes[shard] += items
        limiter.inserted(items, self.sizes[shard])
        self.inserts += items
        return True

    def look(self) -> None:
        """Ask every shard how it is."""
        for i in range(self.count):
            self._answer(self.union.probe(str(i)))

    def sample(self, batch_size: int) -> bool:
        """Draw a batch if the sampler may."""
        plan = self.union.plan(batch_size)
        if plan is None:
            return False
        for draw in plan.draws:
            self._answer(draw)
        self.samples += batch_size
        return True

    def _answer(self, draw: Draw) -> None:
        shard = int(draw.shard)
        self.union.asked(draw)
        self.limiters[shard].sampled(draw.counted or 0)
        size = self.sizes[shard]
        self.union.answered(draw, size, float(size), self.limiters[shard].diff)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 5),
    phases=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=2, max_size=3),
    ratio=st.sampled_from([0.25, 1.0, 32.0]),
    buffer=st.sampled_from([1.0, 40.0, 1000.0]),
    min_size=st.integers(1, 300),
    batch=st.integers(1, 64),
    message=st.integers(1, 64),
    seed=st.integers(0, 2**32),
)
def test_inserts_and_samples_never_wait_for_each_other(
    count: int,
    phases: list[set[int]],
    ratio: float,
    buffer: float,
    min_size: int,
    batch: int,
    message: int,
    seed: int,
) -> None:
    """Whoever writes where, and even if all writers move: some writer or the sampler can always continue.

    Over the whole run the samples stay within both buffers, one message a shard and one batch of the ratio.
    """
    cluster = _Cluster(RateLimiterConfig(min_size, ratio, buffer), count)
    rng = np.random.default_rng(seed)
    for writers in (sorted({w % count for w in phase}) for phase in phases):
        for _ in range(150):
            cluster.look()
            inserted = [cluster.insert(w, message) for w in writers if rng.random() < 0.7]
            cluster.look()
            sampled = cluster.sample(batch) if rng.random() < 0.7 else False
            if not any(inserted) and not sampled:
                assert any(cluster.insert(w, message) for w in writers) or cluster.sample(batch)
    if cluster.samples:
        ahead = cluster.inserts * ratio - cluster.samples
        slack = count * (message + cluster.shard.min_size + 1) * ratio + min_size * ratio
        assert ahead <= buffer + slack + batch
        assert ahead >= -count * buffer - slack - count * batch


@pytest.mark.parametrize("kind", list(SelectorKind))
def test_shards_of_a_table_share_its_sizes(kind: SelectorKind) -> None:
    """Capacity, minimum and buffer are divided, rounded up; with one shard nothing changes."""
    limiter = RateLimiterConfig(min_size=10, samples_per_insert=2.0, error_buffer=9.0)
    config = make_config(sampler=SelectorConfig(kind), max_items=100, limiter=limiter, max_bytes=1000)
    part = shard_config(config, 3)
    assert (part.max_items, part.max_bytes, part.rate_limiter.min_size, part.rate_limiter.error_buffer) == (
        34,
        334,
        4,
        3.0,
    )
    assert part.rate_limiter.samples_per_insert == 2.0
    assert shard_config(config, 1) == config
