"""A headless Chromium that a test drives through chromedriver, by the WebDriver protocol."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_BOUND_S = 60.0
_SWITCHES = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
_REQUIRED = os.environ.get("TIDEMILL_REQUIRE_BROWSER", "") != ""


class Browser:
    """One tab."""

    def __init__(self, driver: str) -> None:
        """Open it.

        Args:
            driver: Address of chromedriver.
        """
        self._session = driver
        options = {"args": list(_SWITCHES)}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        opened = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"{driver}/session/{opened['sessionId']}"

    def show_as(self, width: int, height: int, *, dark: bool) -> None:
        """Have a viewport of so many pixels, below 600 that of a phone, and a light or dark system."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._protocol("Emulation.setDeviceMetricsOverride", **size)
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._protocol("Emulation.setEmulatedMedia", features=[colours])

    def open(self, url: str) -> None:
        """Load a page, again if it is shown already."""
        self._ask("POST", "/url", {"url": "about:blank"})
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Return the result of a function body of JavaScript; a promise is waited for."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, key: str) -> None:
        """Press and release a key on whatever has the focus."""
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def answer_dialog(self, *, accept: bool) -> str:
        """Answer the dialog that is open; return its text."""
        text = str(self._ask("GET", "/alert/text"))
        self._ask("POST", f"/alert/{'accept' if accept else 'dismiss'}", {})
        return text

    def names(self) -> dict[str, set[str]]:
        """Return the names that a screen reader gives to the things on the page, by their role."""
        found: dict[str, set[str]] = {}
        for node in self._protocol("Accessibility.getFullAXTree")["nodes"]:
            if not node.get("ignored"):
                role = str(node.get("role", {}).get("value", ""))
                found.setdefault(role, set()).add(str(node.get("name", {}).get("value", "")))
        return found

    def complaints(self) -> list[str]:
        """Return the browser's log since the last call: errors of scripts, requests that were refused."""
        return [str(entry["message"]) for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        """Close the tab and the browser."""
        self._ask("DELETE", "")

    def _protocol(self, command: str, **parameters: object) -> Any:  # noqa: ANN401
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._session + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=_BOUND_S) as answer:
            return json.load(answer)["value"]


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Yield a browser; skip the test where there is none, unless TIDEMILL_REQUIRE_BROWSER is set."""
    program = shutil.which("chromedriver")
    if program is None:
        assert not _REQUIRED, "TIDEMILL_REQUIRE_BROWSER is set, and there is no chromedriver"
        pytest.skip("there is no chromedriver: apt-get install chromium-driver")
    with subprocess.Popen([program, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            started = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
            port = next(found[1] for found in started if found)
            browser = Browser(f"http://127.0.0.1:{port}")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
