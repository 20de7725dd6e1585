"""Batches decoded in the background, transformed and weighed as a program asks, and priorities that wait for nobody."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import numbered_step, steps_table
from tests.support.replay_service import LocalServer
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import InvalidArgument, Unavailable
from tidemill.replay import (
    Decoding,
    ReplayClient,
    ReplayDataset,
    ReplaySampler,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
)
from tidemill.replay.sampling.sample_decoder import ItemRows, Whole

TABLE = replace(
    steps_table(max_item_steps=2),
    sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0),
    max_times_sampled=0,
)


def _fill(server: LocalServer, table: TableConfig, steps: int) -> None:
    with ReplayWriter(server.address, table, chunk_length=4) as writer:
        for number in range(steps):
            writer.append(numbered_step(number))
            writer.create_item("t", last=1, priority=1.0)
        writer.flush(WAIT_S)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_transform_makes_the_columns(server: LocalServer, threads: int) -> None:
    """It runs where rows are decoded, and may give a value to all batches of a sample."""
    _fill(server, TABLE, 20)
    ran_in: set[str] = set()

    def transform(rows: ItemRows) -> dict[str, object]:
        ran_in.add(threading.current_thread().name)
        assert rows.weights.shape == (len(rows.index),)
        return {"last": rows.columns["number"][rows.index[:, -1]], "name": Whole("walks")}

    options = {"batches_per_sample": 4, "timeout_s": WAIT_S, "decoding": Decoding(threads=threads)}
    with ReplayDataset(server.address, TABLE, 8, transform=transform, **options) as dataset:  # type: ignore[arg-type]
        batches = [next(dataset) for _ in range(20)]
    for batch in batches:
        assert batch["name"] == "walks"
        assert (batch["last"] < 20).all()
        assert len(batch.keys) == len(batch["last"]) == 8
    assert all(name.startswith("decode-") for name in ran_in) is bool(threads)


def test_mask_of_a_batch_is_that_of_its_items_whatever_a_transform_returns(server: LocalServer) -> None:
    """Here columns without steps, of items that repeat their only step once."""
    _fill(server, TABLE, 20)

    def transform(rows: ItemRows) -> dict[str, object]:
        return {"last": rows.columns["number"][rows.index[:, -1]]}

    with ReplayDataset(server.address, TABLE, 4, transform=transform, timeout_s=WAIT_S) as dataset:
        assert next(dataset).mask.tolist() == [[False, True]] * 4


def test_exponent_may_follow_a_schedule(server: LocalServer) -> None:
    """It is asked for at each sample."""
    _fill(server, TABLE, 12)
    beta = [0.0]
    with ReplayDataset(server.address, TABLE, 64, beta=lambda: beta[0], prefetch=1, timeout_s=WAIT_S) as dataset:
        first = next(dataset)
        assert first.weights.tolist() == [1.0] * 64
        dataset.update_priorities(first, np.where(first.keys == first.keys[0], 9.0, 1.0), WAIT_S)
        beta[0] = 1.0
        wait_until(lambda: min(next(dataset).weights) == pytest.approx(1 / 9), "the weights of the exponent")


def test_epochs_end_after_their_last_batch_with_a_thread(server: LocalServer) -> None:
    """Each item comes once in each epoch, and nothing is lost that was decoded ahead."""
    table = replace(TABLE, sampler=SelectorConfig(SelectorKind.UNIFORM))
    _fill(server, table, 30)
    options = {"epochs": 2, "allow_smaller": True, "timeout_s": WAIT_S}
    with ReplayDataset(server.address, table, 8, decoding=Decoding(threads=1), **options) as dataset:  # type: ignore[arg-type]
        keys = [key for batch in dataset for key in batch.keys.tolist()]
    assert sorted(keys) == sorted(2 * list(set(keys)))
    assert len(keys) == 60
    with pytest.raises(InvalidArgument, match=naming("decoding.threads 2 0 1")):
        ReplayDataset(server.address, table, 8, decoding=Decoding(threads=2), **options)  # type: ignore[arg-type]


def test_priorities_are_sent_in_the_background(server: LocalServer) -> None:
    """They arrive without the caller's waiting; those that wait when the dataset is closed arrive, too."""
    _fill(server, TABLE, 8)
    with ReplayDataset(server.address, TABLE, 4, timeout_s=WAIT_S, item_counts=True, prefetch=1) as dataset:
        batch = next(dataset)
        dataset.priorities.send(batch.keys, np.full(4, 5.0))
    table = server.replay.find("t")
    slots, _ = table.items.find(batch.keys)
    assert table.items.priorities[slots].tolist() == [5.0] * len(slots)
    assert dataset.priorities_dropped == 0


def test_priorities_that_the_only_server_does_not_take_are_counted(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that one of several does not take."""

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("the server is away")

    _fill(server, TABLE, 8)
    with ReplayDataset(server.address, TABLE, 4, timeout_s=WAIT_S) as dataset:
        batch = next(dataset)
        monkeypatch.setattr(ReplayClient, "update_priorities", refuse)
        dataset.priorities.send(batch.keys, np.full(4, 5.0))
        wait_until(lambda: dataset.priorities_dropped == 4, "the priorities to be counted")


@pytest.mark.parametrize("ends", ["close", "stop"])
@pytest.mark.parametrize("kind", ["dataset", "dataset with threads", "sampler"])
def test_long_take_ends_with_its_dataset_or_sampler(server: LocalServer, kind: str, ends: str) -> None:
    """A thread that may wait for long notices soon that there is no more to wait for."""
    stop = threading.Event()
    sampling: ReplayDataset | ReplaySampler
    if kind == "sampler":
        sampling = ReplaySampler(server.address, TABLE, 4, create=True, stop=stop)
    else:
        decoding = Decoding(threads=2 if "threads" in kind else 0)
        sampling = ReplayDataset(server.address, TABLE, 4, decoding=decoding, create=True, stop=stop)
    taken: list[object] = []

    def take() -> None:
        with suppress(StopIteration):
            taken.append(sampling.take(WAIT_S))

    with sampling:
        waiting = threading.Thread(target=take, daemon=True)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        if ends == "close":
            sampling.close()
        else:
            stop.set()
        waiting.join(WAIT_S / 2)
        assert not waiting.is_alive()
    assert taken in ([], [None])


def test_batches_stop_when_the_dataset_is_closed(server: LocalServer) -> None:
    """A thread that waits for a batch is told, and the decoding threads end."""
    before = set(threading.enumerate())
    dataset = ReplayDataset(server.address, TABLE, 4, decoding=Decoding(threads=2), create=True)
    ended: list[object] = []
    waiting = threading.Thread(target=lambda: ended.append(next(dataset, "over")))
    waiting.start()
    assert dataset.take(0.0) is None
    dataset.close()
    waiting.join(WAIT_S)
    assert ended == ["over"]
    wait_until(lambda: not any("decode" in thread.name for thread in set(threading.enumerate()) - before), "the end")
