"""The examples of a docstring as a test: those of servers and those of processes are in different packages."""

from __future__ import annotations

import doctest

from structlog.testing import capture_logs


def run_example(text: str, name: str, addresses: dict[str, str]) -> tuple[int, str]:
    """Run the examples of a docstring; return how many statements there were, and what differed from their text."""
    for written, actual in addresses.items():
        text = text.replace(written, actual)
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    said: list[str] = []
    with capture_logs():  # logs of the servers in this process: an example does not print them
        result = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return result.attempted, "".join(said)
