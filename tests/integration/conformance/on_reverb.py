"""The conformance tests' server on Reverb: `reverb_peer` in a process of Reverb's own environment."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.integration.conformance.adapter import Sampled, Spec, TimedOut
from tests.support.waiting import WAIT_S

INSTALLED = Path(__file__).resolve().parents[3] / ".venv-reverb" / ".installed"
"""Is there once `make conformance` has made Reverb's environment."""

_PYTHON = INSTALLED.parent / "bin" / "python"
_PEER = Path(__file__).with_name("reverb_peer.py")


class ReverbProcess:
    """The process; it has one server at a time."""

    def __init__(self) -> None:
        """Start it; its first answer comes once TensorFlow is imported."""
        ours, theirs = socket.socketpair()
        ours.settimeout(WAIT_S)
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        with theirs:
            self._process = subprocess.Popen(
                [str(_PYTHON), str(_PEER)],
                stdin=theirs.fileno(),
                stdout=self._said,
                stderr=self._said,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"},
            )
        self._connection, self._lines = ours, ours.makefile("rw")

    def call(self, name: str, **arguments: object) -> Any:  # noqa: ANN401 - whatever the call returns
        """Return the result of a method of `reverb_peer.Peer`.

        Raises:
            ValueError: It raised one.
            RuntimeError: It raised another error, or the process ended.
            TimeoutError: No answer within `WAIT_S`.
        """
        self._lines.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
        self._lines.flush()
        line = self._lines.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(f"Reverb's process ended in {name}:\n{self._said.read()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            kind = ValueError if answer["error"] == "ValueError" else RuntimeError
            raise kind(f"{answer['error']}: {answer['message']}")
        return answer["result"]

    def close(self) -> None:
        """End it: nothing of a test outlives it, so it is killed."""
        self._connection.close()
        self._process.kill()
        self._process.wait(WAIT_S)
        self._said.close()


class ReverbServer:
    """One table of a server in that process."""

    def __init__(self, process: ReverbProcess, spec: Spec) -> None:
        """Start it."""
        self._call = process.call
        self._call("start", spec=dataclasses.asdict(spec))

    def insert(self, value: int, priority: float = 1.0) -> None:
        """Send it."""
        self._call("insert", value=value, priority=priority)

    def sample(self, count: int = 1, timeout_s: float = 30.0) -> list[Sampled]:
        """Take so many."""
        found = self._call("sample", count=count, timeout_s=timeout_s)
        if len(found) < count:
            raise TimedOut
        return [Sampled(*sample) for sample in found]

    def size(self) -> int:
        """Ask the server."""
        return int(self._call("size"))

    def update(self, key: int, priority: float) -> None:
        """By key."""
        self._call("update", key=key, priority=priority)

    def delete(self, key: int) -> None:
        """By key."""
        self._call("delete", key=key)

    def reset(self) -> None:
        """By name."""
        self._call("reset")

    def insert_trajectory(self, steps: Sequence[Mapping[str, int]], last: Mapping[str, int]) -> None:
        """Make an item of a slice of each column's history."""
        self._call("insert_trajectory", steps=steps, last=last)

    def sample_trajectory(self) -> dict[str, NDArray[Any]]:
        """Take one whole."""
        return {name: np.array(column) for name, column in self._call("sample_trajectory").items()}

    def close(self) -> None:
        """End the server."""
        self._call("close")
