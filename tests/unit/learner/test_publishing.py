"""Parameters on their way to the parameter server."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from tidemill.params.blob import unpack
from tidemill.params.publisher import StalePublisher
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.services.learner.publishing import PolicyPublisher

_WAIT_S = 120.0


class _Connection:
    """Takes offers as a `ParamsPublisher` does; can be held while one is packed."""

    generation = 3

    def __init__(self) -> None:
        self.offers: list[tuple[Mapping[Precision, bytes], ParamsMetadata]] = []
        self.error: Exception | None = None
        self.closed = False

    @property
    def version(self) -> int:
        return len(self.offers)

    def offer(self, blobs: Mapping[Precision, bytes], metadata: ParamsMetadata) -> None:
        self.flush(0)
        self.offers.append((blobs, metadata))

    def flush(self, timeout_s: float) -> bool:
        if self.error is not None:
            raise self.error
        return True

    def close(self) -> None:
        self.closed = True


class _Held(dict[str, Tensor]):
    """A state whose copy waits, as for a slow device."""

    def __init__(self) -> None:
        super().__init__(weight=torch.zeros(1))
        self.entered, self.release = threading.Event(), threading.Event()

    def items(self) -> object:  # type: ignore[override]
        self.entered.set()
        assert self.release.wait(_WAIT_S)
        return super().items()


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
    ((blobs, metadata),) = connection.offers
    assert metadata.learner_steps == 2
    np.testing.assert_array_equal(unpack(blobs[Precision.FULL])["weight"], np.array([2.0, 0.1], np.float32))
    np.testing.assert_array_equal(unpack(blobs[Precision.HALF])["weight"], np.array([2.0, 0.1], np.float16))
    assert (publisher.version, publisher.generation) == (1, 3)
    publisher.close()
    assert connection.closed


def test_state_around_the_parameters_is_kept_with_each_publish() -> None:
    """`keep` is called once for each accepted call, and not by a learner that was superseded."""
    connection, kept = _Connection(), [0]

    def keep() -> None:
        kept[0] += 1

    publisher = PolicyPublisher(connection, dict, ParamsMetadata, with_half=False, keep=keep)  # type: ignore[arg-type]
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
    assert list(connection.offers[0][0]) == [Precision.FULL]
    publisher.close()


def test_only_the_newest_of_waiting_parameters_is_sent() -> None:
    """A slow copy delays no step: of five publishes meanwhile the last one follows."""
    connection, held, weight = _Connection(), _Held(), torch.zeros(1)
    states: list[Mapping[str, Tensor]] = [held]
    publisher = PolicyPublisher(
        connection,  # type: ignore[arg-type]
        lambda: states.pop() if states else {"weight": weight.clone()},
        lambda: ParamsMetadata(learner_steps=int(weight[0])),
        with_half=False,
    )
    publisher.publish()
    assert held.entered.wait(_WAIT_S)
    assert connection.offers == []
    for _ in range(5):
        weight += 1
        publisher.publish()
    held.release.set()
    assert publisher.flush(_WAIT_S)
    assert [metadata.learner_steps for _, metadata in connection.offers] == [0, 5]
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


def test_fault_while_packing_is_raised_in_the_owner() -> None:
    """Parameters that cannot be serialised do not vanish in the background."""
    publisher = PolicyPublisher(
        _Connection(),  # type: ignore[arg-type]
        lambda: {"weight": torch.zeros(1, dtype=torch.complex64).to_sparse()},
        ParamsMetadata,
        with_half=False,
    )
    publisher.publish()
    publisher._thread.join(_WAIT_S)
    for call in (publisher.check, publisher.publish, lambda: publisher.flush(threading.TIMEOUT_MAX)):
        with pytest.raises(Exception, match=r".+"):
            call()
    publisher.close()
