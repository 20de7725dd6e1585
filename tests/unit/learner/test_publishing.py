"""Parameters on their way to the parameter server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from tidemill.config.load import from_document
from tidemill.config.sections import LearnerConfig
from tidemill.errors import ConfigError
from tidemill.params.blob import unpack
from tidemill.params.publisher import StalePublisher
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.services.learner.learner import publish_least_s
from tidemill.services.learner.publishing import PolicyPublisher

_WAIT_S = 120.0


class _Connection:
    """Takes offers as a `ParamsPublisher` does, and makes their bytes at `flush`."""

    def __init__(self) -> None:
        self.offers: list[tuple[Callable[[], Mapping[Precision, bytes]], ParamsMetadata]] = []
        self.sent: list[tuple[Mapping[Precision, bytes], ParamsMetadata]] = []
        self.error: Exception | None = None
        self.closed = False

    @property
    def version(self) -> int:
        return len(self.sent)

    def offer(self, blobs: Callable[[], Mapping[Precision, bytes]], metadata: ParamsMetadata) -> None:
        self.offers.append((blobs, metadata))

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def flush(self, timeout_s: float) -> bool:
        self.sent += [(blobs(), metadata) for blobs, metadata in self.offers]
        self.offers = []
        return True

    def close(self) -> None:
        self.closed = True


def _publisher(connection: _Connection, weight: Tensor, *, with_half: bool = True) -> PolicyPublisher:
    return PolicyPublisher(
        connection,  # type: ignore[arg-type]
        lambda: {"weight": weight.clone()},
        lambda: ParamsMetadata(algorithm="sac", learner_steps=int(weight[0])),
        with_half=with_half,
    )


def test_parameters_are_those_of_the_moment() -> None:
    """Both encodings hold what the weight was at the call, not what it became."""
    connection, weight = _Connection(), torch.tensor([2.0, 0.1])
    publisher = _publisher(connection, weight)
    publisher.publish()
    weight += 5
    assert publisher.flush(_WAIT_S)
    ((blobs, metadata),) = connection.sent
    assert metadata.learner_steps == 2
    np.testing.assert_array_equal(unpack(blobs[Precision.FULL])["weight"], np.array([2.0, 0.1], np.float32))
    np.testing.assert_array_equal(unpack(blobs[Precision.HALF])["weight"], np.array([2.0, 0.1], np.float16))
    assert publisher.version == 1
    publisher.close()
    assert connection.closed


def test_state_around_the_parameters_is_kept_with_each_publish() -> None:
    """A snapshot is taken once for each accepted call, and not by a learner that was superseded."""
    connection, kept = _Connection(), [0]

    def take_snapshot() -> None:
        kept[0] += 1

    publisher = PolicyPublisher(connection, dict, ParamsMetadata, with_half=False, take_snapshot=take_snapshot)  # type: ignore[arg-type]
    publisher.publish()
    publisher.publish()
    assert publisher.flush(_WAIT_S)
    connection.error = StalePublisher("superseded")
    with pytest.raises(StalePublisher):
        publisher.publish()
    assert kept == [2]
    publisher.close()


@pytest.mark.parametrize("with_half, weight", [(False, 1.0), (True, 1e6)])
def test_half_precision_is_left_out(with_half: bool, weight: float) -> None:
    """When it is not wanted, and when a value does not fit."""
    connection = _Connection()
    publisher = _publisher(connection, torch.tensor([weight]), with_half=with_half)
    publisher.publish()
    assert publisher.flush(_WAIT_S)
    assert list(connection.sent[0][0]) == [Precision.FULL]
    publisher.close()


def test_newer_learner_is_noticed_by_the_next_call() -> None:
    """`publish` and `check` raise what ended publishing."""
    connection = _Connection()
    publisher = _publisher(connection, torch.zeros(1))
    connection.error = StalePublisher("superseded")
    for call in (publisher.publish, publisher.check):
        with pytest.raises(StalePublisher):
            call()
    publisher.close()


@pytest.mark.parametrize(
    "settings, device, least_s",
    [
        ({}, "cuda:0", 0.2),
        ({}, "cpu", 0.0),
        ({"agent": {"algorithm": "ppo"}}, "cuda:0", 0.0),
        ({"agent": {"algorithm": "impala"}}, "cuda:0", 0.0),
        ({"learner": {"publish_least_s": 0.0}}, "cuda:0", 0.0),
        ({"learner": {"publish_least_s": 1.5}}, "cpu", 1.5),
        ({"run": {"deterministic": True}, "learner": {"publish_least_s": 1.5}}, "cpu", 0.0),
    ],
)
def test_versions_are_spaced_where_a_gpu_learns_from_a_replay(
    settings: dict[str, dict[str, object]], device: str, least_s: float
) -> None:
    """Not where actors wait for each version, and as it is asked for."""
    document = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}} | settings
    assert publish_least_s(from_document(LearnerConfig, document), torch.device(device)) == least_s


@pytest.mark.parametrize("algorithm, least_s", [("ppo", 0.5), ("dqn", -0.5)])
def test_time_between_versions_is_checked(algorithm: str, least_s: float) -> None:
    """Actors of PPO wait for each version."""
    document = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": algorithm}}
    with pytest.raises(ConfigError, match=r"learner\.publish_least_s"):
        from_document(LearnerConfig, document | {"learner": {"publish_least_s": least_s}})
