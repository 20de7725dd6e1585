"""A loss of one's own for DQN, for every representation of values, and what is said of one that does not fit."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from losses import log_cosh
from tests.support.batches import VECTOR, sampled_batch
from tests.support.naming import naming
from tidemill.config.load import load_config
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.dqn_heads import ScalarHead, build_value_head
from tidemill.rl.settings.q_learning import DQNConfig

SMALL: dict[str, Any] = {"network": "mlp", "hidden_sizes": (8,), "noisy": False}

_MODULE = """
from tidemill.rl.agents.dqn_heads import ScalarHead

same_as_huber = ScalarHead(huber=True).loss


def distance(chosen_q, n_step_return, bootstrap_discount, bootstrap_q):
    target = n_step_return[:, None] + bootstrap_discount[:, None] * bootstrap_q
    return (chosen_q - target.detach()).square().mean(1), (chosen_q - target).abs().mean(1)


def summed(*arguments):
    loss, priority = distance(*arguments)
    return loss.sum(), priority


def detached(*arguments):
    loss, priority = distance(*arguments)
    return loss.detach(), priority


def alone(*arguments):
    return distance(*arguments)[0]


def fails(chosen_q, *others):
    return chosen_q @ chosen_q, None
"""


@pytest.fixture
def odd_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of losses in the working directory."""
    (tmp_path / "odd_losses.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("odd_losses", None)


def test_example_is_log_cosh_of_the_error() -> None:
    """By hand: the target of return 1, discount .5 and bootstrap value 4 is 3, the errors are 0 and 2."""
    chosen, ones = torch.tensor([[3.0], [5.0]]), torch.ones(2)
    loss, priority = log_cosh(chosen, ones, 0.5 * ones, torch.full((2, 1), 4.0))
    torch.testing.assert_close(loss, torch.tensor([0.0, math.log(math.cosh(2.0))]))
    assert priority.tolist() == [0.0, 2.0]


@pytest.mark.usefixtures("odd_losses")
def test_same_loss_makes_the_same_updates() -> None:
    """The project's own Huber loss, named from outside, ends in bit-equal parameters."""
    ours, named = (build_agent(DQNConfig(**SMALL, loss=loss), VECTOR) for loss in ("huber", "odd_losses:same_as_huber"))
    for number in range(3):
        for agent in (ours, named):
            batch = sampled_batch(agent, DQNConfig(**SMALL), VECTOR, 6, torch.Generator().manual_seed(number))
            agent.update(batch, torch.ones(6))
    expected, found = ours.policy_state(), named.policy_state()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.usefixtures("odd_losses")
@pytest.mark.parametrize("distribution", ["none", "c51", "qr"])
def test_any_representation_of_values_takes_it(distribution: str) -> None:
    """It gets as many numbers as the representation has; priorities of learner and actor follow it."""
    config = DQNConfig(**SMALL, distribution=distribution, atoms=5, loss="odd_losses:distance")  # type: ignore[arg-type]
    agent, policy = build_agent(config, VECTOR), build_policy(config, VECTOR)
    update = agent.update(sampled_batch(agent, config, VECTOR, 6, torch.Generator().manual_seed(0)), torch.ones(6))
    assert update.priority.shape == (6,)
    assert not update.priority.requires_grad
    assert update.metrics["grad_norm"] > 0
    values = config.values_per_action
    steps = {name: np.zeros((4, 3), bool) for name in ("terminated", "truncated", "is_reset_step")}
    steps |= {"reward": np.ones((4, 3), np.float32)}
    steps |= {name: np.zeros((4, 3, values), np.float32) for name in ("chosen", "best")}
    np.testing.assert_allclose(policy.initial_priority(steps), np.full(3, 1 + 0.99 + 0.99**2), rtol=1e-5)


@pytest.mark.usefixtures("odd_losses")
@pytest.mark.parametrize(
    "name,message",
    [
        ("odd_losses:distanse", "odd_losses 'distanse' 'distance'"),
        ("odd_losses:summed", "loss () priority (2,) (2,)"),
        ("odd_losses:detached", "loss gradient"),
        ("odd_losses:fails", "(2, 1) (2,) (2,) (2, 1) RuntimeError"),
        ("odd_losses:alone", "loss () priority ()"),
    ],
)
def test_loss_that_does_not_fit_is_refused(name: str, message: str) -> None:
    """Before anything is trained; the message says what it was called with and what it returned."""
    with pytest.raises(ConfigError, match=naming(message)):
        build_value_head(DQNConfig(**SMALL, loss=name), torch.device("cpu"))


@pytest.mark.parametrize(
    "name, words", [("hubert", "'huber' 'mse' module:name"), ("no_such_losses:huber", "module 'no_such_losses'")]
)
def test_loss_that_is_not_there_is_refused(name: str, words: str) -> None:
    """When settings are read."""
    with pytest.raises(ConfigError, match=naming("agent.loss", f"'{name}'", words)):
        load_config({"agent": {"algorithm": "dqn", "loss": name}})


def test_losses_of_the_project_stay_as_they_are() -> None:
    """A name without a module is one of them."""
    assert isinstance(build_value_head(DQNConfig(**SMALL, loss="mse"), torch.device("cpu")), ScalarHead)
