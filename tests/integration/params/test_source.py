"""The evaluator's source of parameters, at a real parameter server."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import closing

from tests.support.params_service import METADATA, LocalServer
from tidemill.params.client import ParamsClient
from tidemill.params.version import Precision
from tidemill.services.evaluator.params_source import ParamsSource


def test_first_version_after_so_many_decisions(client: ParamsClient, server: LocalServer) -> None:
    """Of those that the server still has: it keeps the newest three."""
    token = client.acquire_fencing_token("learner").fencing_token
    for number in range(1, 6):
        metadata = dataclasses.replace(METADATA, env_steps=100 * number)
        client.publish({Precision.FULL: b"%d" % number}, metadata, fencing_token=token, base_version=number - 1)
    with closing(ParamsSource(server.address, threading.Event(), connect_timeout_s=10.0)) as source:
        found = [source.first_after(env_steps) for env_steps in (0, 350, 400, 501)]
    assert [params and params.number for params in found] == [3, 4, 4, None]
