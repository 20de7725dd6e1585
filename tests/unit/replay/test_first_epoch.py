"""The epochs of servers that forgot what was before them, whatever the clock does in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.replay_streams import SIGNATURE, make_config, open_streams
from tests.unit.replay.logs import open_log
from tidemill.errors import FailedPrecondition
from tidemill.services.replay.chunks.store import ChunkStore
from tidemill.services.replay.state.streams import EPOCH_RANDOM_BITS, StreamRegistry, first_epoch

_NOON = 1_700_000_000_000


def _life(now_ms: int, rng: random.Random) -> StreamRegistry:
    return StreamRegistry(first_epoch(now_ms, rng.getrandbits(EPOCH_RANDOM_BITS)), max_streams=100)


def _open(streams: StreamRegistry, actor_id: str, epoch: int = 0) -> int:
    store = ChunkStore(SIGNATURE)
    return streams.open(actor_id, epoch, 1, store, chunk_length=4, tail_steps=4).number


@pytest.mark.parametrize("jump_ms", [0, 1, -1, -3_600_000, -_NOON, 3_600_000])
def test_epoch_of_an_earlier_life_is_never_one_of_this(jump_ms: int) -> None:
    """If the clock stands still or falls back, an actor never continues a stream that the server did not give it."""
    rng = random.Random(0)
    before = _life(_NOON, rng)
    given = {_open(before, f"actor-{i}") for i in range(20)}
    after = _life(_NOON + jump_ms, rng)
    opened = {_open(after, f"actor-{i}") for i in range(20)}
    assert not given & opened


def test_former_process_is_told_from_the_present_one_across_lives() -> None:
    """With a clock that advances, the epoch of an actor's former process is the smaller one and refused."""
    rng = random.Random(0)
    old = _open(_life(_NOON, rng), "actor")
    after = _life(_NOON + 1, rng)
    _open(after, "actor")
    with pytest.raises(FailedPrecondition, match="superseded"):
        _open(after, "actor", old)


def test_repeated_opening_gets_the_epoch_whose_first_answer_was_lost() -> None:
    """An actor may name its former epoch again until a step of the new one is stored, which only it can have sent."""
    streams, store = _life(_NOON, random.Random(0)), ChunkStore(SIGNATURE)
    opened = streams.open("actor", 5, 1, store, chunk_length=4, tail_steps=4)
    assert streams.open("actor", 5, 1, store, chunk_length=4, tail_steps=4) is opened
    with pytest.raises(FailedPrecondition, match="superseded"):
        _open(streams, "actor", 4)
    opened.streams[0].next_step = 4
    with pytest.raises(FailedPrecondition, match="superseded"):
        _open(streams, "actor", 5)


def test_repeated_opening_gets_its_epoch_of_a_server_killed_as_it_answered(tmp_path: Path) -> None:
    """The log has the name that the actor knows, also after the next segment has begun."""
    log = open_log(tmp_path)
    log.replay.create_table(make_config())
    for _ in range(6):
        open_streams(log.replay, "b")
    opened = open_streams(log.replay, epoch=5).epoch.number
    assert opened > 5
    for _ in range(2):
        log.crash()
        log = open_log(tmp_path)
        assert open_streams(log.replay, epoch=5).epoch.number == opened
    log.crash()


def test_epochs_fit_the_wire() -> None:
    """They stay below 2^63 for centuries, and are at least 1 even with a clock at 0."""
    assert 2**40 < first_epoch(_NOON, 0) < first_epoch(8_000_000_000_000, 2**EPOCH_RANDOM_BITS - 1) < 2**63
    assert first_epoch(0, 0) >= 1
