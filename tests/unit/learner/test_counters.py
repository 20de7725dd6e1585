"""Counters that survive restarts of the learner and of the replay service."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from tidemill.replay.batch import StoredSteps
from tidemill.services.learner.status.counters import Counters


def observed(*answers: tuple[int, int], counters: Counters | None = None) -> Counters:
    """Return counters that were told (history, env steps) in turn."""
    counters = counters or Counters()
    for history, env_steps in answers:
        counters.observe(StoredSteps(history, env_steps))
    return counters


def reloaded(counters: Counters) -> Counters:
    """Return the counters of a new process."""
    after = Counters()
    after.load_state(counters.state())
    return after


def test_env_steps_follow_the_server() -> None:
    """While the service lives, its count is the count."""
    assert observed((7, 0), (7, 10), (7, 10), (7, 25)).env_steps == 25


def test_env_steps_go_on_when_the_server_starts_empty() -> None:
    """25 steps before a restart and 7 after it are 32; a second restart adds again."""
    assert observed((7, 25), (8, 3), (8, 7), (9, 2)).env_steps == 25 + 7 + 2


def test_env_steps_are_not_read_while_a_count_moves() -> None:
    """A thread that reads in the middle would count the old server twice, which could end a run at once."""
    counters, read = observed((7, 25)), list[int]()
    reader = threading.Thread(target=lambda: read.append(counters.env_steps), daemon=True)

    class Slow(dict[str, StoredSteps]):
        def __setitem__(self, shard: str, stored: StoredSteps) -> None:
            reader.start()
            reader.join(0.2)
            super().__setitem__(shard, stored)

    counters._stored = Slow(counters._stored)
    observed((8, 3), counters=counters)
    reader.join()
    assert read == [28]


def test_env_steps_of_a_server_that_filled_up_again_are_all_new() -> None:
    """A server that started empty answers first at the table's least size, which may be any share of its old count."""
    assert observed((7, 560), (8, 512)).env_steps == 560 + 512
    assert observed((7, 560), (8, 600)).env_steps == 560 + 600


def test_env_steps_lost_with_the_power_were_played_all_the_same() -> None:
    """A restored server that lacks the last 10 of 100 steps continues from 90: 5 more make 105."""
    assert observed((7, 100), (7, 90), (7, 95)).env_steps == 105


def test_env_steps_behind_a_reset_of_the_table_are_all_new() -> None:
    """25 steps before a reset and 7 after it are 32, also over a checkpoint, and 60 are as many as the 25 and 35."""
    before, reset = StoredSteps(7, 25, count_id=1), StoredSteps(7, 7, count_id=2)
    for restarts in (False, True):
        counters = Counters()
        counters.observe(before)
        counters = reloaded(counters) if restarts else counters
        counters.observe(reset)
        assert counters.env_steps == 32
        counters.observe(StoredSteps(7, 35, count_id=2))
        assert counters.env_steps == 60


def test_count_of_a_server_or_a_checkpoint_that_names_no_table_continues() -> None:
    """Of an earlier version, before an update of either side or behind it."""
    counters = Counters()
    for count_id, env_steps in ((0, 25), (3, 30), (0, 32)):
        counters.observe(StoredSteps(7, env_steps, count_id=count_id))
        assert counters.env_steps == env_steps


def test_restored_counters_go_on_where_they_were() -> None:
    """A new process on the same service counts neither twice nor from 0."""
    before = observed((7, 25), (8, 3), counters=Counters(learner_steps=9, version=4, fencing_token=2))
    after = Counters(fencing_token=3)
    after.load_state(before.state())
    assert (after.learner_steps, after.version, after.env_steps, after.fencing_token) == (9, 4, 28, 3)
    assert observed((8, 5), counters=after).env_steps == 30


def test_learner_and_server_restarted_together_add_up() -> None:
    """The restored count of the old service is the base of the new one's, even if that has more already."""
    assert observed((8, 1), counters=reloaded(observed((7, 25)))).env_steps == 26
    assert observed((8, 30), counters=reloaded(observed((7, 25)))).env_steps == 55


def test_checkpoint_from_before_histories_is_read() -> None:
    """Its server must have been restarted to name a history, and kept nothing unless it has a log."""
    after = Counters()
    after.load_state({"learner_steps": 9, "version": 4, "base_env_steps": 5, "server_env_steps": 20})
    assert after.env_steps == 25
    assert observed((0, 22), counters=after).env_steps == 27  # a log of that time names none


def test_shards_count_each_for_itself_over_restarts_of_both() -> None:
    """One of two shards starts empty, then the learner resumes and hears of the other first: nothing counts twice."""
    before = Counters()
    for shard, history, count in (("0", 7, 10), ("1", 7, 20), ("1", 8, 3)):
        before.observe(StoredSteps(history, count), shard)
    assert before.env_steps == 33
    after = reloaded(before)
    after.observe(StoredSteps(7, 12), "0")
    assert after.env_steps == 35
    after.observe(StoredSteps(8, 3), "1")
    assert after.env_steps == 35


