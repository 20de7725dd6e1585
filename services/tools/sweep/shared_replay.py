"""Replay service that all runs of a sweep share, each with its own table and actor names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidemill.atomic_files import write_atomically
from tidemill.config.load import load_config
from tidemill.config.yaml_text import written
from tidemill.errors import FatalError, NotFound, TidemillError
from tidemill.parent import PARENT_VARIABLE
from tidemill.programs.fork_client import Program, started, wait_or_kill
from tidemill.programs.fork_server import Order
from tidemill.replay.client import ReplayClient
from tidemill.services.launcher.run.paths import make_socket_folder, remove_socket_folder

_MAX_RESTARTS = 5
"""So often the service may end during a sweep; its log brings back what it held."""
_STOP_S = 60.0


class SharedReplay:
    """The service, as a context manager: started at its beginning, stopped at its end."""

    def __init__(self, folder: Path, config: Mapping[str, Any], runs: int) -> None:
        """Start nothing yet.

        Args:
            folder: Of the sweep; its log is in replay/, its output in replay.log.
            config: The base config's document, whose section `replay` holds.
            runs: How many tables it must be able to keep.
        """
        self._folder, self._config, self._runs = folder, config, runs
        self._restarts = 0
        self.problem = ""
        """Why the last table that was to be emptied was not; empty if it was."""
        self.keeps_items = not load_config(config).replay.storage.memory_only
        """Whether a later session finds the items of this one."""

    def __enter__(self) -> Self:
        """Start it; runs wait until it serves."""
        self._sockets = make_socket_folder()
        self._address = f"unix://{self._sockets}/replay.sock"
        try:
            write_atomically(self._folder / "replay.yaml", written(self._config))
            self._process = self._start()
        except BaseException:
            remove_socket_folder(self._sockets)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop it in order; after a minute it is killed."""
        self._process.terminate()
        wait_or_kill(self._process, _STOP_S)
        remove_socket_folder(self._sockets)

    def arguments(self, name: str) -> list[str]:
        """Return the options with which a run of this name uses the service, for `tidemill train` and `resume`."""
        settings = {"launcher.replay": "false", "cluster.replay": self._address, "table.name": name, "actor.id": name}
        return [word for key, value in settings.items() for word in (f"--{key}", value)]

    def tend(self) -> None:
        """Start it again if it has ended; runs wait for it meanwhile.

        Raises:
            FatalError: It ended too often.
        """
        if self._process.poll() is None:
            return
        code, self._restarts = self._process.returncode, self._restarts + 1
        log = self._folder / "replay.log"
        if self._restarts > _MAX_RESTARTS:
            raise FatalError(f"the sweep's replay service ended with exit code {code}, see {log}")
        print(f"replay service ended with exit code {code}, restarting, see {log}", file=sys.stderr, flush=True)
        self._process = self._start()

    def empty(self, name: str) -> bool:
        """Remove the items of a run; return whether it has none, False while the service cannot remove them."""
        self.problem = ""
        try:
            with ReplayClient(self._address) as client:
                client.reset_table(name)
        except NotFound:  # it never had a table
            return True
        except TidemillError as error:
            self.problem = str(error)
            return False
        return True

    def _start(self) -> Program:
        settings: dict[str, object] = {
            "config": self._folder / "replay.yaml",
            "replay.server.address": self._address,
            "replay.max_tables": self._runs,
        }
        if self.keeps_items:
            settings["replay.storage.folder"] = self._folder / "replay"
        words = [str(word) for key, value in settings.items() for word in (f"--{key}", value)]
        environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
        with (self._folder / "replay.log").open("ab") as log:
            return started(Order("tidemill.services.replay", words, environment, ends_in_order=True), log)
