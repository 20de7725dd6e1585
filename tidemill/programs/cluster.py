"""A local cluster from Python: the processes of `tidemill train`, started, watched and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tidemill import formats
from tidemill.closing import Closing
from tidemill.config.addresses import check_addresses
from tidemill.config.given import given_in
from tidemill.config.load import by_names, load_config, read_document, write_document
from tidemill.config.sections import RunConfig
from tidemill.config.services import LOGGERS_STOP_S
from tidemill.errors import ConfigError, FailedPrecondition, FatalError, TidemillError, Unavailable
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import LearnerStatus
from tidemill.params.run_end import RESULT
from tidemill.process import ENDS_WITH_INPUT, NAMES_ERRORS
from tidemill.programs.fork_client import wait_or_kill
from tidemill.programs.result import RunResult
from tidemill.rpc.channel import DEADLINE_S
from tidemill.settings.user_code import imported_for_a_run
from tidemill.temporary_folder import temporary_folder

_POLL_S = 0.2
_LAST_LINES = 12
_START_S = 10.0  # of a launcher that is stopped before it starts services


class Cluster(Closing):
    """Replay service, parameter server, learner, actors and evaluator of one run, each a process of this machine.

    Leaving the `with` block stops what is still running.

    Example:
        >>> import tidemill
        >>> settings = {
        ...     "run": {"name": "example", "max_learner_steps": 200},
        ...     "env": {"id": "CartPole-v1", "num_envs": 4},
        ...     "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [32]},
        ...     "table": {"min_size": 200},
        ...     "evaluator": {"episodes": 2, "num_envs": 2, "video": False},
        ... }
        >>> with tidemill.Cluster(settings) as cluster:
        ...     status = cluster.status(timeout_s=120.0)  # waits for the learner to start
        ...     result = cluster.wait(timeout_s=300.0)
        >>> result.exit_code, result.summary["learner_steps"]
        (0, 200)
    """

    def __init__(self, config: RunConfig | Mapping[str, Any] | str | Path, *, fresh: bool = False) -> None:
        """Prepare a run; `start` or the `with` block starts it.

        Args:
            config: Settings: a `RunConfig`, a mapping as a config file holds, or the path of such a file.
            fresh: Whether a run of the same name that has trained already is moved aside; nothing is deleted.

        Raises:
            ConfigError: A setting is unknown or out of range, or the file cannot be read.
        """
        self.config = config if isinstance(config, RunConfig) else load_config(config)
        if isinstance(config, RunConfig):  # which has the defaults of what was not given
            given: Mapping[str, Any] = {}
        else:
            given = by_names(config) if isinstance(config, Mapping) else given_in(Path(config).expanduser())
        check_addresses(self.config, given)
        self._folder = self.config.run.folder
        self._fresh = fresh
        self._process: subprocess.Popen[str] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._heeds_interrupts = True
        self._output: list[str] = []  # of a run whose scratch files are removed
        self._earlier_result: tuple[int, int] | None = None

    def start(self) -> None:
        """Start the processes in the background; returns at once.

        Raises:
            FailedPrecondition: They were started already, or a run imports the module that makes this call.
        """
        if module := imported_for_a_run.get():  # by that run's processes, too, so that each run would start another
            raise FailedPrecondition(
                f"a run imports the module {module}, which starts a run itself: put the call that does under "
                '`if __name__ == "__main__":`'
            )
        if self._process is not None:
            raise FailedPrecondition(f"the cluster of {self.folder} was started already")
        self._folder = self._folder.absolute()  # the caller may change the working directory
        self._earlier_result = _stamp(self.folder / RESULT)
        self._scratch = temporary_folder("cluster")
        scratch = Path(self._scratch.name)
        write_document(self.config, scratch / "config.yaml")
        command = [sys.executable, "-P", "-m", "tidemill.services.launcher", "train", "--config"]
        command += [str(scratch / "config.yaml"), *(["--fresh"] if self._fresh else [])]
        # A script that a shell started in the background (`python my.py &`) ignores SIGINT, and so will the run.
        self._heeds_interrupts = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        with (scratch / "output.log").open("w") as output:
            # A separate session: Ctrl-C on the terminal reaches this script alone, and `close` passes it on once. The
            # process ends in order when its standard input closes, as it does however this script ends.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {ENDS_WITH_INPUT: "1", NAMES_ERRORS: "1"},
                start_new_session=True,
            )

    @property
    def folder(self) -> Path:
        """The run's folder, ROOT/NAME of the settings; absolute once the run is started."""
        return self._folder

    @property
    def is_running(self) -> bool:
        """Whether the run has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def status(self, *, timeout_s: float = 30.0) -> LearnerStatus:
        """Return the status of the learner, waiting for it to start.

        Args:
            timeout_s: Longest wait in seconds.

        Raises:
            FatalError: The run has ended; the message holds the last lines it printed.
            Unavailable: The learner did not answer in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            if not self.is_running:
                lines = "\n".join(self.output()[-_LAST_LINES:])
                raise FatalError(f"the run has ended:\n{lines}")
            try:
                return self._ask()
            except TidemillError as error:
                if time.monotonic() > deadline_s:
                    late = f"the learner of {self.folder} did not answer within {timeout_s:g} s"
                    raise Unavailable(f"{late}: {error}") from error
            time.sleep(_POLL_S)

    def poll(self) -> LearnerStatus | None:
        """Return the learner's status now; None while it does not answer, as before its start and after its end."""
        try:
            return self._ask(deadline_s=1.0)
        except TidemillError:
            return None

    def _ask(self, deadline_s: float = DEADLINE_S) -> LearnerStatus:
        """Ask the learner for its status; raises TidemillError for a file or a call that keeps it from answering."""
        file = self.folder / "cluster.yaml"
        services = read_document(file, "the addresses of the run in").get("cluster")
        if not isinstance(services, Mapping) or not isinstance(services.get("learner"), str):
            raise ConfigError(f"{file} has no address as cluster.learner")
        with LearnerClient(services["learner"], deadline_s=deadline_s) as learner:
            return learner.get_status()

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait until the run ends by itself, at its target or a limit.

        Args:
            timeout_s: Longest wait in seconds; None waits as long as it takes.

        Raises:
            Unavailable: It did not end in time; it keeps running.
            FailedPrecondition: It was not started.
        """
        if self._process is None:
            raise FailedPrecondition(f"the cluster of {self.folder} was not started")
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"the run in {self.folder} did not end within {timeout_s:g} s") from error
        return self.result()

    def stop(self, timeout_s: float | None = None) -> RunResult:
        """Stop the run as Ctrl-C would: everything is saved, and `tidemill resume` can continue it.

        Args:
            timeout_s: How long the processes may take to save and end, in seconds; then they are killed. None: as long
                as `launcher.stop_timeout_s` gives them, and a minute for the loggers.

        Raises:
            FailedPrecondition: It was not started.
        """
        if self._process is None:
            raise FailedPrecondition(f"the cluster of {self.folder} was not started")
        if self.is_running:
            # Python that is interrupted while it starts ends with a fatal error; a run that has begun takes both alike.
            may_interrupt = self._heeds_interrupts and self.output()
            self._process.send_signal(signal.SIGINT if may_interrupt else signal.SIGTERM)
            if timeout_s is None:
                timeout_s = _START_S + self.config.launcher.longest_stop_s + LOGGERS_STOP_S
            wait_or_kill(self._process, timeout_s)  # its children end with it
        return self.result()

    def output(self) -> list[str]:
        """Return the lines that the run has printed, as `tidemill train` prints them, also after `close`.

        There are none before `start`.
        """
        if self._scratch is None:
            return self._output
        return (Path(self._scratch.name) / "output.log").read_text(encoding="utf-8", errors="replace").splitlines()

    def result(self) -> RunResult:
        """Return how the run ended.

        Raises:
            FailedPrecondition: It was not started, or is still running.
        """
        if self._process is None or self.is_running:
            raise FailedPrecondition(f"the cluster of {self.folder} has not ended")
        file = self.folder / RESULT
        is_of_this_run = _stamp(file) != self._earlier_result
        summary = formats.read_json(file, formats.RESULT) if is_of_this_run else {}
        return RunResult(self._process.returncode, self.folder, summary)

    def close(self) -> None:
        """Stop what is running and remove scratch files. May be called twice."""
        if self.is_running:
            self.stop()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._scratch is not None:
            self._output = self.output()
            self._scratch.cleanup()
            self._scratch = None

    def __enter__(self) -> Self:
        """Start, and return itself."""
        self.start()
        return self


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return a mark that changes when a file is replaced; None without a file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
