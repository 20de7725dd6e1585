"""The examples of public docstrings, which docs/api.md shows too: run as written, against real servers."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill
from tests.support.documented import run_example
from tests.support.params_service import local_server as params_server
from tests.support.replay_service import local_server as replay_server
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings
from tidemill.services.learner.servicer import LearnerServicer
from tidemill.services.learner.status.control import Control

# In this order; that of `Cluster` is in tests/process.
MAIN = (
    *(
        "ReplayClient",
        "ReplayWriter",
        "ReplayDataset",
        "ReplaySampler",
        "ParamsClient",
        "ParamsWatcher",
        "LearnerClient",
    ),
    *("VectorEnv", "Agent", "Policy", "Callback", "RunLogger"),
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


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A replay server, a parameter server and a learner's control service, by the addresses that examples have."""
    with (
        replay_server() as replay,
        params_server(tmp_path) as params,
        BackgroundServer("learner", ServerSettings(grace_s=0.2)) as learner,
    ):
        LearnerServicer(Control(threading.Event()), lambda: _STATUS).add_to(learner.server)
        yield {
            "127.0.0.1:7401": replay.address,
            "127.0.0.1:7402": params.address,
            "127.0.0.1:7403": learner.start(),
        }


def test_example_does_what_its_docstring_says(addresses: dict[str, str]) -> None:
    """Every statement runs, and prints what is written below it; a later one uses what an earlier one has stored."""
    for name in MAIN:
        count, differences = run_example(inspect.getdoc(getattr(tidemill, name)) or "", name, addresses)
        assert differences == "", name
        assert count >= 2, name


def test_every_example_is_run() -> None:
    """No public docstring has an example that is in no list here."""
    with_example = {
        name
        for name in tidemill.__all__
        if ">>> " in (inspect.getdoc(getattr(tidemill, name)) or "") and name[0].isupper()
    }
    assert with_example == {*MAIN, "Cluster"}


def test_code_on_prior_data_does_what_its_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the batch is from each server, as `tables` says."""
    page = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "prior-data.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    assert "[0 0 0 0 1 1 1 1] [0. 0. 0. 0. 1. 1. 1. 1.]" in capsys.readouterr().out
