"""Parameters that do not fit the network of an inference service or an actor."""

from __future__ import annotations

import queue
from contextlib import closing
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry

from tests.support.batches import VECTOR
from tests.support.inference_service import FixedParams, Played, state_of
from tests.support.naming import naming
from tests.support.waiting import WAIT_S
from tidemill.errors import FatalError
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import NoiseRows
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import AgentConfig
from tidemill.services.actor.acting.loop import PolicyParams
from tidemill.services.inference.batcher import Batcher
from tidemill.services.inference.forward_thread import ForwardThread, PendingStep
from tidemill.services.inference.metrics import Metrics

_OWN = DQNConfig(network="mlp", hidden_sizes=(8,), exploration="schedule")
_OTHERS = [
    pytest.param(DQNConfig(network="mlp", hidden_sizes=(16,)), id="other size"),
    pytest.param(DQNConfig(network="mlp", hidden_sizes=(8, 8)), id="other layers"),
]


def _published(config: AgentConfig) -> Any:  # noqa: ANN401 - a stand-in
    """Return a watcher that has version 3 of an algorithm."""
    params = FixedParams()
    params.set(state_of(config, VECTOR), number=3, algorithm=config.algorithm)
    return params


@pytest.mark.parametrize("config", _OTHERS)
def test_parameters_of_another_network_end_an_actor_in_one_line(config: AgentConfig) -> None:
    """It names the version, its algorithm and the settings."""
    params = PolicyParams(_published(config), build_policy(_OWN, VECTOR))
    with pytest.raises(FatalError, match=naming("version 3 dqn agent.*")) as caught:
        params.refresh()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("config", _OTHERS)
def test_parameters_of_another_network_end_the_service_in_one_line(config: AgentConfig) -> None:
    """The thread tells its owner."""
    errors = queue.SimpleQueue[BaseException]()
    policy, metrics = build_policy(_OWN, VECTOR), Metrics(CollectorRegistry())
    with closing(ForwardThread(policy, _published(config), Batcher(64, 0.0), metrics, errors.put)) as forward:
        seen = Played(VECTOR, 1, 0).next()
        forward.submit(PendingStep(seen, NoiseRows(torch.Generator(), 1), lambda _: None))
        error = errors.get(timeout=WAIT_S)
    assert isinstance(error, FatalError)
    with pytest.raises(FatalError, match=naming("version 3 dqn agent.*")):
        raise error
