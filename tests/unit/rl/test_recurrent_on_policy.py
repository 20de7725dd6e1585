"""PPO and IMPALA with an LSTM: what the learner unrolls is what the actor did, and what they make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from structlog.testing import capture_logs
from torch import Tensor, nn

from tests.support.envs import RecallEnv
from tests.support.naming import naming
from tests.support.playing import play
from tests.unit.rl.test_on_policy import reference_advantages, reference_impala_loss
from tests.unit.rl.test_recurrent_continuous import decoded
from tidemill.envs.make import spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.impala import IMPALAAgent
from tidemill.rl.agents.interface import PolicyContext
from tidemill.rl.agents.on_policy import ActorCriticPolicy, Rollout
from tidemill.rl.agents.ppo import PPOAgent
from tidemill.rl.networks.layers.lstm import Recurrence
from tidemill.rl.policy_io import PolicyInputBuilder
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig
from tidemill.types import EnvSpec

DISCRETE = EnvSpec((3,), "float32", num_actions=4)
CONTINUOUS = EnvSpec((3,), "float32", action_shape=(2,))
BOTH = pytest.mark.parametrize("env_spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
CPU = torch.device("cpu")
STEPS, STREAMS, GAMMA, CELLS = 9, 6, 0.9, 5
NETWORK: dict[str, Any] = {"lstm_size": CELLS, "encoder_sizes": (7,), "hidden_sizes": (8,), "unroll": STEPS}

Agents = PPOAgent | IMPALAAgent
Configs = PPOConfig | IMPALAConfig
Transition = tuple[int, int]
"""Stream and step."""


def acted(agent: Agents, config: Configs, env_spec: EnvSpec, rows: int = 40) -> dict[str, NDArray[Any]]:
    """Return rows of made-up environments as an actor stores them, [rows, STREAMS, ...].

    Episodes end by termination or truncation, then there is a final observation step. Beside each row are the
    recurrent state before it and the value of its observation, which the actor's network finds step by step.
    """
    policy = ActorCriticPolicy(config, env_spec, PolicyContext(CPU, 1))
    policy.load(agent.policy_state())
    rng, builder = np.random.default_rng(5), PolicyInputBuilder(STREAMS, env_spec, policy.recurrent_state_size)
    is_first, ended, steps = np.ones(STREAMS, np.bool_), np.zeros(STREAMS, np.bool_), []
    for _ in range(rows):
        seen = builder.build(rng.normal(size=(STREAMS, 3)).astype(np.float32), is_first)
        output = policy.act(seen)
        builder.record(output)
        inputs = (torch.from_numpy(column) for column in (seen.is_first[None], seen.recurrent_state))
        with torch.no_grad():
            value = agent.network.values(torch.from_numpy(seen.observation), Recurrence(*inputs)).numpy()
        terminated, truncated = (~ended & (rng.random(STREAMS) < 0.07) for _ in range(2))
        row = {"observation": seen.observation, "action": output.action, "is_first": is_first, "value": value}
        row |= {"terminated": terminated, "truncated": truncated & ~terminated, **output.extras}
        reward = rng.normal(size=STREAMS).astype(np.float32)
        steps.append(row | {"reward": reward, "recurrent_state": seen.recurrent_state})
        is_first, ended = ended, terminated | truncated
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


def made(config: Configs, env_spec: EnvSpec) -> Any:  # noqa: ANN401 - the config's agent
    """Return the agent, with a policy that is far from uniform."""
    agent = (PPOAgent if isinstance(config, PPOConfig) else IMPALAAgent)(config, env_spec, CPU, seed=3)  # type: ignore[arg-type]
    with torch.no_grad():
        agent.network.get_parameter("policy.1.weight").normal_(generator=torch.Generator().manual_seed(0))
    return agent


def rollout(agent: Agents, config: Configs, env_spec: EnvSpec) -> dict[str, Tensor]:
    """Return a batch in which episodes end, played by another policy than the agent's."""
    batch = decoded(agent, acted(agent, config, env_spec), start=20)
    assert bool(batch["is_first"][:, 1:].any()), "an episode starts inside"
    assert bool((~batch["is_trained"]).any()), "there is a final observation step"
    assert bool((batch["recurrent_state"] != 0).any()), "an episode is under way at the start"
    noise = torch.randn(batch["log_prob"].shape, generator=torch.Generator().manual_seed(2))
    return batch | {"log_prob": batch["log_prob"] + 0.3 * noise}


