"""The learner's side of a run in lock-step: what is drawn when, and what a round's end does."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from tidemill.config.lock_step import LockStep
from tidemill.errors import Reason, ResourceExhausted, Unavailable, Unimplemented
from tidemill.replay.chunk import SMALLEST_PRIORITY
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.priorities import PrioritySender
from tidemill.replay.sampling.schedule import SeededDraw
from tidemill.services.learner.lock_step.pace import DrawSchedule, RoundPublisher, batches_per_draw
from tidemill.services.learner.lock_step.priorities import HELD, RoundPriorities
from tidemill.services.learner.status.divergence import Diverged
from tidemill.services.learner.training.trainer import TrainerOutputs

_ROUNDS = LockStep(round_steps=10, num_envs=2, actors=3, updates=12, warm_up=2)


def test_samples_are_drawn_when_their_round_is_stored() -> None:
    """Four batches a sample, twelve a round: three samples see 180 steps, the fourth 240; seeds count up."""
    schedule = DrawSchedule(_ROUNDS, run_seed=3, batches=4)
    drawn = [schedule.draw(number) for number in range(4)]
    assert drawn == [SeededDraw((3 << 40) + number, 180 if number < 3 else 240) for number in range(4)]


@pytest.mark.parametrize("most,count", [(1, 1), (4, 4), (5, 4), (8, 6), (100, 12)])
def test_sample_has_as_many_batches_as_divide_a_round(most: int, count: int) -> None:
    """A sample never reaches into the next round."""
    assert batches_per_draw(most, _ROUNDS) == count


class _Server:
    """A replay service that says what it was sent, and is away for its first calls."""

    def __init__(self, away: int = 0, *, has_log: bool = True) -> None:
        self.priorities: dict[int, float] = {}
        self.snapshots = 0
        self.killed_in = 0
        """Call that ends the server, 1 the next; at once there is another, without priorities. 0 means none."""
        self.full_for = 0
        """Snapshots for which its disk has no room."""
        self.sent = 0
        """Priorities that it was sent."""
        self._away, self._has_log = away, has_log

    def update_priorities(self, table: str, keys: Any, priorities: Any, fencing_token: int) -> None:  # noqa: ANN401
        assert (table, fencing_token) == ("t", 7)
        self.send(keys, priorities)

    def send(self, keys: Any, priorities: Any, *, deadline_s: float | None = None) -> None:  # noqa: ANN401
        """Take priorities as the sender of a dataset sends them."""
        if self._away:
            self._away -= 1
            raise Unavailable("away")
        self._arrive()
        self.sent += len(keys)
        self.priorities.update(zip(keys.tolist(), priorities.tolist(), strict=True))

    def checkpoint(self) -> None:
        if not self._has_log:
            raise Unimplemented("no log")
        self._arrive()
        if self.full_for:
            self.full_for -= 1
            raise ResourceExhausted("full", reason=Reason.DISK_FULL)
        self.snapshots += 1

    def _arrive(self) -> None:
        self.killed_in -= 1
        if self.killed_in == 0:
            self.priorities.clear()
            raise Unavailable("killed")


def _priorities(server: _Server | None = None) -> tuple[RoundPriorities, PrioritySender]:
    """Return the end of rounds, and the holder of the present round's priorities."""
    priorities, sender = RoundPriorities("t", lambda: False), PrioritySender([(server or _Server()).send], HELD)
    priorities.fencing_token = 7
    priorities.collect(sender)
    return priorities, sender


def _client(server: _Server) -> ReplayClient:
    return cast(ReplayClient, server)


def _play(priorities: RoundPriorities, sender: PrioritySender, server: _Server, rounds: range) -> None:
    for number in rounds:
        sender.send(np.array([number, 1000], np.uint64), torch.tensor([1.0, float(number)]))
        sender.send(np.array([1000], np.uint64), torch.tensor([number + 0.5]))
        priorities.end_round()
        priorities.deliver(_client(server))


def test_priorities_reach_the_table_at_the_end_of_a_round() -> None:
    """Not before, the last of an item counts, and a server that is away is waited for."""
    server = _Server(away=1)
    priorities, sender = _priorities(server)
    sender.send(np.array([5], np.uint64), torch.tensor([2.0]))
    sender.flush()
    assert server.priorities == {}
    _play(priorities, sender, server, range(1))
    found = {key: value - SMALLEST_PRIORITY for key, value in server.priorities.items()}
    assert found == pytest.approx({5: 2.0, 0: 1.0, 1000: 0.5})


