"""Each conformance test runs against Tidemill, and against Reverb where that is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.integration.conformance import on_reverb, on_tidemill
from tests.integration.conformance.adapter import Server, Spec, Start

_NO_REVERB = pytest.mark.skipif(
    importlib.util.find_spec("reverb") is None,
    reason="reverb is not installed: dm-reverb 0.14 needs the TensorFlow of its time",
)


@pytest.fixture(params=["tidemill", pytest.param("reverb", marks=_NO_REVERB)])
def system(request: pytest.FixtureRequest) -> str:
    """Whose server the test runs against."""
    return str(request.param)


@pytest.fixture
def start(system: str) -> Iterator[Start]:
    """Start servers, each with one table, and end them."""
    systems: dict[str, Start] = {"tidemill": on_tidemill.start, "reverb": on_reverb.start}
    started: list[Server] = []

    def begin(spec: Spec) -> Server:
        started.append(systems[system](spec))
        return started[-1]

    yield begin
    for server in started:
        server.close()
