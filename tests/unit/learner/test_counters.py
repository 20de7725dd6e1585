"""Counters that survive restarts of the learner and of the replay service."""

from __future__ import annotations

from services.learner.counters import Counters


def test_env_steps_follow_the_server() -> None:
    """While the service lives, its count is the count."""
    counters = Counters()
    for count in (0, 10, 10, 25):
        counters.observe_env_steps(count)
    assert counters.env_steps == 25


def test_env_steps_go_on_when_the_server_starts_empty() -> None:
    """25 steps before a restart and 3 after it are 28; a second restart adds again."""
    counters = Counters()
    for count in (25, 3, 7, 2):
        counters.observe_env_steps(count)
    assert counters.env_steps == 25 + 7 + 2


def test_env_steps_lost_with_the_power_were_played_all_the_same() -> None:
    """A restored server that lacks the last 10 of 100 steps goes on from 90: 5 more make 105."""
    counters = Counters()
    for count in (100, 90, 95):
        counters.observe_env_steps(count)
    assert counters.env_steps == 105


def test_restored_counters_go_on_where_they_were() -> None:
    """A new process on the same service counts neither twice nor anew."""
    before = Counters(learner_steps=9, version=4, generation=2)
    for count in (25, 3):
        before.observe_env_steps(count)
    after = Counters(generation=3)
    after.load_state(before.state())
    assert (after.learner_steps, after.version, after.env_steps, after.generation) == (9, 4, 28, 3)
    after.observe_env_steps(5)
    assert after.env_steps == 30


def test_learner_and_server_restarted_together_add_up() -> None:
    """The restored count of the old service is the base of the new one's."""
    before = Counters()
    before.observe_env_steps(25)
    after = Counters()
    after.load_state(before.state())
    after.observe_env_steps(1)
    assert after.env_steps == 26


def test_shards_count_each_for_itself_over_restarts_of_both() -> None:
    """One of two shards starts empty, then the learner resumes and hears of the other first: nothing counts twice."""
    before = Counters()
    for shard, count in (("0", 10), ("1", 20), ("1", 3)):
        before.observe_env_steps(count, shard)
    assert before.env_steps == 33
    after = Counters()
    after.load_state(before.state())
    after.observe_env_steps(12, "0")
    assert after.env_steps == 35
    after.observe_env_steps(3, "1")
    assert after.env_steps == 35


def test_env_steps_of_a_server_that_filled_up_again_are_all_new() -> None:
    """A server that started empty answers first at the table's least size, here 500 of 700 before."""
    counters = Counters()
    for count in (700, 500, 520):
        counters.observe_env_steps(count)
    assert counters.env_steps == 700 + 520
