"""File with which an actor resumes after its newest round: its messages, and the parameters of the next one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.atomic_files import write_atomically
from tidemill.errors import FatalError


@dataclass(frozen=True)
class RoundEnd:
    """The end of a round, written before anything of the round is stored by the replay service.

    Attributes:
        number: Number of the round, from 1.
        epoch: Epoch of the actor's streams.
        params: Parameters that the next round is played with, safetensors.
        version: Their version.
        learner_steps: Updates behind them.
        messages: What stores the round, from `ReplayWriter.take_held`.
    """

    number: int
    epoch: int
    params: bytes
    version: int
    learner_steps: int
    messages: tuple[bytes, ...]

    def write(self, path: Path) -> None:
        """Make or replace the file of an actor; a process that is killed leaves the former one."""
        parts = [self.params, *self.messages]
        body = b"".join(parts)
        head: dict[str, Any] = {
            "number": self.number,
            "epoch": self.epoch,
            "version": self.version,
            "learner_steps": self.learner_steps,
            "sizes": [len(part) for part in parts],
        }
        head["sha256"] = _digest(head, body)
        write_atomically(path, json.dumps(head).encode() + b"\n" + body, sync=False)

    @classmethod
    def read(cls, path: Path) -> RoundEnd | None:
        """Return the round that was written last; None if there is none.

        Raises:
            FatalError: The file is corrupt.
        """
        try:
            line, _, body = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            head = json.loads(line)
            if head.pop("sha256") != _digest(head, body):
                raise ValueError("its bytes do not match their SHA-256")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FatalError(f"{path} is corrupt: {error}; start the run from scratch") from error
        parts, start = [], 0
        for size in head["sizes"]:
            parts.append(body[start : start + size])
            start += size
        return cls(head["number"], head["epoch"], parts[0], head["version"], head["learner_steps"], tuple(parts[1:]))


def _digest(head: Mapping[str, Any], body: bytes) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode() + b"\n" + body).hexdigest()