@pytest.mark.parametrize("has_log", [True, False])
def test_server_that_lost_its_priorities_gets_those_since_its_snapshot(has_log: bool) -> None:
    """After 16 rounds there is a snapshot; those of the 3 rounds after it are sent again, in their order."""
    server = _Server(has_log=has_log)
    priorities, sender = _priorities(server)
    _play(priorities, sender, server, range(19))
    assert server.snapshots == int(has_log)
    restarted = _Server()
    priorities.send_again(_client(restarted))
    assert restarted.priorities == {key: server.priorities[key] for key in (16, 17, 18, 1000)}


@pytest.mark.parametrize("call", [1, 2, 3])
def test_snapshot_has_all_its_rounds_if_the_server_was_killed_as_the_last_one_ended(call: int) -> None:
    """The sample call, which sends them again, may find the new server only after the snapshot."""
    server = _Server()
    priorities, sender = _priorities(server)
    _play(priorities, sender, server, range(15))
    server.killed_in = call
    _play(priorities, sender, server, range(15, 16))
    assert server.snapshots == 1
    assert server.priorities.keys() == {*range(16), 1000}
    assert server.priorities[1000] == 15.5 + SMALLEST_PRIORITY


def test_full_disk_of_the_server_costs_no_more_with_each_round() -> None:
    """The run continues, keeps the newest priority of each slot of the table, and asks for a snapshot now and then."""
    server = _Server()
    server.full_for = 1000
    priorities, sender = _priorities(server)

    def play(numbers: range) -> list[int]:
        keys = [number << 32 | 1 + number % 4 for number in numbers]
        for key, number in zip(keys, numbers, strict=True):
            sender.send(np.array([key], np.uint64), torch.tensor([float(number)]))
            priorities.end_round()
            priorities.deliver(_client(server))
        return keys

    keys = play(range(300))
    assert 10 < 1000 - server.full_for <= 20
    assert server.sent < 900
    assert len(priorities.state()["keys"]) < 20
    restarted = _Server()
    priorities.send_again(_client(restarted))
    assert [restarted.priorities[key] for key in keys[-4:]] == [
        number + SMALLEST_PRIORITY for number in range(296, 300)
    ]
    server.full_for = 0
    play(range(300, 316))
    assert server.snapshots == 1
    assert len(priorities.state()["sizes"]) < 16


def test_checkpoint_holds_what_the_server_may_lose() -> None:
    """A learner that resumes sends the kept rounds again, and the begun one only at its end."""
    server, empty = _Server(), _Server()
    before, sender = _priorities(server)
    _play(before, sender, server, range(2))
    sender.send(np.array([77], np.uint64), torch.tensor([9.0]))
    after, resumed = RoundPriorities("t", lambda: False), PrioritySender([empty.send], HELD)
    after.fencing_token = 7
    after.load_state(before.state())
    for name, value in before.state().items():
        assert np.array_equal(after.state()[name], value)
    after.collect(resumed)
    after.send_again(_client(empty))
    assert empty.priorities == server.priorities
    _play(after, resumed, empty, range(2, 3))
    assert empty.priorities[77] == 9.0 + SMALLEST_PRIORITY


def test_priorities_that_are_no_numbers_end_the_run() -> None:
    """Training has diverged."""
    priorities, sender = _priorities()
    sender.send(np.array([1], np.uint64), torch.tensor([float("nan")]))
    with pytest.raises(Diverged, match="priorities"):
        priorities.end_round()


class _Recorder:
    """Publisher, checkpointer and priorities that note in which order they are called."""

    version = 4

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
        return lambda *_: self.calls.append(name)


def test_round_ends_with_checkpoint_priorities_and_parameters_in_this_order() -> None:
    """A learner that dies in between has a checkpoint that knows of what was not delivered."""
    recorder: Any = _Recorder()
    end = RoundPublisher(TrainerOutputs(None, recorder, recorder), recorder, recorder)
    end.publish()
    assert recorder.calls == ["check", "end_round", "write_now", "deliver", "publish"]
    assert end.version == 4
