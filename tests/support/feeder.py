"""Stands in for an actor where a test is about the learner: random steps of CartPole's shape."""

from __future__ import annotations

import threading

import numpy as np

from tidemill.errors import NotFound, Unavailable
from tidemill.replay import codec
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.writing.append_call import StreamRestarted
from tidemill.replay.writing.appender import StreamAppender
from tidemill.types import EnvSpec, signature_of

CHUNK = 16
SPEC = EnvSpec((4,), "float32", num_actions=2)  # CartPole-v1
TABLE = "replay"


class Feeder:
    """An actor's place: appends one stream of random steps until it is closed."""

    def __init__(self, address: str, *, chunks_per_s: float) -> None:
        """Start to append."""
        self._address, self._pause_s = address, 1.0 / chunks_per_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream; a thread that a frozen service holds up is left behind."""
        self._closed.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        rng, signature, step = np.random.default_rng(0), signature_of(SPEC), 0
        with StreamAppender(self._address, "feeder", 1, signature, [TABLE], CHUNK, stop=self._closed) as appender:
            while not self._closed.wait(self._pause_s):
                blocks = codec.encode(signature, _random_columns(rng))
                chunk = Chunk(0, step, CHUNK, CHUNK, 1, blocks)
                try:
                    appender.append([chunk], [_items(step)], timeout_s=0.2)
                    step += CHUNK
                except StreamRestarted:
                    step = 0
                except (Unavailable, NotFound):
                    continue


def _random_columns(rng: np.random.Generator) -> dict[str, np.ndarray]:
    flags = np.zeros(CHUNK, np.bool_)
    return {
        "observation": rng.standard_normal((CHUNK, 4)).astype(np.float32),
        "action": rng.integers(0, 2, CHUNK),
        "reward": rng.standard_normal(CHUNK).astype(np.float32),
        "terminated": rng.random(CHUNK) < 0.05,
        "truncated": flags,
        "is_first": flags,
    }


def _items(step: int) -> ItemBatch:
    """Return one-step items that end at each step but the stream's first."""
    offsets = np.arange(1 if step == 0 else 0, CHUNK)
    return ItemBatch(0, np.zeros_like(offsets), offsets, np.full_like(offsets, 2), np.ones(len(offsets)))
