"""What actors and simulators that no launcher started take for the beginning of the run, for their seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.free_ports import free_address
from tests.support.params_service import METADATA, LocalServer
from tidemill.acting.continued_from import continued_from
from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.sections import ActorConfig
from tidemill.config.services import ActorSettings
from tidemill.errors import Unimplemented
from tidemill.params.client import ParamsClient
from tidemill.params.version import Precision
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.actor.__main__ import first_seed, training_seed


def _publish(client: ParamsClient, learner_steps: int) -> None:
    granted = client.acquire_fencing_token("learner")
    client.publish(
        {Precision.FULL: b"x"},
        replace(METADATA, learner_steps=learner_steps),
        fencing_token=granted.fencing_token,
        base_version=granted.latest_version,
    )


def test_actor_plays_other_episodes_in_each_start_of_a_run_whatever_the_replay_service_knows(
    server: LocalServer, client: ParamsClient
) -> None:
    """A run requeued without the log of its replay service; its first start has the seeds of the run's alone."""
    cluster = ClusterSettings(params=server.address)
    named = ActorConfig(cluster=cluster, actor=ActorSettings(id="actor-0"))
    unnamed = ActorConfig(cluster=cluster)

    def seeds() -> list[int]:
        return [first_seed(config, name, 0, 0) for config, name in ((named, "actor-0"), (unnamed, "actor-0-1"))]

    assert seeds()[0] == training_seed(1, 0)
    starts = [seeds()]
    _publish(client, learner_steps=0)
    assert seeds() == starts[0]  # what an actor finds whose learner was faster
    for learner_steps in (0, 100, 200):
        _publish(client, learner_steps)
        starts.append(seeds())
    assert all(len(set(each)) == 4 for each in zip(*starts, strict=True))
    launched = replace(named, run=RunSettings(continued_from=0))
    assert first_seed(launched, "actor-0", 0, 0) == training_seed(1, 0)


def test_first_version_of_another_server_is_no_beginning_if_it_was_trained(
    server: LocalServer, client: ParamsClient
) -> None:
    """The learner has its checkpoint, and the parameter server has lost its folder."""
    _publish(client, learner_steps=100)
    assert continued_from(ActorConfig(cluster=ClusterSettings(params=server.address))) == 1


def test_run_is_taken_for_new_where_the_parameter_server_is_not_reached() -> None:
    """An actor of an inference service needs none."""
    assert continued_from(ActorConfig(cluster=ClusterSettings(params=free_address()))) == 0


def test_actor_of_an_inference_service_starts_whatever_answers_as_the_parameter_server() -> None:
    """It needs none, and the default address may be that of another user's program; any other actor ends there."""
    with BackgroundServer("test", ServerSettings(grace_s=0.2)) as another:
        cluster = ClusterSettings(params=another.start())
        with pytest.raises(Unimplemented):
            continued_from(ActorConfig(cluster=cluster))
        with capture_logs() as lines:
            assert continued_from(ActorConfig(cluster=replace(cluster, inference=(free_address(),)))) == 0
    assert [line["address"] for line in lines] == [cluster.params]
