"""What a sampler's connections report to Prometheus."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.proxy import Proxy
from tests.support.replay_service import local_server, open_appender, write
from tests.support.replay_streams import make_config
from tests.support.waiting import WAIT_S, wait_until
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.dataset import ReplayDataset
from tidemill.replay.table_config import shard_config
from tidemill.services.learner.status.metrics import SamplerCollector


def _reconnects(collector: SamplerCollector) -> float:
    """Return tidemill_learner_sample_reconnects_total, as Prometheus scrapes it."""
    samples = [sample for metric in collector.collect() for sample in metric.samples]
    return next(sample.value for sample in samples if sample.name == "tidemill_learner_sample_reconnects_total")


@pytest.mark.parametrize("servers", [1, 2])
def test_reopened_sample_streams_are_counted(servers: int) -> None:
    """Nothing at first; after every cut of the connections, more than before."""
    config = make_config()
    with ExitStack() as stack:
        proxies = []
        for _ in range(servers):
            server = stack.enter_context(local_server())
            with ReplayClient(server.address) as client:
                client.create_table(shard_config(config, servers))
            with open_appender(server.address) as appender:
                write(appender, range(8))
                assert appender.flush(WAIT_S)
            proxies.append(stack.enter_context(Proxy(server.address)))
        dataset = stack.enter_context(
            ReplayDataset([proxy.address for proxy in proxies], config, batch_size=4, timeout_s=WAIT_S)
        )
        collector = SamplerCollector(dataset)
        next(dataset)
        assert _reconnects(collector) == 0
        for _ in range(2):
            before = _reconnects(collector)
            proxies[-1].cut()
            wait_until(lambda before=before: _reconnects(collector) > before, "the stream is opened again")  # type: ignore[misc]
            next(dataset)


def _fates(collector: SamplerCollector) -> list[float]:
    """Return the priorities that were dropped by shards, and those whose item had left its shard."""
    samples = [sample for metric in collector.collect() for sample in metric.samples]
    names = ("_shard_priorities_dropped_total", "_shard_unknown_keys_total")
    return [sample.value for name in names for sample in samples if sample.name.endswith(name)]


def test_lost_priorities_of_shards_are_those_of_the_first_table() -> None:
    """Where the items of a source have left it, no number of the run's own table changes."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(local_server()).address for _ in range(2)]
        clients = [stack.enter_context(ReplayClient(address)) for address in addresses]
        for address, client in zip(addresses, clients, strict=True):
            for name in ("t", "other"):
                client.create_table(shard_config(make_config(name), 2))
                with open_appender(address, f"of-{name}", tables=(name,)) as appender:
                    write(appender, range(8))
                    assert appender.flush(WAIT_S)
        tables = {"t": 0.5, "other": 0.5}
        dataset = stack.enter_context(ReplayDataset(addresses, tables, batch_size=4, timeout_s=WAIT_S))
        collector = SamplerCollector(dataset)
        batch = next(dataset)
        assert sum(client.reset_table("other") for client in clients) == 16
        dataset.update_priorities(batch, [1.0] * 4)
        wait_until(lambda: dataset.unknown_keys == 2, "the priorities of the source to be answered")
        assert _fates(collector) == [0.0, 0.0]


def test_metrics_of_shards_are_those_of_the_first_table() -> None:
    """A second table on the same servers, one of which has no part of it, changes no number of a shard."""
    own, other = make_config(), make_config("other")
    with ExitStack() as stack:
        servers = [stack.enter_context(local_server()) for _ in range(2)]
        addresses = [server.address for server in servers]
        for address in addresses:
            with ReplayClient(address) as client:
                client.create_table(shard_config(own, 2))
        with ReplayClient(addresses[0]) as client:
            client.create_table(other)
        dataset = stack.enter_context(ReplayDataset(addresses, {"t": 0.5, "other": 0.5}, batch_size=4))
        collector = SamplerCollector(dataset)

        def live() -> list[tuple[str, float]]:
            samples = [sample for metric in collector.collect() for sample in metric.samples]
            return [(each.labels["shard"], each.value) for each in samples if each.name.endswith("_shard_live")]

        wait_until(lambda: live() == [("0", 1.0), ("1", 1.0)], "both shards")
        names = [f"{sample.name} {sample.labels}" for metric in collector.collect() for sample in metric.samples]
        assert len(names) == len(set(names))
