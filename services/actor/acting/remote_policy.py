"""A policy whose network an inference service passes through; it explores here, as it would by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge
from torch import Tensor

from tidemill.errors import Reason, ResourceExhausted, TidemillError, Unavailable
from tidemill.inference.client import InferenceClient
from tidemill.inference.wire import Answer
from tidemill.rl.agents.interface import Policy, SplitPolicy
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.rpc.channel import Backoff
from tidemill.services.actor.acting.loop import ActingStopped, PolicyParams

_LOST = Counter("tidemill_actor_inference_lost_total", "Times the inference service was lost while acting.")
_LOCAL = Gauge("tidemill_actor_inference_local", "1 while the actor acts by its own network in the service's place.")

_log = structlog.get_logger()


class RemotePolicy:
    """Acts by the output that a service answers; while none does it waits, or acts by its own network."""

    def __init__(
        self,
        policy: Policy,
        client: InferenceClient,
        stop: threading.Event,
        fallback: PolicyParams | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put the parts together.

        Args:
            policy: Explores; a `SplitPolicy`.
            client: Reaches the service; closed by the caller.
            stop: Ends every wait.
            fallback: Keeps the policy's own network fresh, to act by while no service answers; None: wait.
            clock: Monotonic time in seconds.
        """
        assert isinstance(policy, SplitPolicy)
        self._policy: Policy = policy
        self._split: SplitPolicy = policy
        self._client, self._stop, self._fallback, self._clock = client, stop, fallback, clock
        self._backoff = Backoff()
        self._lost: set[str] = set()  # how, since the last answer; empty while the service answers
        self._try_at_s = 0.0
        self.version = 0
        """Version of the parameters that the last step was acted with."""
        self.env_steps = 0
        """Agent decisions of the whole cluster when they were published."""
        self.learner_steps = 0
        """Updates behind them."""
        threading.Thread(target=self._interrupt_at_stop, name="inference-stop", daemon=True).start()

    @property
    def recurrent_state_size(self) -> int:
        """Numbers of each environment's recurrent state."""
        return self._policy.recurrent_state_size

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load the own network."""
        self._policy.load(state)

    def refresh(self) -> None:
        """Do nothing: the service follows the newest parameters."""

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        """Choose one action for each environment, to explore.

        Raises:
            ActingStopped: `stop` came before an answer.
        """
        assert not evaluation, "actors explore"
        answer = self._ask(policy_input)
        if answer is None:
            assert self._fallback is not None
            self._fallback.refresh()
            self._acted_with(self._fallback.version, self._fallback.env_steps, self._fallback.learner_steps)
            return self._policy.act(policy_input, max(env_steps, self.env_steps))
        self._acted_with(answer.params_version, answer.env_steps, answer.learner_steps)
        output = {name: torch.from_numpy(array) for name, array in answer.arrays.items()}
        return self._split.choose(policy_input, output, max(env_steps, self.env_steps))

    def initial_priority(self, steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the initial priorities of windows; see `Policy`."""
        if self._fallback is not None and self._split.priority_uses_params:
            self._fallback.refresh()
        return self._policy.initial_priority(steps)

    def _ask(self, policy_input: PolicyInput) -> Answer | None:
        """Return the service's answer; None to act by the own network."""
        while not self._stop.is_set():
            if self._lost and self._fallback is not None and not self._may_try():
                return None
            try:
                answer = self._client.ask(policy_input)
            except (Unavailable, ResourceExhausted) as error:
                self._lose(error)
                if self._fallback is None:
                    self._stop.wait(self._backoff.next_s())
                continue
            self._found()
            return answer
        raise ActingStopped

    def _acted_with(self, version: int, env_steps: int, learner_steps: int) -> None:
        self.version, self.env_steps, self.learner_steps = version, env_steps, learner_steps

    def _may_try(self) -> bool:
        """True if the service may be asked again; looks for a connection in the background, at growing intervals."""
        if self._clock() < self._try_at_s:
            return False
        self._try_at_s = self._clock() + self._backoff.next_s()
        return self._client.is_connected()

    def _lose(self, error: TidemillError) -> None:
        if self._stop.is_set():
            return
        if not self._lost:
            _LOST.inc()
            _LOCAL.set(self._fallback is not None)
        is_full = error.reason is Reason.TOO_MANY_CALLS
        how = "is full (raise inference.max_streams, or start more services)" if is_full else "lost"
        if how not in self._lost:
            action = "waiting for it" if self._fallback is None else "acting with its own network"
            _log.warning(f"inference service {how}, {action}", kind=type(error).__name__, error=str(error))
            self._lost.add(how)

    def _found(self) -> None:
        if self._lost:
            _log.info("inference service answers again", address=self._client.address)
            _LOCAL.set(0)
            self._lost.clear()
        self._backoff.reset()

    def _interrupt_at_stop(self) -> None:
        self._stop.wait()
        self._client.interrupt()
