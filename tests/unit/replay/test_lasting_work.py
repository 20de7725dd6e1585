"""Work whose caller may be gone before it ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from structlog.testing import capture_logs

from tidemill.errors import NotFound
from tidemill.services.replay.lasting_work import finished


@pytest.mark.parametrize("error, is_bug", [(NotFound("table 't' was dropped"), False), (ValueError("a bug"), True)])
def test_failure_is_one_line_once_the_caller_is_gone(error: Exception, is_bug: bool) -> None:
    """With the reason, and a traceback of what nobody foresaw. asyncio hears of nothing."""
    unheard: list[dict[str, Any]] = []

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        work = asyncio.get_running_loop().create_future()
        call = asyncio.create_task(finished(work, "Delete"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled()
        assert not work.cancelled()
        work.set_exception(error)
        await asyncio.sleep(0)

    with capture_logs() as logs:
        asyncio.run(give_up())
        gc.collect()
    assert [(line["method"], line["reason"], line["exc_info"]) for line in logs] == [
        ("Delete", str(error), error if is_bug else None)
    ]
    assert unheard == []


def test_caller_that_waits_has_the_result_or_the_error() -> None:
    """Nothing is logged: the call says it."""

    async def wait() -> None:
        work = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(work.set_result, 3)
        assert await finished(work, "Delete") == 3
        failing = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(failing.set_exception, NotFound("table 't' was dropped"))
        with pytest.raises(NotFound):
            await finished(failing, "Delete")

    with capture_logs() as logs:
        asyncio.run(wait())
    assert logs == []
