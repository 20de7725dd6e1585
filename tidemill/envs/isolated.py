"""Environments in separate processes: one that hangs is killed, and one that crashes affects no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.awake_clock import AwakeClock
from tidemill.envs.failures import count_failure
from tidemill.envs.interface import EpisodeSummary, VectorStep
from tidemill.envs.parts import Failure, down_step, will_reset
from tidemill.envs.settings import EnvSettings, told_limit
from tidemill.envs.worker import STEP_COLUMNS
from tidemill.envs.worker_link import Link, Message
from tidemill.errors import ConfigError, EnvFailed, InvalidArgument
from tidemill.parent import PARENT_VARIABLE
from tidemill.types import EnvSpec

_IMPORT_S = 60.0  # until a process has imported what it needs, or `env.reset_timeout_s` if that is longer
_POLL_S = 0.2
_STOP_S = 2.0  # how long an answer is waited for once the actor is to stop
_MIB = 2**20

_clock = AwakeClock(1.0)
"""One for all, because time passes for each part while another is waited for."""


class WorkerPart:
    """The `Part` that one process steps: a single unit.

    Every wait is bounded by `env.step_timeout_s` or `env.reset_timeout_s`, unless these are 0, and by `stop`.
    """

    units = 1

    def __init__(
        self, settings: EnvSettings, num_envs: int, stop: threading.Event, *, training: bool, render: bool = False
    ) -> None:
        """Start the process, which makes `num_envs` environments; `spec` waits for it.

        Args:
            settings: Of the environment.
            num_envs: Environments of the process, 1 unless `env.vector` makes the batch.
            stop: Ends every wait soon.
            training: See `make_env`.
            render: See `make_env`.
        """
        self._settings, self.num_envs, self._stop = settings, num_envs, stop
        self._keeps = settings.keeps_failed
        self._training, self._render = training, render
        self._name = f"{settings.vector or settings.id} in a separate process"
        self._step_s = settings.step_timeout_s
        self._reset_s = settings.reset_timeout_s or settings.step_timeout_s
        self._spec: EnvSpec | None = None
        self.action_mask: NDArray[np.bool_] | None = None
        """Which actions are legal; see `Part`."""
        self._newest: Array = np.zeros(0)
        self._ended = np.zeros(num_envs, np.bool_)
        self._most = 2 if num_envs == 1 else 1  # limits of memory that cut; a batch's episodes seldom end together
        self._memory_bytes, self._sent_s, self._steps = 0, 0.0, 0
        self._closing_s = 0.0  # when it was told to close; 0: not yet
        self._resets = 0  # of a reset that was begun: how many may share processors, and so have the time of all
        self._seed: int | None = None  # of a restart whose reset is still to be asked for
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._is_down = self._is_here = self._is_made = False
        self._error: EnvFailed | None = None  # of `begin`
        self._start()

    @property
    def spec(self) -> EnvSpec:
        """Shapes and dtypes of one environment; raises ConfigError or EnvFailed if it cannot be made."""
        if self._spec is None:
            self._made()
        assert self._spec is not None
        return self._spec

    @property
    def pid(self) -> int | None:
        """The process, for tests; None without one."""
        return self._process.pid if self._process is not None else None

    def begin_reset(self, seed: int, parts: int) -> None:
        """Ask for a reset, unless that takes a new process; see `Part`."""
        if self._is_made and not self._is_bloated(1):
            self._send({"do": "reset", "seed": seed})
            self._resets = parts

    def reset(self, seed: int) -> Array:
        """Reset the environments, in a new process if the present one has failed or takes too much memory."""
        if resets := self._resets:
            self._resets = 0
            return self._took_reset(self._answer(self._reset_s * resets, "reset"))
        if self._is_bloated(1):
            count_failure("memory")
            self._kill()
        if self._process is None:
            self._start()
        if not self._is_made:
            self._made()
        self._send({"do": "reset", "seed": seed})
        return self._took_reset(self._answer(self._reset_s, "reset"))

    def begin(self, action: Array) -> None:
        """Send the action, unless the process is down or is to be replaced."""
        if not self._is_down and self._ended.all() and self._is_bloated(1):
            self._is_down = True
            self._kill()
            return
        self._error = None
        if not self._is_down:
            try:
                self._send({"do": "step"}, action)
            except EnvFailed as error:
                self._error = error

    def finish(self) -> tuple[VectorStep, list[Failure]]:
        """Return the answer."""
        if self._is_down and self._error is None:
            if self._process is None and self._is_bloated(1):
                return down_step(self._newest), [(0, self._bloated("after an episode"))]
            return down_step(self._newest), []
        is_reset = bool(self._ended.any())
        try:
            if self._error is not None:
                raise self._error
            fields, arrays = self._answer(max(self._step_s, self._reset_s) if is_reset else self._step_s, "step")
            if self._is_bloated(self._most):
                self._kill()
                raise self._bloated("during an episode")
        except EnvFailed as error:
            self._is_down = True
            return down_step(self._newest, is_cut=~self._ended), [(0, error)]
        self._steps += 1
        self._newest, self.action_mask = arrays["observation"], arrays.get("mask")
        columns: dict[str, Any] = {name: arrays[name] for name in STEP_COLUMNS}
        step = VectorStep(**columns, episodes=tuple(EpisodeSummary(**each) for each in fields["episodes"]))
        self._ended = will_reset(step)
        return step, []

    def restart(self, _: int, seed: int) -> None:
        """Start another process, unless the present one is kept."""
        self._seed = seed
        if not self._keeps:
            self._kill()
        if self._process is None:
            self._start()

    def restarted(self, _: int) -> Array | None:
        """Return the first observations once the process has them; see `Part`."""
        if self._seed is not None:
            try:
                if not self._is_made and not self._made(wait=False):
                    return None
            except ConfigError as error:  # it could be made before
                raise EnvFailed(str(error), kind="raised") from error
            self._send({"do": "reset", "seed": self._seed})
            self._seed = None
        message = self._polled(self._reset_s, "reset")
        return None if message is None else self._took_reset(message)

    def render(self, env_index: int) -> NDArray[np.uint8] | None:
        """Return a picture."""
        self._send({"do": "render", "env_index": env_index})
        picture: NDArray[np.uint8] | None = self._answer(self._step_s, "render")[1].get("picture")
        return picture

    def begin_close(self) -> None:
        """Let the process close its environments."""
        if self._link is not None:
            self._link.close()
        self._closing_s = time.monotonic()

    def close(self) -> None:
        """Let the process close its environments, and end it after two seconds at the latest."""
        if not self._closing_s:
            self.begin_close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, self._closing_s + _STOP_S - time.monotonic()))
        self._kill()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidemill.envs.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C is for the launcher; what it starts is killed with it
            )
        self._link, self._memory_bytes, self._closing_s = Link(ours), 0, 0.0
        self._is_here, self._is_made, self._resets = False, False, 0
        settings = json.loads(json.dumps(asdict(self._settings)))
        opening = {"num_envs": self.num_envs, "training": self._training, "render": self._render}
        self._send({"path": sys.path, "settings": settings, **opening})

    def _made(self, *, wait: bool = True) -> bool:
        """True once the process has made its environments; with `wait`, block until then."""
        import_s = max(_IMPORT_S, self._settings.reset_timeout_s) if self._reset_s else 0.0
        while True:
            making_s = self._reset_s * self.num_envs
            limit_s, what = (making_s, "the constructor") if self._is_here else (import_s, "its imports")
            message = self._answer(limit_s, what) if wait else self._polled(limit_s, what)
            if message is None:
                return False
            if "here" in message[0]:
                self._is_here, self._sent_s = True, _clock()
                continue
            self._spec, self._is_made = EnvSpec.from_document(message[0]["spec"]), True
            return True

    def _took_reset(self, message: Message) -> Array:
        if not len(self._newest) and self._is_bloated(self._most):
            self._kill()
            raise ConfigError(f"{self._bloated('before its first step')}, which every process would exceed: raise it")
        self._newest, self.action_mask = message[1]["observation"], message[1].get("mask")
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._is_down = False
        return self._newest

    def _send(self, fields: dict[str, Any], action: Array | None = None) -> None:
        self._sent_s = _clock()
        try:
            if self._link is None:
                raise BrokenPipeError
            self._link.send(fields, None if action is None else {"action": action})
        except OSError as error:
            raise self._died() from error

    def _answer(self, limit_s: float, method: str) -> Message:
        """Return the next message; raises EnvFailed if it does not come in time."""
        stopped_s = None
        while (message := self._polled(limit_s, method, _POLL_S)) is None:
            if self._stop.is_set():
                stopped_s = stopped_s or _clock()
                if _clock() - stopped_s > _STOP_S:
                    raise self._hung(method, limit_s)
        return message

    def _polled(self, limit_s: float, method: str, wait_s: float = 0.0) -> Message | None:
        """Return the next message if there is one; raises EnvFailed if it is late or says so, or the process died."""
        try:
            message = self._link.receive(wait_s) if self._link is not None else None
        except EOFError as error:
            raise self._died() from error
        if message is None:
            if self._link is None:
                raise self._died()
            if limit_s and _clock() - self._sent_s > limit_s:
                raise self._hung(method, limit_s)
            return None
        fields = message[0]
        self._memory_bytes = fields.get("memory_bytes", self._memory_bytes)
        if "refused" in fields:
            self._kill()
            raise ConfigError(fields["refused"])
        if "wrong" in fields:
            raise InvalidArgument(fields["wrong"])
        if "failed" in fields:
            if not self._keeps or method != "step":
                self._kill()
            raise EnvFailed(fields["reason"], kind=fields["failed"], trace=fields["trace"])
        return message

    def _is_bloated(self, times: int) -> bool:
        limit = self._settings.max_memory_mib * _MIB * times
        return bool(limit) and self._memory_bytes > limit

    def _bloated(self, when: str) -> EnvFailed:
        taken, self._memory_bytes = self._memory_bytes, 0
        limit = f"env.max_memory_mib is {self._settings.max_memory_mib}"
        return EnvFailed(f"{self._name} took {taken / _MIB:.0f} MiB {when}; {limit}", kind="memory")

    def _hung(self, method: str, limit_s: float) -> EnvFailed:
        waited_s = _clock() - self._sent_s
        self._kill()
        done = "reset" if method == "step" and self._ended.all() else method
        is_reset = method in ("the constructor", "reset")
        is_longer = self._settings.reset_timeout_s and (is_reset or limit_s != self._step_s)
        setting = "env.reset_timeout_s" if is_longer else "env.step_timeout_s"
        limit = told_limit(setting, method, round(limit_s / self._reset_s) if is_reset and limit_s else 1)
        if not self._is_here:
            limit = f"{_IMPORT_S:g} s, or env.reset_timeout_s if longer"
        said = f"{self._name} has not returned from {done} for {waited_s:.1f} s, after {self._steps:,} steps ({limit})"
        return EnvFailed(said, kind="hung")

    def _died(self) -> EnvFailed:
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_STOP_S)
        self._kill()
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code is not None and code < 0 else f"with code {code}"
        return EnvFailed(f"{self._name} ended {how}, after {self._steps:,} steps", kind="died")

    def _kill(self) -> None:
        """End the process, and what it has started in its session."""
        process, link, self._process, self._link = self._process, self._link, None, None
        self._is_down = True
        if link is not None:
            link.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class IsolatedEnv:
    """`VectorEnv` over one process, which raises EnvFailed; the next `reset` starts another."""

    def __init__(self, part: WorkerPart) -> None:
        """Take the process, which is ended with this."""
        self._part = part
        self.spec, self.num_envs = part.spec, part.num_envs

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """Which actions are legal at the newest observations, [N, A]."""
        mask = self._part.action_mask
        assert mask is not None, "the environments have no action masks"
        return mask

    def reset(self, seed: int) -> Array:
        """Reset; see `VectorEnv.reset`."""
        return self._part.reset(seed)

    def step(self, action: Array) -> VectorStep:
        """Step; see `VectorEnv.step`."""
        self._part.begin(action)
        step, failures = self._part.finish()
        for _, error in failures:
            raise error
        return step

    def render(self, env_index: int = 0) -> NDArray[np.uint8] | None:
        """Return a picture; see `VectorEnv.render`."""
        return self._part.render(env_index)

    def close(self) -> None:
        """End the process; closing twice does nothing."""
        self._part.close()
