"""The thread that owns the network: takes newer parameters, and passes batches of steps through it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray

from tidemill.acting.params import load_params
from tidemill.inference.wire import Answer
from tidemill.params.version import Params
from tidemill.params.watcher import ParamsWatcher
from tidemill.rl.agents.interface import NoiseRows, Policy, SplitPolicy
from tidemill.rl.policy_io import PolicyInput, join
from tidemill.services.inference.batcher import Batcher
from tidemill.services.inference.metrics import Metrics

_STOP_CHECK_S = 0.5
_JOIN_S = 30.0

_log = structlog.get_logger()


@dataclass(frozen=True)
class PendingStep:
    """One actor's step.

    Attributes:
        policy_input: What the policy sees; nobody changes it before the answer.
        noise: Where a noisy network's noise comes from.
        answer: Called with the answer, in the network's thread.
        evaluation: Whether the answer is the action thought best, as `action`, in place of the network's output. It is
            that of the version under evaluation, if there is one.
    """

    policy_input: PolicyInput
    noise: NoiseRows
    answer: Callable[[Answer], None]
    evaluation: bool = False


class ForwardThread:
    """Answers steps in batches until it is closed."""

    def __init__(
        self,
        policy: Policy,
        watcher: ParamsWatcher,
        batcher: Batcher[PendingStep],
        metrics: Metrics,
        on_error: Callable[[BaseException], None],
        evaluating: Policy | None = None,
    ) -> None:
        """Start the thread, which first waits for parameters.

        Args:
            policy: A `SplitPolicy`; its network is then this thread's.
            watcher: Brings the parameters.
            batcher: Where steps wait; then this object's.
            metrics: Counts.
            on_error: Called in the thread with what ended it.
            evaluating: Another policy like `policy`, for `evaluate_with`; then this object's.
        """
        assert isinstance(policy, SplitPolicy)
        self._policy: Policy = policy
        self._split: SplitPolicy = policy
        self._watcher, self._batcher, self._metrics, self._on_error = watcher, batcher, metrics, on_error
        self._changed = threading.Condition()
        self._actors = 0
        self._closing = False
        self.newest: Params | None = None
        """Those that steps are answered with."""
        self._version = self._env_steps = self._learner_steps = 0
        self._evaluating = evaluating
        self._wanted: Params | None = None  # what is evaluated
        self._loaded: Params | None = None
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    def submit(self, step: PendingStep) -> None:
        """Let a step wait for its forward pass; each actor has at most one there."""
        with self._changed:
            self._batcher.add(step, len(step.policy_input), time.monotonic())
            self._changed.notify()

    async def answer(self, policy_input: PolicyInput, noise: NoiseRows, *, evaluation: bool = False) -> Answer:
        """Wait in the event loop for the answer to a step, see `PendingStep`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def resolve(value: Answer) -> None:
            if not answer.done():  # its call may have ended meanwhile
                answer.set_result(value)

        def tell(value: Answer) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(resolve, value)

        step = PendingStep(policy_input, noise, tell, evaluation)
        self.submit(step)
        try:
            return await answer
        except asyncio.CancelledError:  # nothing else takes it while there are no parameters
            with self._changed:
                self._batcher.remove(step)
            raise

    def evaluate_with(self, params: Params | None) -> None:
        """Have steps of evaluations answered with these parameters from now on; None: with the newest."""
        self._wanted = params

    def count_actors(self, change: int) -> None:
        """Add to the number of connected actors, for whose steps a batch waits."""
        with self._changed:
            self._actors += change
            self._changed.notify()

    def close(self) -> None:
        """End the thread; steps that wait are not answered. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._closing and self._watcher.wait(_STOP_CHECK_S) is None:
                pass
            while (steps := self._next_batch()) is not None:
                self._refresh()
                if exploring := [step for step in steps if not step.evaluation]:
                    self._answer(exploring, self._explored, self._version)
                if evaluated := [step for step in steps if step.evaluation]:
                    policy, version = self._evaluator()
                    self._answer(evaluated, partial(_evaluated, policy), version)
        except BaseException as error:  # raised again by the owner
            self._on_error(error)

    def _next_batch(self) -> list[PendingStep] | None:
        """Wait for a batch that is due; return None to end."""
        with self._changed:
            while not self._closing:
                now_s = time.monotonic()
                if (cause := self._batcher.cause(now_s, self._actors)) is not None:
                    self._metrics.batches.labels(cause).inc()
                    taken = self._batcher.take()
                    for _, came_s in taken:
                        self._metrics.wait_seconds.observe(now_s - came_s)
                    return [step for step, _ in taken]
                self._changed.wait(self._batcher.deadline_s() - now_s if len(self._batcher) else _STOP_CHECK_S)
        return None

    def _refresh(self) -> None:
        params = self._watcher.newest()
        if params is None or params is self.newest:
            return
        _load(self._policy, params)
        self.newest = params
        metadata = params.version.metadata
        self._version, self._env_steps, self._learner_steps = params.number, metadata.env_steps, metadata.learner_steps
        self._metrics.params_version.set(self._version)

    def _explored(self, joined: PolicyInput, steps: list[PendingStep]) -> dict[str, NDArray[np.float32]]:
        output = self._split.forward(joined, [step.noise for step in steps])
        return {name: tensor.float().cpu().numpy() for name, tensor in output.items()}

    def _evaluator(self) -> tuple[Policy, int]:
        """Return the policy that answers evaluations, and the version of its parameters."""
        wanted = self._wanted
        if wanted is None or self._evaluating is None:
            return self._policy, self._version
        if wanted is not self._loaded:
            _load(self._evaluating, wanted)
            self._loaded = wanted
        return self._evaluating, wanted.number

    def _answer(
        self,
        steps: list[PendingStep],
        pass_through: Callable[[PolicyInput, list[PendingStep]], dict[str, NDArray[np.float32]]],
        version: int,
    ) -> None:
        inputs = [step.policy_input for step in steps]
        # of a single actor as it lies, so that its numbers are those of acting by itself to the last bit
        joined = inputs[0] if len(inputs) == 1 else join(inputs)
        with self._metrics.forward_seconds.time():
            arrays = pass_through(joined, steps)
        self._metrics.batch_rows.observe(len(joined))
        self._metrics.env_steps.inc(len(joined))
        first = 0
        for step in steps:
            rows = slice(first, first := first + len(step.policy_input))
            own = {name: array[rows] for name, array in arrays.items()}
            step.answer(Answer(version, self._env_steps, self._learner_steps, own))


def _load(policy: Policy, params: Params) -> None:
    load_params(policy, params.blob, params.number, params.version.metadata.algorithm)


def _evaluated(policy: Policy, joined: PolicyInput, _: list[PendingStep]) -> dict[str, NDArray[np.float32]]:
    output = policy.act(joined, evaluation=True)
    arrays = {"action": np.asarray(output.action, np.float32)}
    return arrays if output.recurrent_state is None else arrays | {"recurrent_state": output.recurrent_state}
