"""Work that is finished even if the call that waits for it ends before."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeVar

from tidemill.errors import TidemillError
from tidemill.logger import LateLogger

_log = LateLogger()
_T = TypeVar("_T")


async def finished(work: asyncio.Future[_T], method: str) -> _T:
    """Wait for work and return its result; if the call is gone by then, an error of the work is one line in the log.

    `asyncio.shield` leaves such an error to asyncio, which prints a traceback.

    Args:
        work: A task, or what a thread does.
        method: Name of the call, for the log.
    """
    try:
        await asyncio.wait((work,))
    except asyncio.CancelledError:
        work.add_done_callback(partial(_log_failure, method))
        raise
    return work.result()


def _log_failure(method: str, work: asyncio.Future[_T]) -> None:
    if work.cancelled() or (error := work.exception()) is None:
        return
    bug = None if isinstance(error, TidemillError) else error
    _log.error("call failed after its caller had gone", method=method, reason=str(error), exc_info=bug)