@BOTH
@pytest.mark.parametrize("config", [PPOConfig(**NETWORK), IMPALAConfig(**NETWORK)], ids=["ppo", "impala"])
def test_learner_unrolls_what_the_actor_did(config: Configs, env_spec: EnvSpec) -> None:
    """Log-probabilities and values of whole items equal the actor's, step by step; without its state they do not."""
    agent = made(config, env_spec)
    rows = acted(agent, config, env_spec)
    recurrence = None
    for start in (1, 13, 20):
        batch = decoded(agent, rows, start)
        found = Rollout.of(batch)
        seen, recurrence = found.observation.flatten(0, 1), found.recurrence
        distribution, value = agent.network(seen, None, recurrence)
        log_prob = distribution.first(STEPS * STREAMS).log_prob(found.action.flatten(0, 1)).detach()
        np.testing.assert_allclose(log_prob, found.log_prob.flatten(), rtol=1e-5, atol=1e-5)
        expected = rows["value"][start : start + STEPS + 1].ravel()
        np.testing.assert_allclose(value.detach(), expected, rtol=1e-5, atol=1e-5)
    assert recurrence is not None
    forgotten = recurrence._replace(recurrent_state=torch.zeros_like(recurrence.recurrent_state))
    assert not np.allclose(agent.network.values(seen, forgotten).detach(), expected, atol=1e-3)


class Reference(nn.Module):
    """The network written out with torch's own layers, one step at a time, as CleanRL's ppo_atari_lstm does it."""

    def __init__(self, parameters: dict[str, Tensor], env_spec: EnvSpec) -> None:
        super().__init__()
        outputs = env_spec.num_actions or env_spec.action_size
        self.encoder = nn.Linear(3, 7)
        self.lstm = nn.LSTM(7, CELLS)
        self.policy = nn.Sequential(nn.Linear(CELLS, 8), nn.Tanh(), nn.Linear(8, outputs))
        self.value = nn.Sequential(nn.Linear(CELLS, 8), nn.Tanh(), nn.Linear(8, 1))
        self.log_std = None if env_spec.is_discrete else nn.Parameter(torch.zeros(outputs))
        self.load_state_dict({self.named(name): value for name, value in parameters.items()}, strict=False)
        self.lstm.get_parameter("bias_hh_l0").requires_grad_(False).zero_()

    @staticmethod
    def named(name: str) -> str:
        """Return the name here of a parameter of ours."""
        for ours, theirs in (
            (".1.", ".2."),
            ("encoder.0.", "encoder."),
            ("input_weight", "weight_ih_l0"),
            ("output_weight", "weight_hh_l0"),
            ("lstm.bias", "lstm.bias_ih_l0"),
        ):
            name = name.replace(ours, theirs)
        return name

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the inputs of policy and value at every step of every stream, [STREAMS, STEPS + 1, CELLS]."""
        h, c = (part[None].contiguous() for part in batch["recurrent_state"].chunk(2, dim=1))
        steps = []
        for t in range(STEPS + 1):
            keep = 1.0 - batch["is_first"][:, t].float()[None, :, None]
            x = torch.tanh(self.encoder(batch["observation"][:, t]))
            _, (h, c) = self.lstm(x[None], (keep * h, keep * c))
            steps.append(h[0])
        return torch.stack(steps, dim=1)

    def distribution(self, features: Tensor) -> Any:  # noqa: ANN401 - torch's distributions share no useful type
        """Return torch's distribution of the actions."""
        head = self.policy(features)
        if self.log_std is None:
            return torch.distributions.Categorical(logits=head)
        normal = torch.distributions.Normal(head, self.log_std.exp().expand_as(head))
        return torch.distributions.Independent(normal, 1)

    @property
    def trained(self) -> dict[str, Tensor]:
        """The parameters by name, but the bias that ours has not."""
        return {name: value for name, value in self.named_parameters() if value.requires_grad}


