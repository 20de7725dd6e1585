"""Services that an actor needs to start."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from tests.support.naming import naming
from tidemill.config.run import ClusterSettings
from tidemill.config.sections import ActorConfig
from tidemill.errors import Unavailable
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.actor.__main__ import services_answer


def test_actor_ends_when_no_inference_service_answers() -> None:
    """It needs one to act, as it needs the replay service, whose place another server takes here."""
    with BackgroundServer("test", ServerSettings(grace_s=0.1)) as server:
        cluster = ClusterSettings(replay=(server.start(),), inference=("127.0.0.1:1",), connect_timeout_s=0.2)
        config = dataclasses.replace(ActorConfig(), cluster=cluster)
        with pytest.raises(Unavailable, match=naming("cluster.inference (127.0.0.1:1) 0.2")):
            services_answer(config, threading.Event())
