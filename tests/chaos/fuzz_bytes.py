"""Any bytes as one call, for a fuzzer that looks for bytes which reach more of the servers' code."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Self

from tests.chaos.fuzz import RIGHT, is_well
from tests.chaos.fuzz_cases import Case, Corpus
from tests.chaos.fuzz_door import Door
from tests.support.rpc_methods import METHODS

_PATHS = sorted(METHODS)
_LONGEST_S = 0.005
"""How long a call is let wait for items or versions: nothing comes while it does."""
_CALLS = 2_000
"""To the same servers, which are then replaced."""
_SIZE_BYTES = 2


def case_of(data: bytes) -> Case:
    """Return the call that bytes stand for: the first names the method, then come messages after their sizes."""
    path, messages, at = _PATHS[(data[0] if data else 0) % len(_PATHS)], [], 1
    while at < len(data):
        end = at + _SIZE_BYTES + int.from_bytes(data[at : at + _SIZE_BYTES], "big")
        messages.append(data[at + _SIZE_BYTES : end])
        at = end
    return Case(path, tuple(messages) or (b"",))


def bytes_of(case: Case) -> bytes:
    """Return bytes that stand for a call, whose messages have at most 65,535 bytes."""
    sized = (len(message).to_bytes(_SIZE_BYTES, "big") + message for message in case.messages)
    return bytes([_PATHS.index(case.path)]) + b"".join(sized)


class Target:
    """Makes calls of bytes, one after another, to servers that it starts."""

    def __init__(self, folder: Path) -> None:
        """Take an empty folder for what they store."""
        self._folder, self._loop = folder, asyncio.new_event_loop()
        self._calls = 0

    def __enter__(self) -> Self:
        """Start the servers."""
        self._loop.run_until_complete(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        """End the servers."""
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    @property
    def corpus(self) -> Corpus:
        """Good calls of every RPC."""
        return self._door.corpus

    def __call__(self, data: bytes) -> None:
        """Make a call.

        Raises:
            AssertionError: its status was wrong, or the servers are not well after it and those before.
        """
        self._loop.run_until_complete(self._make(case_of(data)))

    async def _make(self, case: Case) -> None:
        code = await self._door.call(case, _LONGEST_S)
        assert code in RIGHT, f"{case} is answered by {code}"
        self._calls += 1
        if self._calls % _CALLS == 0:
            assert await is_well(self._door), f"the servers are not well after {self._calls} calls"
            await self._stop()
            await self._start()

    async def _start(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        place = self._folder / str(self._calls)
        self._stack.callback(shutil.rmtree, place)
        self._door = await self._stack.enter_async_context(Door(place))

    async def _stop(self) -> None:
        await self._stack.aclose()
