"""The algorithm and the network of docs/tutorials/own-algorithm.md: taken from the page, and run."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.batches import policy_input
from tests.support.naming import naming
from tests.unit.rl.test_dqn import CHAIN, chain_batch
from tidemill.config.load import from_document, load
from tidemill.config.sections import LearnerConfig, RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.settings.registry import config_class
from tidemill.types import EnvSpec

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "own-algorithm.md"
NAME = "my_project.expected_sarsa"


@pytest.fixture(autouse=True)
def my_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's files where it says they are."""
    folder = tmp_path / "my_project" / "expected_sarsa"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    text = PAGE.read_text()
    files = re.findall(r"^`(\w+\.py)`[^`]*?:\n\n```python\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["config.py", "networks.py", "loss.py", "agent.py", "policy.py"]
    for name, code in files:
        (folder / name).write_text(code)
    torso = re.search(r"`outputs`:\n\n```python\n(.*?)```", text, re.DOTALL)
    assert torso is not None
    (folder.parent / "angles.py").write_text(torso[1])
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_project"]:
        del sys.modules[name]


def chain_values(epsilon: float) -> list[float]:
    """Return the largest Q of each state of the chain under the epsilon-greedy policy, by repeated substitution."""
    q = np.zeros((3, 2))
    following = [[0, 1], [1, 2], [2, 2]]
    reward, discount = [[0.1, 0.0], [0.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5], [0.5, 0.0]]
    for _ in range(100):
        value = (1 - epsilon) * q.max(axis=1) + epsilon * q.mean(axis=1)
        q = np.array(reward) + np.array(discount) * value[following]
    return [float(best) for best in q.max(axis=1)]


def test_documented_algorithm_learns() -> None:
    """With epsilon .5 it stays in state 0, unlike Q-learning: half of what follows a move right is chance.

    By hand, in the last state Q = [.5 V, 1] and V = .5 * 1 + .5 * (.5 V + 1) / 2, so V = .75 / .875.
    """
    epsilon = 0.5
    assert chain_values(epsilon)[2] == 1.0
    assert chain_values(epsilon)[1] == pytest.approx(0.5 * 0.75 / 0.875)
    config = config_class(NAME)(epsilon=epsilon, gamma=0.5, learning_rate=3e-3, tau=0.05)  # type: ignore[call-arg]
    agent = build_agent(config, CHAIN)
    for _ in range(800):
        agent.update(chain_batch(), torch.ones(6))
    state = agent.policy_state()
    policy = build_policy(config, CHAIN)
    policy.load(state)
    assert policy.act(policy_input(np.eye(3, dtype=np.float32)), evaluation=True).action.tolist() == [0, 1, 1]
    network = sys.modules[type(agent).__module__].build_network(config, CHAIN, seed=0)
    network.load_state_dict(state)
    found = network(torch.eye(3)).amax(dim=1)
    np.testing.assert_allclose(found.detach().numpy(), chain_values(epsilon), atol=0.01)


@pytest.mark.requires_cuda
def test_documented_algorithm_learns_and_acts_on_a_gpu() -> None:
    """Observations are the host's, and so are actions."""
    config = config_class(NAME)()
    agent, policy = build_agent(config, CHAIN, "cuda"), build_policy(config, CHAIN, "cuda")
    agent.update({name: tensor.to("cuda") for name, tensor in chain_batch().items()}, torch.ones(6, device="cuda"))
    policy.load(agent.policy_state())
    assert policy.act(policy_input(np.eye(3, dtype=np.float32)), evaluation=True).action.shape == (3,)


def test_documented_algorithm_goes_on_where_it_was_stored() -> None:
    """Its stored state is enough to resume bit for bit."""
    config = config_class(NAME)()
    straight, resumed = build_agent(config, CHAIN, seed=1), build_agent(config, CHAIN, seed=2)
    straight.update(chain_batch(), torch.ones(6))
    resumed.load_state_dict(straight.state_dict())
    for agent in (straight, resumed):
        agent.update(chain_batch(), torch.ones(6))
    expected, found = straight.policy_state(), resumed.policy_state()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_documented_algorithm_is_configured_like_any_other() -> None:
    """By its package's path, in a file and on the command line; its checks and its environments are its own."""
    run = from_document(RunConfig, {"agent": {"algorithm": NAME, "epsilon": 0.3}})
    assert (run.agent.algorithm, run.agent.epsilon) == (NAME, 0.3)  # type: ignore[attr-defined]
    arguments = ["--agent.algorithm", NAME, "--agent.hidden-sizes", "8", "9"]
    learner = load(LearnerConfig, arguments, prog="learner", description="Trains.")
    assert learner.agent.hidden_sizes == (8, 9)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=naming("epsilon 2.0 0 1")):
        from_document(RunConfig, {"agent": {"algorithm": NAME, "epsilon": 2.0}})
    with pytest.raises(ConfigError, match=naming("continuous")):
        build_agent(run.agent, EnvSpec((3,), "float32", action_shape=(1,)))


@pytest.mark.parametrize(
    "name,message",
    [
        ("dqm", "agent.algorithm 'dqm' 'dqn'"),
        ("my_project.nothing", "my_project.nothing.config"),
        ("tests.unit", "algorithm"),
    ],
)
def test_algorithm_that_is_not_there_is_refused(name: str, message: str) -> None:
    """The message says what was looked for."""
    with pytest.raises(ConfigError, match=naming(message)):
        config_class(name)


def test_documented_network_is_a_torso() -> None:
    """By its module's path."""
    torso = build_torso("my_project.angles", EnvSpec((2,), "float32", num_actions=2), torch.Generator())
    torch.testing.assert_close(torso(torch.zeros((1, 2))), torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
