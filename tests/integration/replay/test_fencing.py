"""Two learners of one table: the server keeps the older one from setting priorities, whatever it was frozen in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.naming import because, naming
from tests.support.replay_service import server_process
from tests.support.replay_shards import fill, local_shards
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, Reason
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.dataset import ReplayDataset
from tidemill.replay.sampling.priorities import PriorityMessages
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import SelectorConfig, SelectorKind

_RANKED = make_config(sampler=SelectorConfig(SelectorKind.PRIORITIZED, 1.0))


def test_older_fencing_token_is_refused() -> None:
    """Also after an equal or newer one came twice; nothing is set. A caller without one is never refused."""
    with local_shards(1, _RANKED) as (server,), ReplayClient(server.address) as client:
        fill(server.address, 0, [1.0] * 4)
        with ReplaySampler([server.address], _RANKED, 4) as sampler:
            keys = np.unique(next(sampler).keys)[:1]
        assert client.describe_table("t").fencing_token == 0
        for fencing_token in (2, 3, 3):
            assert client.update_priorities("t", keys, [5.0], fencing_token) == 1
        with pytest.raises(
            FailedPrecondition, match=naming("fencing 2 superseded 3"), check=because(Reason.FENCING_TOKEN_SUPERSEDED)
        ):
            client.update_priorities("t", keys, [50.0], 2)
        described = client.describe_table("t")
        assert (described.total_weight, described.priority_updates, described.fencing_token) == (3.0 + 5.0, 3, 3)
        assert client.update_priorities("t", keys, [7.0]) == 1


@pytest.mark.parametrize("servers", [1, 2])
def test_superseded_sampler_learns_of_it(servers: int) -> None:
    """With one server at once, with several, whose answers are not waited for, at a later call."""
    with local_shards(servers, _RANKED) as shards:
        addresses = [shard.address for shard in shards]
        for number, address in enumerate(addresses):
            fill(address, number, [1.0] * 4)
        with ReplaySampler(addresses, _RANKED, 4) as older:
            with ReplaySampler(addresses, _RANKED, 4) as newer:
                newer.update_priorities(next(newer).keys, np.full(4, 2.0), fencing_token=2)
                wait_until(lambda: _updates(addresses) >= 1, "the newer learner's priorities")
            updates = _updates(addresses)
            keys = np.concatenate([next(older).keys for _ in range(8)])

            def is_refused() -> bool:
                try:
                    older.update_priorities(keys, np.full(len(keys), 9.0), fencing_token=1)
                except FailedPrecondition as error:
                    return "superseded by 2" in str(error)
                return False

            if servers == 1:
                assert is_refused()
                assert _updates(addresses) == updates
            else:
                wait_until(is_refused, "the refusal", WAIT_S)


def test_token_that_came_without_priorities_counts() -> None:
    """A learner makes itself known so before it has any; an older one is refused even if it sends none."""
    with local_shards(1, _RANKED) as (server,), ReplayClient(server.address) as client:
        fill(server.address, 0, [1.0] * 4)
        nothing = np.zeros(0, np.uint64)
        assert client.update_priorities("t", nothing, [], 2) == 0
        assert client.describe_table("t").fencing_token == 2
        with pytest.raises(FailedPrecondition, check=because(Reason.FENCING_TOKEN_SUPERSEDED)):
            client.update_priorities("t", nothing, [], 1)


@pytest.mark.parametrize("servers", [1, 2])
def test_newer_learner_is_known_before_it_has_priorities(servers: int) -> None:
    """Each server hears of its token as it connects, and refuses the older learner, whose dataset says so."""
    with local_shards(servers, _RANKED) as shards:
        addresses = [shard.address for shard in shards]
        for number, address in enumerate(addresses):
            fill(address, number, [1.0] * 4)
        with _dataset(addresses, fencing_token=2) as newer:
            next(newer)
            for address in addresses:
                with ReplayClient(address) as client:
                    assert client.describe_table("t").fencing_token == 2
        with (
            _dataset(addresses, fencing_token=1) as older,
            pytest.raises(FailedPrecondition, check=because(Reason.FENCING_TOKEN_SUPERSEDED)),
        ):
            next(older)


def test_restarted_server_hears_of_the_newer_learner_as_it_connects_again(tmp_path: Path) -> None:
    """The token is in memory; the older learner is refused before the newer one has priorities for the server."""
    options = ("--folder", str(tmp_path))
    with server_process("127.0.0.1:0", *options) as first:
        address = first.address
        with ReplayClient(address) as client:
            client.create_table(_RANKED)
        fill(address, 0, [1.0] * 4)
        dataset = _dataset([address], fencing_token=2)
        next(dataset)
    with server_process(address, *options), dataset, ReplayClient(address) as client:
        wait_until(lambda: dataset.reconnects == 1, "the next call")
        assert client.describe_table("t").fencing_token == 2


def _dataset(addresses: list[str], fencing_token: int) -> ReplayDataset:
    messages = PriorityMessages(fencing_token=fencing_token)
    return ReplayDataset(addresses, _RANKED, 4, timeout_s=WAIT_S, priorities=messages, create=True)


def _updates(addresses: list[str]) -> int:
    total = 0
    for address in addresses:
        with ReplayClient(address) as client:
            total += client.describe_table("t").priority_updates
    return total
