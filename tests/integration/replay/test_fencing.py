"""Two learners of one table: the server keeps the older one from setting priorities, whatever it was frozen in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.naming import because, naming
from tests.support.replay_shards import fill, local_shards
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import FailedPrecondition, Reason
from tidemill.replay.client import ReplayClient
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


def _updates(addresses: list[str]) -> int:
    total = 0
    for address in addresses:
        with ReplayClient(address) as client:
            total += client.describe_table("t").priority_updates
    return total
