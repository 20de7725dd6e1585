"""The examples of public docstrings, which docs/api.md shows too: run as written, against real servers."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.support.documented import run_example
from tests.support.params_service import local_server as params_server
from tests.support.replay_service import local_server as replay_server
from tests.support.simulator_service import create_table, local_simulators
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import stored_columns
from tidemill.rl.settings.soft_actor_critic import SACConfig
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
_STATUS = LearnerStatus(LearnerState.TRAINING, learner_steps=7)


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


def _code(page: str) -> list[str]:
    """Return the blocks of Python of a page."""
    text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_code_on_prior_data_does_what_its_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """A program's own episodes fit the table of a run of SAC; half of a batch is from each server, as `tables` says.

    With returns of three steps, and stacks, every decision is an item as well.
    """
    own, mixed = _code("tutorials/prior-data.md")
    names: dict[str, Any] = {}
    with replay_server() as server:
        exec(own.replace("127.0.0.1:7411", server.address), names)
        with tidemill.ReplayClient(server.address) as client:
            (found,) = client.list_tables()
    assert found.items == sum(len(actions) for _, actions, _ in names["episodes"]) == 30
    assert found.env_steps == 0
    assert found.config.signature == stored_columns(SACConfig(), names["spaces"])
    assert found.config.max_item_steps == SACConfig().window(1).length
    with replay_server() as server:
        exec(own.replace("127.0.0.1:7411", server.address).replace("n_step, stack = 1, 1", "n_step, stack = 3, 2"), {})
        with tidemill.ReplayClient(server.address) as client:
            (longer,) = client.list_tables()
    assert longer.items == 30
    assert longer.config.max_item_steps == SACConfig(n_step=3).window(2).length
    exec(mixed, {})
    assert "[0 0 0 0 1 1 1 1] [0. 0. 0. 0. 1. 1. 1. 1.]" in capsys.readouterr().out


def test_code_on_simulators_plays_until_the_run_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """Then it says so and ends; the spaces of several parts are those of its page."""
    plays, declares = _code("tutorials/simulators.md")
    config = DQNConfig(network="mlp", hidden_sizes=(8,), dueling=False, n_step=1)

    class Game:
        """Ends with the run, in its third episode."""

        def __init__(self) -> None:
            self.episodes, self.pushed = 0, 0

        def reset(self) -> list[float]:
            self.episodes += 1
            return [0.0] * 4

        def push(self, action: int) -> tuple[list[float], float, bool, bool]:
            assert action in (0, 1)
            self.pushed += 1
            if self.episodes == 3:
                raise tidemill.Unavailable("the run has ended")
            return [1.0] * 4, 1.0, self.pushed % 5 == 0, False

    game, spec = Game(), tidemill.EnvSpec((4,), "float32", num_actions=2)
    with replay_server() as replay:
        create_table(replay.address, config, spec)
        with local_simulators(replay.address, config, spec) as service:
            exec(plays.replace("127.0.0.1:7406", service.address), {"game": game})
    assert game.pushed == 11
    assert "the run has ended" in capsys.readouterr().out
    names: dict[str, Any] = {}
    exec(declares, names)
    assert [part.name for part in names["spaces"].observation_parts] == ["speed", "camera"]