def reference_loss(
    network: Reference,
    batch: dict[str, Tensor],
    config: PPOConfig,
    streams: list[int],
    advantages: dict[Transition, float],
    old_value: Tensor,
) -> Tensor:
    """Return PPO's loss of a minibatch of whole streams, transition by transition."""
    chosen = [(b, t) for b in streams for t in range(STEPS) if batch["is_trained"][b, t]]
    raw = torch.tensor([advantages[at] for at in chosen])
    scaled = (raw - raw.mean()) / (raw.std() + 1e-8)
    features, terms = network.features(batch), []
    for number, (b, t) in enumerate(chosen):
        distribution = network.distribution(features[b, t])
        ratio = (distribution.log_prob(batch["action"][b, t]) - batch["log_prob"][b, t]).exp()
        clipped = torch.clamp(ratio, 1 - config.clip, 1 + config.clip)
        policy = torch.max(-scaled[number] * ratio, -scaled[number] * clipped)
        value, old = network.value(features[b, t]).squeeze(), old_value[b, t]
        target = raw[number] + old
        moved = old + torch.clamp(value - old, -config.clip, config.clip)
        values = 0.5 * torch.max((value - target) ** 2, (moved - target) ** 2)
        entropy = distribution.entropy()
        terms.append(policy + config.value_coefficient * values - config.entropy_coefficient * entropy)
    return torch.stack(terms).mean()


def old_values(network: Reference, batch: dict[str, Tensor]) -> Tensor:
    """Return the values before the update, [STREAMS, STEPS + 1]."""
    with torch.no_grad():
        value: Tensor = network.value(network.features(batch)).squeeze(-1)
    return value


def assert_gradients_equal(agent: Agents, loss: Tensor, network: Reference, expected: Tensor) -> None:
    """Fail unless both losses and all gradients are equal to 1e-4."""
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    ours = dict(agent.network.named_parameters())
    gradients = dict(zip(map(Reference.named, ours), torch.autograd.grad(loss, list(ours.values())), strict=True))
    theirs = dict(zip(network.trained, torch.autograd.grad(expected, list(network.trained.values())), strict=True))
    assert gradients.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)


@BOTH
def test_ppo_equals_an_independent_implementation(env_spec: EnvSpec) -> None:
    """Advantages of all transitions, loss and gradients of a minibatch of two environments, to 1e-4 in float32."""
    config = PPOConfig(**NETWORK, gamma=GAMMA, gae_lambda=0.8)
    agent = made(config, env_spec)
    batch = rollout(agent, config, env_spec)
    network = Reference(agent.policy_state(), env_spec)
    samples = agent.samples(batch, torch.ones(STREAMS))
    advantages = reference_advantages(old_values(network, batch), batch, config.gae_lambda)
    found = samples.advantage.unflatten(0, (STEPS, STREAMS))
    for (b, t), advantage in advantages.items():
        assert float(found[t, b]) == pytest.approx(advantage, rel=1e-4, abs=1e-5)
    with torch.no_grad():  # values that have moved, so that their clip shows
        for parameters in (agent.network.get_parameter("value.1.bias"), network.get_parameter("value.2.bias")):
            parameters.add_(0.5)
    old_value = old_values(network, batch) - 0.5
    streams = [4, 1]
    loss, _ = agent.loss(samples.at(torch.tensor(streams)))
    expected = reference_loss(network, batch, config, streams, advantages, old_value)
    assert_gradients_equal(agent, loss, network, expected)


@BOTH
def test_ppo_update_equals_torchs_adam_on_minibatches_of_environments(env_spec: EnvSpec) -> None:
    """Two passes of three minibatches in the agent's order leave the parameters that torch's Adam leads to."""
    config = PPOConfig(**NETWORK, gamma=GAMMA, epochs=2, minibatches=3, learning_rate=1e-3, batch_size=STREAMS)
    agent = made(config, env_spec)
    batch = rollout(agent, config, env_spec)
    network = Reference(agent.policy_state(), env_spec)
    old_value = old_values(network, batch)
    advantages = reference_advantages(old_value, batch, config.gae_lambda)
    adam = torch.optim.Adam(list(network.trained.values()), lr=1e-3, eps=1e-5)
    for streams in minibatches(config, seed=3):
        adam.zero_grad()
        reference_loss(network, batch, config, streams, advantages, old_value).backward()
        nn.utils.clip_grad_norm_(network.trained.values(), config.max_grad_norm)
        adam.step()
    agent.update(batch, torch.ones(STREAMS))
    for name, value in agent.policy_state().items():
        torch.testing.assert_close(value, network.trained[Reference.named(name)].detach(), rtol=1e-3, atol=1e-5)


def minibatches(config: PPOConfig, seed: int) -> Iterator[list[int]]:
    """Yield the streams of each minibatch: every pass has each of them once, in another order."""
    rng, each = torch.Generator().manual_seed(seed), STREAMS // config.minibatches
    for _ in range(config.epochs):
        order = torch.randperm(STREAMS, generator=rng).tolist()
        yield from (order[first : first + each] for first in range(0, STREAMS, each))


