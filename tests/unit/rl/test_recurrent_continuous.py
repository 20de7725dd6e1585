"""Recurrent SAC and TD3: updates against an independent implementation, and their memories."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.support.batches import CONTINUOUS, PIXELS, SMALL_LSTM, policy_input, random_batch
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.items import Transitions
from tidemill.rl.networks.recurrent import RecurrentTorso, Steps
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.rl.settings.deterministic import TD3Config
from tidemill.rl.settings.soft_actor_critic import SACConfig

CELLS, STREAMS, ACTIONS, GAMMA = 5, 6, 2, 0.9
SIZES: dict[str, Any] = {"lstm_size": CELLS, "burn_in": 3, "unroll": 7, "period": 2, "n_step": 2, "gamma": GAMMA}
SAC = SACConfig(hidden_sizes=(8,), **SIZES, start_steps=0)
TD3 = TD3Config(hidden_sizes=(8,), **SIZES, start_steps=0, policy_delay=1)
Config = SACConfig | TD3Config
BOTH = pytest.mark.parametrize("config", [SAC, TD3], ids=["sac", "td3"])

Rows = dict[str, NDArray[Any]]


def acted(config: Config, state: dict[str, Tensor], rows: int = 40) -> Rows:
    """Return rows of made-up environments as an actor stores them, [rows, STREAMS, ...], each with its memory before.

    Episodes end by termination or truncation, then there is a final observation step, whose reward means nothing.
    """
    policy = build_policy(config, CONTINUOUS, seed=1)
    policy.load(state)
    rng, builder = np.random.default_rng(5), PolicyInputBuilder(STREAMS, CONTINUOUS, policy.recurrent_state_size)
    is_first, ended, steps = np.ones(STREAMS, np.bool_), np.zeros(STREAMS, np.bool_), []
    reward: NDArray[np.float32] | None = None
    for _ in range(rows):
        seen = builder.build(rng.normal(size=(STREAMS, 3)).astype(np.float32), is_first, reward)
        output = policy.act(seen)
        builder.record(output)
        terminated, truncated = (~ended & (rng.random(STREAMS) < 0.07) for _ in range(2))
        reward = np.where(ended, np.nan, 3 * rng.normal(size=STREAMS)).astype(np.float32)
        row = {"observation": seen.observation, "action": output.action, "is_first": is_first, "reward": reward}
        row |= {"terminated": terminated, "truncated": truncated & ~terminated}
        steps.append(row | {"recurrent_state": seen.recurrent_state, "is_final": ended})
        is_first, ended = ended, terminated | truncated
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def decoded(agent: Any, rows: Rows, start: int) -> dict[str, Tensor]:  # noqa: ANN401 - the agent of any algorithm
    """Return the batch of the items that start at a row of every stream, as the learner has it."""
    flat = {name: column.swapaxes(0, 1).reshape(-1, *column.shape[2:]) for name, column in rows.items()}
    index = np.arange(STREAMS)[:, None] * len(rows["reward"]) + start - 1 + np.arange(agent.window.length)
    batch = {name: torch.from_numpy(column) for name, column in agent.decode(flat, index).items()}
    return batch | {"recurrent_state": torch.from_numpy(rows["recurrent_state"][start])}


class Memory(nn.Module):
    """The part of a network before its layers, written out: torch's LSTM, one step of one stream at a time."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3 + ACTIONS + 1, CELLS)
        with torch.no_grad():
            self.cell.weight_ih.copy_(parameters["torso.lstm.input_weight"])
            self.cell.weight_hh.copy_(parameters["torso.lstm.output_weight"])
            self.cell.bias_ih.copy_(parameters["torso.lstm.bias"])
            self.cell.bias_hh.zero_()
        self.cell.bias_hh.requires_grad_(False)

    def features(self, rows: Rows, stream: int, start: int, stored: bool, trains_burn_in: bool = False) -> Tensor:
        """Return the layers' inputs of each step after the burn-in, [steps, CELLS + 3]."""
        state = torch.from_numpy(rows["recurrent_state"][start, stream]) if stored else torch.zeros(2 * CELLS)
        h, c = state.chunk(2)
        found = []
        for step in range(SAC.burn_in + SAC.unroll + SAC.n_step):
            row = start + step
            observation = torch.from_numpy(rows["observation"][row, stream])
            before = torch.zeros(ACTIONS + 1)
            if rows["is_first"][row, stream]:
                h, c = torch.zeros(CELLS), torch.zeros(CELLS)
            else:
                reward = float(rows["reward"][row - 1, stream])
                size = math.sqrt(abs(reward) + 1) - 1
                squashed = math.copysign(size, reward) + 1e-3 * reward
                before = torch.cat((torch.from_numpy(rows["action"][row - 1, stream]), torch.tensor([squashed])))
            with torch.set_grad_enabled(trains_burn_in or step >= SAC.burn_in):
                h, c = self.cell(torch.cat((observation, before))[None], (h.view(1, -1), c.view(1, -1)))
            if step >= SAC.burn_in:
                found.append(torch.cat((h[0], observation)))
        return torch.stack(found)


