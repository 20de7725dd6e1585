"""Publishing of the agent's parameters to the parameter server, without a wait in the training thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import structlog
from torch import Tensor

from tidemill.params.blob import half, pack
from tidemill.params.publisher import ParamsPublisher
from tidemill.params.version import ParamsMetadata, Precision
from tidemill.services.learner.host_copies import Arrays, HostCopies
from tidemill.services.learner.status.divergence import check_finite

_log = structlog.get_logger()


class PolicyPublisher:
    """Publishes copies of the agent's parameters; only the newest one waits while another is on its way.

    The training thread pays for `Agent.policy_state`, copies on the device, and for nothing else: the publisher's
    thread takes them off the device (`HostCopies`), serialises and sends them.
    """

    def __init__(
        self,
        publisher: ParamsPublisher,
        policy_state: Callable[[], Mapping[str, Tensor]],
        metadata: Callable[[], ParamsMetadata],
        *,
        with_half: bool,
        take_snapshot: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the parts.

        Args:
            publisher: Sends the parameters; closed with this.
            policy_state: Returns copies of the agent's parameters, on its device.
            metadata: Returns the metadata of the current parameters.
            with_half: Whether a float16 encoding is published beside the full one.
            take_snapshot: Called at each `publish`, to keep the state that the parameters are a part of.
        """
        self._publisher, self._policy_state, self._metadata = publisher, policy_state, metadata
        self._with_half, self._take_snapshot = with_half, take_snapshot
        self._copies = HostCopies()

    @property
    def version(self) -> int:
        """Newest version of this learner that the server acknowledged; 0 before the first."""
        return self._publisher.version

    def publish(self) -> None:
        """Take the parameters as they are now; never blocks.

        Raises:
            Diverged: Earlier parameters were not finite; none were sent since.
            StalePublisher: A newer learner publishes now.
        """
        self.check()
        arrays, metadata = self._copies.begin(self._policy_state()), self._metadata()
        self._take_snapshot()
        self._publisher.offer(partial(_encode, arrays, metadata, with_half=self._with_half), metadata)

    def check(self) -> None:
        """Raise the error that ended publishing, such as `StalePublisher`; never blocks."""
        self._publisher.check()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the newest parameters are acknowledged; return whether they were within `timeout_s`."""
        return self._publisher.flush(timeout_s)

    def close(self) -> None:
        """End the publisher without sending what waits. May be called twice."""
        self._publisher.close()


def _encode(copied: Callable[[], Arrays], metadata: ParamsMetadata, *, with_half: bool) -> dict[Precision, bytes]:
    """Return the parameters as safetensors by precision; full precision alone where a value does not fit float16.

    Raises:
        Diverged: A value is not finite.
    """
    arrays = copied()
    check_finite(arrays.values(), "parameters")
    blobs = {Precision.FULL: pack(arrays, metadata)}
    if with_half:
        rounded = half(arrays)
        if rounded is None:
            _log.warning("parameters do not fit float16, only full precision is published")
        else:
            blobs[Precision.HALF] = pack(rounded, metadata)
    return blobs
