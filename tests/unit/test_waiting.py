"""How the tests wait: what has failed is not waited for."""

from __future__ import annotations

import threading

import pytest

from tests.support.waiting import longest_wait_s, noting_thread_errors, wait_until


def test_wait_ends_when_a_thread_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception and its place are in the message."""

    def act() -> None:
        raise KeyError("no such column")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # pytest's, which would fail this test
    with noting_thread_errors():
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
        with pytest.raises(AssertionError, match=r"(?s)a batch: it will not come.*in act.*no such column"):
            wait_until(lambda: False, "a batch")


def test_wait_ends_when_its_cause_has_failed() -> None:
    """Such as a process that has ended; with its log."""
    reasons = iter(["", "", "ended with 1:\nits log"])
    with pytest.raises(AssertionError, match=r"(?s)an answer: it will not come\nended with 1:\nits log"):
        wait_until(lambda: False, "an answer", failure=lambda: next(reasons))


@pytest.mark.parametrize(
    "load, workers, wait_s", [(0.5, "1", 60.0), (6.0, "1", 180.0), (1.0, "4", 240.0), (99.0, "1", 300.0)]
)
def test_longest_wait_grows_with_the_load(
    load: float, workers: str, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute, times the processes that want each core, or the suite's workers."""
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", workers)
    assert longest_wait_s() == wait_s