def _layer(parameters: dict[str, Tensor], name: str) -> Tensor:
    """Return a parameter of a perceptron as SAC has it, [copies, inputs, outputs] or [copies, 1, outputs]."""
    if name in parameters:
        return parameters[name].detach().clone()
    if f"network.{name}" in parameters:
        return parameters[f"network.{name}"].detach().clone()
    plain = parameters["network." + name.replace("layers.0", "hidden.0").replace("layers.1", "head")]  # torch's own
    return plain.detach().T[None].clone() if plain.ndim == 2 else plain.detach()[None, None].clone()


class Network(nn.Module):
    """A memory, and one or two perceptrons with a hidden layer behind it."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.memory = Memory(parameters)
        names = (f"{layer}.{kind}" for layer in ("layers.0", "layers.1") for kind in ("weight", "bias"))
        self.layers = nn.ParameterList(_layer(parameters, name) for name in names)

    def behind(self, features: Tensor, copy: int = 0) -> Tensor:
        """Return the output of one perceptron, [N, outputs]."""
        weight, bias, last_weight, last_bias = (each[copy] for each in self.layers)
        output: Tensor = torch.relu(features @ weight + bias) @ last_weight + last_bias
        return output

    def values(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the values of both critics, [2, N]."""
        inputs = torch.cat((features, action), dim=1)
        return torch.stack([self.behind(inputs, copy).squeeze(1) for copy in (0, 1)])

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Return those of the layers, then those of the LSTM."""
        cell = self.memory.cell
        parameters = [*self.layers, cell.weight_ih, cell.weight_hh, cell.bias_ih]
        return list(torch.autograd.grad(loss, parameters))


def drawn(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return squashed actions and their log-densities, the density of a normal distribution corrected for tanh."""
    mean, log_std = head.chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    raw = mean + normal.scale * noise
    action = torch.tanh(raw)
    return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-12)).sum(dim=1)


def returns(rows: Rows, stream: int, row: int) -> tuple[float, float, int]:
    """Return sum of rewards, discount and row to bootstrap from, of a step that counts."""
    total, discount = 0.0, 1.0
    for step in range(SAC.n_step):
        at = (row + step, stream)
        total += discount * float(rows["reward"][at])
        discount *= GAMMA
        if rows["terminated"][at]:
            return total, 0.0, row + step + 1
        if rows["truncated"][at]:
            return total, discount, row + step + 1
    return total, discount, row + SAC.n_step


