"""Waiting calls: woken by a change, skipping to the newest, ended by a stop."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.naming import because
from tidemill.errors import Reason, Unavailable
from tidemill.services.paramserver.version_notifier import VersionNotifier


def _nothing() -> int | None:
    return None


async def test_wait_ends_with_the_change_it_waits_for() -> None:
    """Other changes do not end it."""
    notifier, found = VersionNotifier(), [0]
    waiting = asyncio.create_task(notifier.wait_for(lambda: found[0] if found[0] >= 2 else None))
    for value in (1, 2):
        await asyncio.sleep(0)
        assert not waiting.done()
        found[0] = value
        notifier.notify()
    assert await waiting == 2


async def test_what_is_there_already_is_returned_at_once() -> None:
    """No change is needed, not even a running server."""
    notifier = VersionNotifier()
    notifier.close()
    assert await notifier.wait_for(lambda: 7) == 7
    assert await notifier.wait_for_within(lambda: 7, 0) == 7


async def test_slow_reader_sees_only_the_newest() -> None:
    """Changes made while a reader is busy are one change to it."""
    notifier, newest = VersionNotifier(), [0]
    seen: list[int] = []

    async def read() -> None:
        while (seen or [0])[-1] < 5:
            seen.append(await notifier.wait_for(lambda: newest[0] if newest[0] != (seen or [0])[-1] else None))

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    for value in (1, 2, 3, 4, 5):  # without giving the reader a turn
        newest[0] = value
        notifier.notify()
    await reading
    assert seen == [5]


async def test_wait_in_vain_returns_none_in_time() -> None:
    """A bounded wait ends by itself; without a bound it does not wait at all."""
    notifier = VersionNotifier()
    for timeout_s in (0.01, 0):
        found = await notifier.wait_for_within(_nothing, timeout_s)
        assert found is None


async def test_stop_ends_every_wait() -> None:
    """Waits under way and later ones end with `Unavailable`."""
    notifier = VersionNotifier()
    waits = [asyncio.create_task(notifier.wait_for(_nothing)) for _ in range(3)]
    bounded = asyncio.create_task(notifier.wait_for_within(_nothing, 60))
    await asyncio.sleep(0)
    notifier.close()
    for wait in (*waits, bounded):
        with pytest.raises(Unavailable, match="stopping", check=because(Reason.STOPPING)):
            await wait
    with pytest.raises(Unavailable):
        await notifier.wait_for(_nothing)
