"""The examples of public docstrings, which docs/api.md shows too: run as written, against real servers."""

from __future__ import annotations

import doctest
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import tidemill
from tests.integration.params.service import local_server as params_server
from tests.integration.replay.service import local_server as replay_server
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.learner.control import Control
from tidemill.services.learner.servicer import LearnerServicer

# A later one uses what an earlier one has stored; that of `Cluster` is in tests/process.
MAIN = (
    *("ReplayClient", "ReplayWriter", "ReplaySampler", "ParamsClient", "ParamsWatcher", "LearnerClient"),
    *("VectorEnv", "Agent", "Policy", "Callback"),
)
_STATUS = LearnerStatus(
    state=LearnerState.TRAINING,
    learner_steps=7,
    env_steps=28,
    steps_per_s=3.5,
    wait_fraction=0.25,
    params_version=2,
    fencing_token=3,
    checkpoint_steps=5,
    table_items=11,
    metrics={},
    uptime_s=9.0,
    max_learner_steps=100,
    restored="",
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A replay server, a parameter server and a learner's control service, by the addresses that examples have."""
    folder: Path = tmp_path_factory.mktemp("params")
    with (
        replay_server() as replay,
        params_server(folder) as params,
        BackgroundServer("learner", ServerSettings(grace_s=0.2)) as learner,
    ):
        LearnerServicer(Control(threading.Event()), lambda: _STATUS).add_to(learner.server)
        yield {
            "127.0.0.1:7401": replay.address,
            "127.0.0.1:7402": params.address,
            "127.0.0.1:7403": learner.start(),
        }


def run_example(text: str, name: str, addresses: dict[str, str]) -> tuple[int, str]:
    """Run the examples of a docstring; return how many statements there were, and what differed from their text."""
    for written, actual in addresses.items():
        text = text.replace(written, actual)
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    said: list[str] = []
    with capture_logs():  # of the servers in this process, which are no part of what an example prints
        result = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return result.attempted, "".join(said)


@pytest.mark.parametrize("name", MAIN)
def test_example_does_what_its_docstring_says(name: str, addresses: dict[str, str]) -> None:
    """Every statement runs, and prints what is written below it."""
    count, differences = run_example(inspect.getdoc(getattr(tidemill, name)) or "", name, addresses)
    assert differences == ""
    assert count >= 2


def test_every_example_is_run() -> None:
    """No public docstring has an example that is in no list here."""
    with_example = {
        name
        for name in tidemill.__all__
        if ">>> " in (inspect.getdoc(getattr(tidemill, name)) or "") and name[0].isupper()
    }
    assert with_example == {*MAIN, "Cluster"}
