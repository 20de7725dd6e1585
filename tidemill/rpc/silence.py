"""Calls that may take as long as they like while their server answers, and end when it is silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from tidemill.awake_clock import AwakeTimer
from tidemill.errors import Unavailable
from tidemill.rpc.status import translated


def each_within(call: Any, server: str, timeout_s: float, first_s: float | None = None) -> Iterator[Any]:  # noqa: ANN401 - grpc publishes no class for it
    """Yield the messages of a call.

    Args:
        call: A call whose answer is a stream.
        server: What answers, for the message.
        timeout_s: Longest wait for the next message, in seconds.
        first_s: Longest wait for the first message; None for `timeout_s`.

    Raises:
        Unavailable: The next message did not come in time, which ends the call.
        TidemillError: What the server answered instead.
    """
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        call.cancel()

    limit_s = timeout_s if first_s is None else first_s
    while True:
        timer = AwakeTimer(limit_s, end)
        timer.start()
        try:
            with translated():
                message = next(call, None)
        except Unavailable as error:
            if is_late.is_set():
                raise Unavailable(f"{server} sent nothing for {limit_s:g} s") from error
            raise
        finally:
            timer.cancel()
        if message is None:
            return
        limit_s = timeout_s
        yield message
