"""Fetches the evaluator's parameters and publishes its verdicts as tags."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import structlog

from tidemill.errors import NotFound, TidemillError, Unavailable
from tidemill.params.client import ParamsClient
from tidemill.params.version import BEST, LATEST, Params
from tidemill.rpc.readiness import wait_for_service

_WAIT_S = 0.5

_log = structlog.get_logger()


class ParamsSource:
    """Fetches the newest version on demand, in full precision; waits for an unavailable server."""

    def __init__(
        self, address: str, stop: threading.Event, *, connect_timeout_s: float, folder: Path | None = None
    ) -> None:
        """Prepare; nothing is contacted yet.

        Args:
            address: Address of the parameter server.
            stop: Ends every wait.
            connect_timeout_s: How long the server may be unavailable at the start, in seconds.
            folder: Where the server's folder of versions is mounted, if it is, as `ParamsClient` takes it.
        """
        self._address, self._client = address, ParamsClient(address, folder=folder)
        self._stop = stop
        self._connect_timeout_s = connect_timeout_s
        self._is_unavailable = False

    def connect(self) -> None:
        """Wait until the server answers, or `stop`.

        Raises:
            Unavailable: it did not within the connect timeout.
        """
        wait_for_service("cluster.params", self._address, self._connect_timeout_s, self._stop)
        deadline_s = time.monotonic() + self._connect_timeout_s
        while not self._stop.is_set():
            try:
                self._client.list_versions()
                return
            except Unavailable:
                if time.monotonic() > deadline_s:
                    raise
                self._stop.wait(_WAIT_S)

    def newer_than(self, number: int) -> Params | None:
        """Return the newest version if it is newer than `number`, else None after half a second."""
        try:
            params = self._client.fetch(LATEST, newer_than=number, wait_s=_WAIT_S)
        except TidemillError as error:
            if not self._is_unavailable:
                _log.warning("cannot fetch parameters, retrying", reason=str(error))
            self._is_unavailable = True
            self._stop.wait(_WAIT_S)
            return None
        self._is_unavailable = False
        return params

    def first_after(self, env_steps: int, every: int) -> Params | None:
        """Return the first version made after so many decisions, or after a later multiple of `every`.

        A multiple whose first version may be deleted, as the one before it is, is left out. None without a version.
        """
        try:
            versions = self._client.list_versions().versions
            made = {version.version: version.metadata.env_steps for version in versions}
            before = {number + 1: steps for number, steps in made.items()} | {1: 0}
            first = [
                number
                for number, steps in made.items()
                if steps >= env_steps and before.get(number, steps) // every < steps // every
            ]
            return self._client.fetch(min(first)) if first else None
        except TidemillError as error:  # it may be deleted by now
            _log.warning("cannot fetch parameters", env_steps=env_steps, reason=str(error))
            return None

    def newest(self, wait_s: float = 0.0) -> Params | None:
        """Return the newest version; None if there is none, or no server for `wait_s` seconds."""
        return self._fetch(LATEST, wait_s)

    def best(self) -> Params | None:
        """Return the version tagged as the best; None if it cannot be had."""
        return self._fetch(BEST)

    def tag(self, tag: str, number: int, wait_s: float = 0.0) -> bool | None:
        """Point a tag at a version, trying for `wait_s` seconds; return whether the server has the version.

        None if it did not answer in this time: evaluations continue without the tag.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                self._client.set_tag(tag, number)
                return True
            except TidemillError as error:
                is_deleted = isinstance(error, NotFound)
                if is_deleted or time.monotonic() >= deadline_s or self._stop.wait(_WAIT_S):
                    _log.warning("cannot set tag", tag=tag, version=number, reason=str(error))
                    return False if is_deleted else None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _fetch(self, selector: str, wait_s: float = 0.0) -> Params | None:
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                return self._client.fetch(selector)
            except TidemillError as error:
                is_away = isinstance(error, Unavailable) and time.monotonic() < deadline_s
                if not is_away or self._stop.wait(_WAIT_S):
                    _log.warning("cannot fetch parameters", tag=selector, reason=str(error))
                    return None
