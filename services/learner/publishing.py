"""Takes the agent's parameters to the parameter server without making the training thread wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from numpy.typing import NDArray
from torch import Tensor

from tidemill.params.blob import half, pack
from tidemill.params.publisher import ParamsPublisher
from tidemill.params.version import ParamsMetadata, Precision

_JOIN_S = 5.0

_log = structlog.get_logger()
_Offer = tuple[Mapping[str, Tensor], ParamsMetadata]


class PolicyPublisher:
    """Copies parameters off the device and serialises them in a thread; only the newest offer counts.

    The training thread pays for `Agent.policy_state`, copies on the device, and for nothing else.
    """

    def __init__(
        self,
        publisher: ParamsPublisher,
        policy_state: Callable[[], Mapping[str, Tensor]],
        metadata: Callable[[], ParamsMetadata],
        *,
        with_half: bool,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            publisher: Sends what was serialised; closed with this.
            policy_state: Returns copies of the agent's parameters, on its device.
            metadata: Returns what the parameters are at this moment.
            with_half: Whether a float16 encoding is published beside the full one.
            keep: Called at each `publish`, to keep the state that the parameters are a part of.
        """
        self._publisher, self._policy_state, self._metadata = publisher, policy_state, metadata
        self._with_half, self._keep = with_half, keep
        self._changed = threading.Condition()
        self._pending: _Offer | None = None
        self._is_packing, self._closing = False, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        """Newest version of this learner that the server acknowledged; 0 before the first."""
        return self._publisher.version

    @property
    def generation(self) -> int:
        """Generation of this learner as a publisher."""
        return self._publisher.generation

    def publish(self) -> None:
        """Take the parameters as they are now; never blocks.

        Raises:
            StalePublisher: A newer learner publishes now.
        """
        self.check()
        offer = (self._policy_state(), self._metadata())
        self._keep()
        with self._changed:
            self._pending = offer
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what ended publishing for good, such as `StalePublisher`; never blocks."""
        if self._error is not None:
            raise self._error
        self._publisher.flush(0.0)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was offered is acknowledged; return whether it was within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is None and not self._is_packing, timeout_s)
        self.check()
        return self._publisher.flush(timeout_s)

    def close(self) -> None:
        """End the threads without sending what waits. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._publisher.close()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while (offer := self._take()) is not None:
                self._hand_on(*offer)
                self._settle()
        except BaseException as error:  # re-raised in the training thread
            self._error = error
            self._settle()

    def _take(self) -> _Offer | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None or self._closing)
            offer, self._pending = self._pending, None
            self._is_packing = offer is not None
            return None if self._closing else offer

    def _settle(self) -> None:
        with self._changed:
            self._is_packing = False
            self._changed.notify_all()

    def _hand_on(self, state: Mapping[str, Tensor], metadata: ParamsMetadata) -> None:
        arrays: dict[str, NDArray[Any]] = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        blobs = {Precision.FULL: pack(arrays, metadata)}
        if self._with_half:
            rounded = half(arrays)
            if rounded is None:
                _log.warning("parameters do not fit float16, only full precision is published")
            else:
                blobs[Precision.HALF] = pack(rounded, metadata)
        self._publisher.offer(blobs, metadata)
