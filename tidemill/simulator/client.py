"""The client of a program that has its own main loop: it sends what it sees and gets actions."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import socket
import time
from collections import deque
from typing import Any

import grpc
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.closing import Closing
from tidemill.errors import (
    FailedPrecondition,
    InvalidArgument,
    Reason,
    ResourceExhausted,
    TidemillError,
    Unavailable,
)
from tidemill.logger import LateLogger
from tidemill.replay.argument_types import check_address, check_number, check_type
from tidemill.rpc.channel import Backoff, open_channel
from tidemill.rpc.dialogue import Dialogue
from tidemill.settings.check import SAFE_NAME, is_safe_name
from tidemill.simulator.v1 import simulator_pb2 as pb
from tidemill.simulator.v1 import simulator_pb2_grpc
from tidemill.simulator.wire import Declared, SeenStep, observed, pack_open, pack_step, unpack_action
from tidemill.types import EnvSpec

_CLOSE_S = 1.0
_SILENT_S = 3.0
"""How long nothing answers before the client says so."""

_log = LateLogger()


class _EpisodeLost(Exception):
    """The service cannot continue the episode."""


class SimulatorClient(Closing):
    """Plays in a run as one environment, from a program that keeps its own main loop. Used by one thread.

    The service keeps stacks of observations and recurrent states, explores, and stores every step exactly once. A
    connection that breaks, and a service that is restarted, are waited for, and the episode continues; `begin` and
    `step` also wait while the learner holds its actors back. A program with several environments makes a client for
    each.

    Every method raises `InvalidArgument` for a value that does not fit, naming it; `FailedPrecondition` if the spaces
    are not those of the run, the client is closed, or this process was forked from the one that plays; `Unavailable` if
    no service answered for `timeout_s`, and `ResourceExhausted` if all of its slots were taken for as long.

    An episode is `action = simulator.begin(observation)` and then, until that returns None,
    `action = simulator.step(observation, reward, terminated=..., truncated=...)`.
    """

    def __init__(self, address: str, spec: EnvSpec, *, name: str = "", timeout_s: float = 60.0) -> None:
        """Prepare; nothing is connected before the first episode begins.

        Args:
            address: `host:port` or `unix:///path` of the service.
            spec: Spaces of the environment: shapes, dtypes, actions. The frame stack is the service's own.
            name: Names this client in messages and logs; empty takes one of the machine and the process.
            timeout_s: How long to try again where no service answers, in seconds. A warning in the log comes after 3 s.
        """
        check_address(address)
        check_type("spec", spec, EnvSpec, "an EnvSpec, as tidemill.declared_spec makes of spaces")
        check_number("timeout_s", timeout_s)
        if not timeout_s >= 0:
            raise InvalidArgument(f"timeout_s is {timeout_s}, allowed: 0 or more")
        if name and not is_safe_name(name):
            raise InvalidArgument(f"name is {name!r}, allowed: {SAFE_NAME}")
        host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64]
        self._declared = Declared(name or f"sim-{host}-{os.getpid()}-{secrets.token_hex(2)}", spec)
        self._address, self._spec, self._timeout_s = address, spec, timeout_s
        self._channel: grpc.Channel | None = None
        self._call: _Call | None = None
        # steps that a restart of the service would lose, with what was done; packed, as arrays may be the program's own
        self._kept: deque[pb.PlayRequest] = deque()
        self._next_step, self._is_playing, self._is_closed = 0, False, False
        self.params_version = 0
        """Version of the parameters that chose the newest action; 0 before the first."""
        self.run = ""
        """Name of the run; empty before the first episode."""

    def begin(
        self,
        observation: Any,  # noqa: ANN401 - nested as the user likes
        *,
        action_mask: ArrayLike | None = None,
        action: ArrayLike | None = None,
        evaluate: bool = False,
    ) -> Any:  # noqa: ANN401 - int or array
        """Begin an episode, and end one that is not over as truncated; return the first action.

        Args:
            observation: The first one: an array of the spec's shape, or of several parts a nest of mappings and tuples.
            action_mask: Which discrete actions are legal, bool [num_actions]; only if the spec has masks.
            action: What the program does by itself, see `step`.
            evaluate: Whether the episode is played without exploration. It is counted, not stored.

        Returns:
            The action: an int for one discrete choice, int64 [D] for several, float32 [*action_shape] in [-1, 1].
        """
        self._kept.clear()
        self._declared = dataclasses.replace(self._declared, resume_token=b"")
        self._next_step, self._is_playing = 0, True
        return self._play(SeenStep(0, self._seen(observation), evaluate=evaluate), action_mask, action)

    def step(
        self,
        observation: Any,  # noqa: ANN401
        reward: float,
        *,
        terminated: bool = False,
        truncated: bool = False,
        action_mask: ArrayLike | None = None,
        action: ArrayLike | None = None,
    ) -> Any:  # noqa: ANN401
        """Tell what the last action brought; return the next one, or None if the episode is over.

        Args:
            observation: What came after the action; after the last one, too.
            reward: Reward of the action.
            terminated: Whether the episode is over and has no value beyond.
            truncated: Whether it is cut here by a limit.
            action_mask: Which discrete actions are legal now; not needed with `terminated`, but with `truncated`, where
                the value of the observation is computed from them.
            action: What the program does by itself at this observation, which is stored in place of a choice of the
                service's: for a human player, a script, or a controller that acts when the network may not.

        Returns:
            The action, or None: the episode is over because the program said so, or because a service that was
            restarted could not continue it (`begin` another).
        """
        if not self._is_playing:
            raise FailedPrecondition("no episode is being played: call `begin` first")
        try:
            gain = float(reward)
        except (TypeError, ValueError):
            raise InvalidArgument(f"reward is {reward!r}, allowed: a finite number") from None
        seen = SeenStep(self._next_step, self._seen(observation), gain, bool(terminated), bool(truncated))
        return self._play(seen, action_mask, action)

    def close(self) -> None:
        """End the call; an episode that is not over ends as truncated. May be called twice."""
        self._is_closed, self._is_playing = True, False
        call, self._call = self._call, None
        if call is not None:
            call.finish()
        channel, self._channel = self._channel, None
        if channel is not None:
            if call is not None:
                call.drain(_CLOSE_S)
            channel.close()

    def _seen(self, observation: Any) -> NDArray[Any]:  # noqa: ANN401
        if self._is_closed:
            raise FailedPrecondition("the simulator client is closed")
        return observed(observation, self._spec)

    def _play(self, seen: SeenStep, mask: ArrayLike | None, action: ArrayLike | None) -> Any:  # noqa: ANN401
        if mask is not None:
            seen = dataclasses.replace(seen, action_mask=np.asarray(mask, np.bool_))
        if action is not None:
            given, is_whole = np.asarray(action), bool(self._spec.action_options)
            with np.errstate(invalid="ignore"):  # of NaN and infinity, which are then not equal
                taken = given.astype(self._spec.action_dtype) if given.dtype.kind in "biuf" else None
            if taken is None or (is_whole and (taken != given).any()):
                raise InvalidArgument(f"action is {action!r}, allowed: {'whole numbers' if is_whole else 'numbers'}")
            if taken.shape != self._spec.action_shape:
                raise InvalidArgument(f"action has shape {taken.shape}, allowed: {self._spec.action_shape}")
            seen = dataclasses.replace(seen, reported=taken)
        try:
            decision = self._asked(seen)
        except _EpisodeLost:
            _log.warning("the service could not continue the episode", step=seen.step)
            self._is_playing = False
            return None
        except InvalidArgument:
            self._is_playing = False
            raise
        return self._done(seen, decision)

    def _done(self, seen: SeenStep, decision: pb.Decision) -> Any:  # noqa: ANN401
        if decision.resume_token:
            self._declared = dataclasses.replace(self._declared, resume_token=decision.resume_token)
        self.params_version = decision.params_version or self.params_version
        while self._kept and self._kept[0].step.step < decision.stored_steps:
            self._kept.popleft()
        self._next_step = seen.step + 1
        if not decision.HasField("action"):
            self._is_playing = False
            return None
        action = unpack_action(decision.action, self._spec)
        if self._declared.resume_token:
            self._kept.append(pack_step(dataclasses.replace(seen, reported=action), self._spec))
        return int(action) if self._spec.is_discrete else action

    def _asked(self, seen: SeenStep) -> pb.Decision:
        """Return the answer to a step, over as many calls as it takes."""
        backoff, failing_since_s, is_told = Backoff(), float("inf"), False
        while True:
            try:
                if self._call is None:
                    known = self._opened(seen)
                    if known is not None:
                        return known
                assert self._call is not None
                return self._call.ask(pack_step(seen, self._spec)).decision
            except (Unavailable, ResourceExhausted) as error:
                self._drop()
                if error.reason is Reason.CALL_REPLACED:  # calling again would take the episode from the other client
                    self._is_playing = False
                    raise
                failing_since_s = min(failing_since_s, time.monotonic())
                failing_s = time.monotonic() - failing_since_s
                if failing_s >= self._timeout_s:
                    raise type(error)(
                        f"{self._address} did not answer a step within {self._timeout_s:g} s (timeout_s): {error}"
                        f"{self._remedy(error)}",
                        reason=error.reason,
                    ) from error
                if failing_s >= _SILENT_S and not is_told:
                    is_told = True
                    what = "nothing answers" if error.reason is None else "the service cannot answer a step"
                    _log.warning(
                        f"{what} at {self._address}; trying again for up to {self._timeout_s:g} s (timeout_s)",
                        reason=str(error),
                    )
                time.sleep(min(backoff.next_s(), self._timeout_s))
            except _EpisodeLost:
                raise  # the call continues with another episode
            except BaseException:  # the call has ended, or still has an answer to give that belongs to no other step
                self._drop()
                raise

    def _remedy(self, error: TidemillError) -> str:
        """Return the advice for a service that does not answer; empty if it has said what is wrong."""
        if error.reason is not None:
            return ""
        if self.run:
            return f"; if run {self.run!r} has ended, this is the end of the program, otherwise resume the run"
        return "; start the run first, and give the client the address that it prints: `simulators: HOST:PORT`"

    def _opened(self, seen: SeenStep) -> pb.Decision | None:
        """Call, and send again what the service lacks; return the answer to a step that it already had."""
        if self._channel is None:
            self._channel = open_channel(self._address)
        stub = simulator_pb2_grpc.SimulatorServiceStub(self._channel)
        call = self._call = _Call(stub.Play, pack_open(self._declared), "the simulator service", "SimulatorClient")
        opened = call.hear().opened
        self.run = opened.run
        if seen.step == 0 and not opened.resumed:
            return None
        if not opened.resumed:
            raise _EpisodeLost
        if opened.next_step == seen.step + 1 and opened.decision.step == seen.step:
            return opened.decision
        missing = [kept for kept in self._kept if kept.step.step >= opened.next_step]
        if opened.next_step + len(missing) != seen.step:
            raise _EpisodeLost
        for kept in missing:
            call.ask(kept)
        return None

    def _drop(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.end()


_Call = Dialogue[pb.PlayRequest, pb.PlayResponse]