@BOTH
def test_impala_equals_an_independent_implementation(env_spec: EnvSpec) -> None:
    """V-trace by its recursion over the unrolled values; loss and all gradients, to 1e-4 in float32."""
    config = IMPALAConfig(**NETWORK, gamma=GAMMA)
    agent = made(config, env_spec)
    batch = rollout(agent, config, env_spec)
    network = Reference(agent.policy_state(), env_spec)
    features = network.features(batch)
    value, distribution = network.value(features).squeeze(-1), network.distribution(features)
    loss, _ = agent.loss(batch, torch.ones(STREAMS))
    assert_gradients_equal(agent, loss, network, reference_impala_loss(value, distribution, batch, config))


def test_without_an_lstm_nothing_of_it_is_there() -> None:
    """Neither parameters nor a state; and what cannot be an LSTM is refused."""
    agent = build_agent(PPOConfig(), DISCRETE, seed=0)
    assert agent.recurrent_state_size == 0
    assert {name.split(".")[0] for name in agent.policy_state()} == {"policy", "value"}
    with pytest.raises(ConfigError, match=naming("encoder_sizes (0,)")):
        IMPALAConfig(encoder_sizes=(0,))
    with pytest.raises(ConfigError, match=naming("lstm_size -1 0")):
        IMPALAConfig(lstm_size=-1)
    with pytest.raises(ConfigError, match=naming("minibatches 5 batch_size 4 LSTM")):
        PPOConfig(lstm_size=8, minibatches=5)


def trained_on_recall(config: Configs, updates: int) -> float:
    """Return the mean reward of an episode of greedy play after so many updates on fresh rollouts."""
    settings, count = EnvSettings("tests.support.envs:recall"), 32
    spec = spec_of(settings)
    agent, policy = build_agent(config, spec, seed=1), build_policy(config, spec, seed=1)
    rows = config.unroll + 2  # the first is history
    index = np.arange(count)[:, None] * rows + np.arange(rows)
    for _ in range(updates):
        policy.load(agent.policy_state())
        columns = play(settings, policy, rows, count)
        batch = {name: torch.from_numpy(column) for name, column in agent.decode(columns, index).items()}
        if agent.recurrent_state_size:
            batch["recurrent_state"] = torch.from_numpy(columns["recurrent_state"][index[:, 1]])
        agent.update(batch, torch.ones(count))
    policy.load(agent.policy_state())
    played = play(settings, policy, (RecallEnv.LENGTH + 1) * 8, count, evaluation=True)
    return float(played["reward"].sum() / played["terminated"].sum())


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(lstm_size=16, hidden_sizes=(16,), unroll=23, learning_rate=0.01, batch_size=32),
        IMPALAConfig(lstm_size=16, hidden_sizes=(16,), unroll=23, learning_rate=0.01, max_grad_norm=0.5),
    ],
    ids=["ppo", "impala"],
)
def test_agent_with_an_lstm_recalls_what_it_was_shown(config: Configs) -> None:
    """Nine games of ten at least are won, which without a memory is a matter of chance: 0 of -1 .. 1."""
    assert trained_on_recall(config, 40 if isinstance(config, PPOConfig) else 120) > 0.8


def test_agent_without_an_lstm_does_not() -> None:
    """The same updates leave the outcome to chance."""
    config = PPOConfig(hidden_sizes=(16,), unroll=23, learning_rate=0.01, batch_size=32)
    assert abs(trained_on_recall(config, 40)) < 0.5


def test_clip_falls_to_nothing_over_its_updates() -> None:
    """By a line, and then it stays at 0, which is said once; without the setting it never falls."""
    agent = made(PPOConfig(hidden_sizes=(8,), unroll=STEPS, epochs=1, clip=0.2, clip_decay_updates=4), DISCRETE)
    constant = made(PPOConfig(hidden_sizes=(8,), unroll=STEPS, epochs=1, clip=0.2), DISCRETE)
    config = PPOConfig(**NETWORK)
    batch, clips = rollout(made(config, DISCRETE), config, DISCRETE), []
    del batch["recurrent_state"]
    with capture_logs() as logs:
        for _ in range(6):
            clips.append(agent.clip)
            agent.update(batch, torch.ones(STREAMS))
            constant.update(batch, torch.ones(STREAMS))
    assert clips == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.0, 0.0])
    assert constant.clip == 0.2
    assert [(entry["log_level"], entry["update"]) for entry in logs] == [("warning", 4)]
    with pytest.raises(ConfigError, match=naming("clip_decay_updates -1 0")):
        PPOConfig(clip_decay_updates=-1)
