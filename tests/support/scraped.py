"""What a process shows at /metrics, without the two labels that every sample of it has."""

from __future__ import annotations

import re
import urllib.request

_WAIT_S = 30.0
_IDENTITY = re.compile(r'(?<=[{,])(?:process|run)="[^"]*",?|,(?:process|run)="[^"]*"')


def scrape(address: str) -> dict[str, float]:
    """Return every sample of a process by its name and labels, as Prometheus's text has them, without run and process.

    Raises:
        OSError: It does not answer.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {_plain(name): float(value) for name, _, value in samples}


def _plain(name: str) -> str:
    return _IDENTITY.sub("", name).replace(",}", "}").removesuffix("{}")
