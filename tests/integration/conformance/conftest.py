"""Each conformance test runs against Tidemill, and against Reverb where that is installed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.integration.conformance import on_reverb, on_tidemill
from tests.integration.conformance.adapter import Server, Spec, Start


@pytest.fixture(params=["tidemill", "reverb"])
def system(request: pytest.FixtureRequest) -> str:
    """Whose server the test runs against."""
    if request.param == "reverb" and not on_reverb.INSTALLED.exists():
        pytest.skip("Reverb is not installed in .venv-reverb: `make conformance` does it (2 GB)")
    return str(request.param)


@pytest.fixture(scope="package")
def reverb_process() -> Iterator[on_reverb.ReverbProcess]:
    """One process for all tests, as it imports TensorFlow."""
    process = on_reverb.ReverbProcess()
    yield process
    process.close()


@pytest.fixture
def start(system: str, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start servers, each with one table, and end them."""
    begin_one: Start = on_tidemill.start
    if system == "reverb":
        begin_one = partial(on_reverb.ReverbServer, request.getfixturevalue("reverb_process"))
    started: list[Server] = []

    def begin(spec: Spec) -> Server:
        started.append(begin_one(spec))
        return started[-1]

    yield begin
    for server in started:
        server.close()