def reference_losses(
    config: Config,
    before: dict[str, Any],
    after: dict[str, Any],
    rows: Rows,
    start: int,
    weight: Tensor,
    trains_burn_in: bool = False,
) -> dict[str, Any]:
    """Return losses, gradients and priorities of an update between two states of an agent, item by item."""
    is_soft = isinstance(config, SACConfig)
    actor, critic, new_critic = Network(before["actor"]), Network(before["critic"]), Network(after["critic"])
    target = Network(before["target" if is_soft else "target_critic"])
    target_actor = actor if is_soft else Network(before["target_actor"])
    temperature = float(before["log_temperature"].exp()) if is_soft else 0.0
    count = STREAMS * config.unroll
    noise = torch.randn((2 if is_soft else 1, count, ACTIONS), generator=torch.Generator().manual_seed(3))

    def act(head: Tensor, drawn_noise: Tensor) -> tuple[Tensor, Tensor]:
        return drawn(head, drawn_noise) if is_soft else (torch.tanh(head), torch.zeros(1))

    critic_loss, actor_loss, surplus = torch.zeros(()), torch.zeros(()), torch.zeros(())
    priorities = []
    for b in range(STREAMS):
        heads, then = (
            network.behind(network.memory.features(rows, b, start, stored=True, trains_burn_in=trains_burn_in))
            for network in (actor, target_actor)
        )
        features = critic.memory.features(rows, b, start, stored=False, trains_burn_in=trains_burn_in)
        with torch.no_grad():
            target_features = target.memory.features(rows, b, start, stored=False)
            new_features = new_critic.memory.features(rows, b, start, stored=False)
        errors = []
        for u in range(config.unroll):
            row, number = start + config.burn_in + u, b * config.unroll + u
            if rows["is_final"][row, b]:
                continue
            total, discount, at = returns(rows, b, row)
            with torch.no_grad():
                step = at - start - config.burn_in
                next_action, log_prob = act(then[step, None], noise[0, number, None])
                if not is_soft:
                    next_action = (next_action + (0.2 * noise[0, number, None]).clamp(-0.5, 0.5)).clamp(-1, 1)
                value = target.values(target_features[step, None], next_action).min() - temperature * log_prob[0]
                wanted = total + discount * value
            q = critic.values(features[u, None], torch.from_numpy(rows["action"][row, b])[None])[:, 0]
            critic_loss = critic_loss + weight[b] * 0.5 * (q - wanted).square().sum()
            errors.append(float((q - wanted).detach().abs().mean()))
            action, log_prob = act(heads[u, None], noise[-1, number, None])
            led_by = new_critic.values(new_features[u, None], action)
            actor_loss = actor_loss + temperature * log_prob[0] - (led_by.min() if is_soft else led_by[0, 0])
            surplus = surplus - log_prob[0].detach() + ACTIONS
        priorities.append(0.9 * max(errors) + 0.1 * float(np.mean(errors)))
    return {
        "critic_loss": critic_loss / count,
        "critic": critic.gradients(critic_loss / count),
        "actor": actor.gradients(actor_loss / count),
        "temperature": surplus / count,
        "priority": torch.tensor(priorities),
    }


def gradients_of(state: dict[str, Any], name: str) -> list[Tensor]:
    """Return the gradients of an agent's first update, the LSTM's last: Adam's means are a tenth of them."""
    means = state[f"{name}_optimizer"]["mean"].values()
    found = {key: 10 * mean for key, mean in zip(state[name], means, strict=True)}
    layers = [f"{layer}.{kind}" for layer in ("layers.0", "layers.1") for kind in ("weight", "bias")]
    lstm = [found[f"torso.lstm.{key}"] for key in ("input_weight", "output_weight", "bias")]
    return [*(_layer(found, key) for key in layers), *lstm]


def interesting_start(rows: Rows) -> int:
    """Return a start after which episodes end in the burn-in, in the unroll and in the rows to bootstrap from."""
    parts = ((0, 3), (3, 10), (10, 12))
    for start in range(5, 25):
        if all(rows["is_first"][start + first : start + last].any() for first, last in parts):
            return start
    raise AssertionError("no such start")


