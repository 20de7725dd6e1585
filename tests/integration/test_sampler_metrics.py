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