def test_shard_that_comes_back_under_another_name_counts_once() -> None:
    """A replaced pod has its store and another address, also for a learner that restarts; two may exchange theirs."""
    for restarts in (False, True):
        counters = Counters()
        counters.observe(StoredSteps(7, 10, 1), "a")
        counters.observe(StoredSteps(8, 20, 1), "b")
        counters = reloaded(counters) if restarts else counters
        counters.observe_waiting(StoredSteps(7, 11, 1), "c")
        assert counters.env_steps == 31
        counters.observe(StoredSteps(7, 12, 1), "c")
        counters.observe(StoredSteps(7, 13, 1), "b")
        counters.observe(StoredSteps(8, 24, 1), "c")
        counters.observe(StoredSteps(9, 5, 1), "a")  # a further pod gets the address that is free
        counters.observe(StoredSteps(7, 14, 1), "b")
        assert counters.env_steps == reloaded(counters).env_steps == 43


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 50))))
def test_env_steps_never_fall_and_count_everything_played(events: list[tuple[bool, bool, int]]) -> None:
    """Only steps that a crash took and that were stored again before the next answer may be missing."""
    counters, history, stored, played, lost = Counters(), 1, 0, 0, 0
    for restarts, is_empty, steps in events:
        if restarts and is_empty:
            history, stored = history + 1, 0
        elif restarts:
            lost, stored = lost + stored // 3, stored - stored // 3
        stored, played, before = stored + steps, played + steps, counters.env_steps
        counters.observe(StoredSteps(history, stored))
        assert before <= counters.env_steps
        assert played - lost <= counters.env_steps <= played


def waiting(*answers: tuple[int, int], counters: Counters | None = None) -> Counters:
    """Return counters that were told (count, env steps) of a table that gives no batch."""
    counters = counters or Counters()
    for count_id, env_steps in answers:
        counters.observe_waiting(StoredSteps(7, env_steps, count_id))
    return counters


def test_table_that_gives_no_batch_yet_counts() -> None:
    """Its reports count until a batch reports, never twice, and are not part of a checkpoint."""
    counters = waiting((1, 30), (1, 20))  # an answer that was overtaken
    assert counters.env_steps == 30
    assert "server_env_steps" not in counters.state()
    counters.observe(StoredSteps(7, 40, 1))
    assert counters.env_steps == 40
    assert waiting((1, 50), counters=counters).env_steps == 50
    counters.observe_waiting(StoredSteps(9, 7, 3), "1")
    assert counters.env_steps == 57
    assert reloaded(counters).env_steps == 40


def test_table_that_is_reset_while_it_gives_no_batch_counts_on() -> None:
    """50,000 stored, then 100 and 400 more after a reset each: all count, and once batches come also in checkpoints."""
    counters = Counters()
    counters.observe(StoredSteps(7, 50_000, 1))
    assert waiting((2, 0), (2, 100), counters=counters).env_steps == 50_100
    assert reloaded(counters).env_steps == 50_000
    assert waiting((3, 400), counters=counters).env_steps == 50_500
    counters.observe(StoredSteps(7, 1_000, 3))
    assert counters.env_steps == reloaded(counters).env_steps == 51_100


def test_decisions_before_a_reset_that_precedes_the_first_batch_count() -> None:
    """900 of a table that was reset before it had enough items for a batch, and 1,000 after it."""
    counters = waiting((1, 900))
    counters.observe(StoredSteps(7, 1_000, 2))
    assert counters.env_steps == reloaded(counters).env_steps == 1_900


def test_batch_that_is_overtaken_by_a_report_counts_once() -> None:
    """It was drawn before the table was asked, with or without a reset between them."""
    counters = Counters()
    counters.observe(StoredSteps(7, 990, 1))
    assert waiting((1, 1_010), counters=counters).env_steps == 1_010
    counters.observe(StoredSteps(7, 1_000, 1))
    assert counters.env_steps == 1_010
    assert waiting((2, 5), counters=counters).env_steps == 1_015
    counters.observe(StoredSteps(7, 1_005, 1))
    assert counters.env_steps == 1_015
    counters.observe(StoredSteps(7, 20, 2))
    assert counters.env_steps == 1_030


def test_server_that_does_not_name_its_count_is_counted_by_its_batches() -> None:
    """A server of an earlier version names it in a batch alone: its reports could be of any count."""
    counters = Counters()
    for _ in range(2):
        counters.observe_waiting(StoredSteps(0, 30))
        counters.observe(StoredSteps(7, 40))
        assert counters.env_steps == 40


def test_decisions_of_a_report_that_a_crash_took_were_played_all_the_same() -> None:
    """Of 120 that the table reported, a server restored from 80 reports 10 more as 90: 130 were played."""
    counters = Counters()
    counters.observe(StoredSteps(7, 100, 1))
    waiting((1, 120), counters=counters)
    counters.observe(StoredSteps(7, 80, 1))
    counters.observe(StoredSteps(7, 90, 1))
    assert counters.env_steps == 130
