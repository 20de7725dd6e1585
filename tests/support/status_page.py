"""What a browser does at a status page: read its numbers, press its buttons."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.support.waiting import WAIT_S


def shown(url: str) -> dict[str, Any]:
    """Return the data of the page at an address, with or without its token."""
    with urllib.request.urlopen(f"{url.partition('#')[0]}status.json", timeout=WAIT_S) as answer:
        document: dict[str, Any] = json.load(answer)
        return document


def states(url: str) -> dict[str, str]:
    """Return the state of each process that the page shows."""
    return {row["name"]: row["state"] for row in shown(url)["processes"]}


def press(url: str, verb: str) -> str:
    """Press a button of the page at an address with its token; return what the page says then."""
    address, _, token = url.partition("/#")
    headers = {"Origin": address, "Content-Type": "application/json", "X-Tidemill-Token": token}
    request = urllib.request.Request(f"{address}/ctl", json.dumps({"verb": verb}).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return str(json.load(answer)["message"])
    except urllib.error.HTTPError as error:
        error.add_note(error.read().decode())
        raise