@BOTH
def test_update_equals_an_independent_implementation(config: Config) -> None:
    """Loss, all gradients and priorities of sequences in which episodes end, and no gradient through the burn-in."""
    agent = build_agent(config, CONTINUOUS, seed=3)
    rows = acted(config, agent.policy_state())
    start = interesting_start(rows)
    batch, weight = decoded(agent, rows, start), torch.linspace(0.5, 1.5, STREAMS)
    assert bool((~batch["is_trained"]).any()), "there is a final observation step"
    assert bool((batch["recurrent_state"] != 0).any()), "an episode is under way at the start"
    before = {name: _copied(value) for name, value in agent.state_dict().items()}
    update, after = agent.update(batch, weight), agent.state_dict()
    expected = reference_losses(config, before, after, rows, start, weight)
    torch.testing.assert_close(update.metrics["loss"], expected["critic_loss"].detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(update.priority, expected["priority"], rtol=1e-5, atol=1e-5)
    if isinstance(config, SACConfig):
        temperature = 10 * after["temperature_optimizer"]["mean"]["0"]
        torch.testing.assert_close(temperature, expected["temperature"], rtol=1e-4, atol=1e-5)
    for name in ("critic", "actor"):
        torch.testing.assert_close(gradients_of(after, name), expected[name], rtol=1e-4, atol=1e-6)
    trained = reference_losses(config, before, after, rows, start, weight, trains_burn_in=True)
    for name in ("critic", "actor"):
        assert not torch.allclose(gradients_of(after, name)[-1], trained[name][-1], rtol=1e-2)


def _copied(value: Any) -> Any:  # noqa: ANN401 - a leaf or a dict of them
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


@BOTH
@pytest.mark.parametrize("burn_in", [0, 3])
def test_learner_unrolls_what_the_actor_did(config: Config, burn_in: int) -> None:
    """The network's outputs for whole sequences equal the policy's, step by step; without its state they do not."""
    config = dataclasses.replace(config, burn_in=burn_in)
    agent: Any = build_agent(config, CONTINUOUS, seed=3)
    actor, name = (agent._actor, "head") if isinstance(config, SACConfig) else (agent._networks.actor, "action")
    state = agent.policy_state()
    rows = acted(config, state)
    policy: Any = build_policy(config, CONTINUOUS, seed=1)
    policy.load(state)
    for start in (1, 13, 20):
        batch = decoded(agent, rows, start)
        learned: Transitions = agent._items.transitions(batch, torch.ones(STREAMS))
        assert isinstance(learned.observation, Steps)
        forgotten = learned.observation._replace(recurrent_state=torch.zeros_like(batch["recurrent_state"]))
        with torch.no_grad():
            found, other = (actor(seen).view(STREAMS, config.unroll, -1) for seen in (learned.observation, forgotten))
        for u in range(config.unroll):
            row = start + burn_in + u
            seen = PolicyInputBuilder(STREAMS, CONTINUOUS, 2 * CELLS)
            seen._action, seen._recurrent_state = rows["action"][row - 1], rows["recurrent_state"][row]
            step = seen.build(rows["observation"][row], rows["is_first"][row], rows["reward"][row - 1])
            np.testing.assert_allclose(policy.forward(step)[name], found[:, u], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found, other, atol=1e-3)


@BOTH
def test_memory_of_random_first_steps_is_kept(config: Config) -> None:
    """While actions are random the actor's LSTM watches: stored states are those of the observations so far."""
    config = dataclasses.replace(config, start_steps=10**6)
    rows = acted(config, build_agent(config, CONTINUOUS, seed=3).policy_state())
    assert (rows["recurrent_state"][5:] != 0).any(axis=2).mean() > 0.8


def test_actor_and_critics_have_a_memory_each() -> None:
    """Neither shares parameters with the other, and a critic's starts empty, whatever the actor remembered."""
    agent: Any = build_agent(SAC, CONTINUOUS, seed=0)
    actor, critic = agent._actor.torso, agent._critic.torso
    assert isinstance(actor, RecurrentTorso)
    assert not {id(each) for each in actor.parameters()} & {id(each) for each in critic.parameters()}
    rng = torch.Generator().manual_seed(0)
    steps = Steps(
        observation=torch.randn((4, 2, 3), generator=rng),
        last_action=torch.randn((4, 2, ACTIONS), generator=rng),
        last_reward=torch.randn((4, 2), generator=rng),
        is_first=torch.zeros((4, 2), dtype=torch.bool),
        recurrent_state=torch.randn((2, 2 * CELLS), generator=rng),
    )
    empty = steps._replace(recurrent_state=torch.zeros((2, 2 * CELLS)))
    assert torch.equal(critic(steps), critic(empty))
    assert not torch.allclose(actor(steps), actor(empty))


def test_policy_of_images_remembers() -> None:
    """Stacks pass through the torso for images; the state of a step depends on the one before."""
    config = SACConfig(network="nature", hidden_sizes=(8,), **SMALL_LSTM, start_steps=0)
    policy = build_policy(config, PIXELS, seed=0)
    images = random_batch(PIXELS, 2, torch.Generator().manual_seed(0))["observation"].numpy()
    seen = policy_input(images, None, policy.recurrent_state_size, np.zeros((2, 2), np.float32))
    first = policy.act(seen, evaluation=True).recurrent_state
    assert first is not None
    second = policy.act(dataclasses.replace(seen, recurrent_state=first), evaluation=True).recurrent_state
    assert second is not None
    assert first.shape == (2, policy.recurrent_state_size)
    assert not np.allclose(first, second)


def test_crossq_with_an_lstm_is_refused() -> None:
    """The message says why."""
    with pytest.raises(ConfigError, match=naming("lstm_size 8 0 crossq")):
        SACConfig(crossq=True, lstm_size=8)
