"""PPO and IMPALA: their updates against independent implementations on a fixed rollout, their batches, their policy."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.batches import policy_input
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.capture_trial import can_record, with_chosen_compile
from tidemill.rl.agents.impala import IMPALAAgent
from tidemill.rl.agents.on_policy import rollouts
from tidemill.rl.agents.ppo import PPOAgent, Samples
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig
from tidemill.types import EnvSpec, WindowSpec

DISCRETE = EnvSpec((3,), "float32", num_actions=4)
CONTINUOUS = EnvSpec((3,), "float32", action_shape=(2,))
STEPS, STREAMS, GAMMA = 6, 5, 0.9
CPU = torch.device("cpu")


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Fail unless both are equal to 1e-4."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def rollout(env_spec: EnvSpec) -> dict[str, Tensor]:
    """Return a batch in which stream 1 terminates, stream 2 is truncated, and stream 2 shows its last observation."""
    rng = np.random.default_rng(7)
    terminated, truncated = np.zeros((2, STREAMS, STEPS), dtype=bool)
    terminated[1, 2] = truncated[2, 3] = True
    is_trained = np.ones((STREAMS, STEPS), dtype=bool)
    is_trained[2, 4] = False
    shape = (STREAMS, STEPS + 1)
    action = rng.integers(4, size=shape) if env_spec.is_discrete else rng.normal(size=(*shape, 2)).astype(np.float32)
    batch = {
        "observation": rng.normal(size=(*shape, 3)).astype(np.float32),
        "action": action,
        "log_prob": (rng.normal(size=shape) * 0.3 - 1.4).astype(np.float32),
        "reward": rng.normal(size=(STREAMS, STEPS)).astype(np.float32),
        "discount": (GAMMA * ~terminated).astype(np.float32),
        "continues": ~(terminated | truncated),
        "is_trained": is_trained,
        "earlier_return": np.zeros(shape, np.float32),
    }
    return {name: torch.from_numpy(column) for name, column in batch.items()}


class Reference(nn.Module):
    """The network written out with torch's own layers and distributions, as CleanRL has it."""

    def __init__(self, parameters: dict[str, Tensor], env_spec: EnvSpec) -> None:
        super().__init__()
        outputs = env_spec.num_actions or env_spec.action_size
        decides_std = not env_spec.is_discrete and "log_std" not in parameters
        self.policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs * (1 + decides_std)))
        self.value = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.log_std = None if env_spec.is_discrete or decides_std else nn.Parameter(torch.zeros(outputs))
        self._decides_std = decides_std
        renamed = {name.replace(".1.", ".2."): value for name, value in parameters.items()}
        self.load_state_dict(renamed)

    def distribution(self, observation: Tensor) -> Any:  # noqa: ANN401 - torch's distributions share no useful type
        """Return torch's distribution of the actions."""
        head = self.policy(observation)
        if self._decides_std:
            mean, log_std = head.chunk(2, dim=-1)
            return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
        if self.log_std is None:
            return torch.distributions.Categorical(logits=head)
        normal = torch.distributions.Normal(head, self.log_std.exp().expand_as(head))
        return torch.distributions.Independent(normal, 1)

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Return the gradient of each parameter, by the names of ours."""
        found = torch.autograd.grad(loss, list(self.parameters()))
        names = [name.replace(".2.", ".1.") for name, _ in self.named_parameters()]
        return dict(zip(names, found, strict=True))


def transitions(batch: dict[str, Tensor]) -> list[tuple[int, int]]:
    """Return stream and step of each transition that is trained on."""
    return [(b, t) for b in range(STREAMS) for t in range(STEPS) if batch["is_trained"][b, t]]


def reference_advantages(values: Tensor, batch: dict[str, Tensor], decay: float) -> dict[tuple[int, int], float]:
    """Return the generalized advantage of each transition by the values [B, T + 1], one float at a time."""
    advantage: dict[tuple[int, int], float] = {}
    for b, value in enumerate(values.tolist()):
        following = 0.0
        for t in range(len(value) - 2, -1, -1):
            discount = float(batch["discount"][b, t])
            error = float(batch["reward"][b, t]) + discount * value[t + 1] - value[t]
            following = error + (discount * decay * following if batch["continues"][b, t] else 0.0)
            advantage[b, t] = following
    return advantage


def reference_ppo_loss(network: Reference, batch: dict[str, Tensor], config: PPOConfig) -> dict[str, Tensor]:
    """Return PPO's loss and its parts, transition by transition."""
    advantages = reference_advantages(network.value(batch["observation"]).squeeze(-1), batch, config.gae_lambda)
    chosen = transitions(batch)
    raw = torch.tensor([advantages[at] for at in chosen])
    scaled = (raw - raw.mean()) / (raw.std() + 1e-8)
    policy, value_loss, entropy = [], [], []
    for number, (b, t) in enumerate(chosen):
        distribution = network.distribution(batch["observation"][b, t])
        ratio = (distribution.log_prob(batch["action"][b, t]) - batch["log_prob"][b, t]).exp()
        clipped = torch.clamp(ratio, 1 - config.clip, 1 + config.clip)
        policy.append(torch.max(-scaled[number] * ratio, -scaled[number] * clipped))
        value = network.value(batch["observation"][b, t]).squeeze()
        value_loss.append(0.5 * (value - (raw[number] + value.detach())) ** 2)
        entropy.append(distribution.entropy())
    parts = [torch.stack(part).mean() for part in (policy, value_loss, entropy)]
    loss = parts[0] + config.value_coefficient * parts[1] - config.entropy_coefficient * parts[2]
    return {"loss": loss, "policy_loss": parts[0], "value_loss": parts[1], "entropy": parts[2]}


@pytest.mark.parametrize(
    "env_spec, std",
    [(DISCRETE, "shared"), (CONTINUOUS, "shared"), (CONTINUOUS, "observation")],
    ids=["discrete", "continuous", "continuous_std_of_observation"],
)
def test_ppo_equals_an_independent_implementation(env_spec: EnvSpec, std: Literal["shared", "observation"]) -> None:
    """Advantages, losses and all gradients of the first gradient step on a fixed rollout, to 1e-4 in float32."""
    config = PPOConfig(hidden_sizes=(8,), unroll=STEPS, gamma=GAMMA, gae_lambda=0.8, gaussian_std=std)
    agent, batch = PPOAgent(config, env_spec, CPU, seed=3), rollout(env_spec)
    network = Reference(agent.policy_state(), env_spec)
    samples = agent.samples(batch, torch.ones(STREAMS))
    expected = reference_advantages(network.value(batch["observation"]).squeeze(-1), batch, 0.8)
    found = samples.advantage.unflatten(0, (STEPS, STREAMS))
    for (b, t), advantage in expected.items():
        assert float(found[t, b]) == pytest.approx(advantage, rel=1e-4, abs=1e-5)
    loss, reported = agent.loss(samples)
    reference = reference_ppo_loss(network, batch, config)
    for name, value in reference.items():
        assert_close(reported[name], value.detach())
    ours = dict(agent.network.named_parameters())
    gradients = dict(zip(ours, torch.autograd.grad(loss, list(ours.values())), strict=True))
    for name, gradient in network.gradients(reference["loss"]).items():
        assert_close(gradients[name], gradient)


@pytest.mark.parametrize("env_spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_ppo_update_equals_torchs_adam_on_the_reference(env_spec: EnvSpec) -> None:
    """Two passes of one minibatch: the parameters are those that the reference loss and torch's Adam lead to."""
    config = PPOConfig(
        hidden_sizes=(8,), unroll=STEPS, gamma=GAMMA, epochs=2, minibatches=1, clip_value=False, learning_rate=1e-3
    )
    agent, batch = PPOAgent(config, env_spec, CPU, seed=3), rollout(env_spec)
    network = Reference(agent.policy_state(), env_spec)
    advantages = reference_advantages(network.value(batch["observation"]).squeeze(-1), batch, config.gae_lambda)
    chosen = transitions(batch)
    raw = torch.tensor([advantages[at] for at in chosen])
    rows = tuple(torch.tensor(index) for index in zip(*chosen, strict=True))
    with torch.no_grad():
        target = raw + network.value(batch["observation"][rows]).squeeze(-1)
    adam = torch.optim.Adam(network.parameters(), lr=1e-3, eps=1e-5)
    scaled = (raw - raw.mean()) / (raw.std() + 1e-8)
    for _ in range(2):
        distribution = network.distribution(batch["observation"][rows])
        ratio = (distribution.log_prob(batch["action"][rows]) - batch["log_prob"][rows]).exp()
        policy = -torch.min(ratio * scaled, ratio.clamp(1 - config.clip, 1 + config.clip) * scaled).mean()
        values = 0.5 * (network.value(batch["observation"][rows]).squeeze(-1) - target).square().mean()
        loss = policy + 0.5 * values - config.entropy_coefficient * distribution.entropy().mean()
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
        adam.step()
    agent.update(batch, torch.ones(STREAMS))
    found = agent.policy_state()
    for name, value in network.state_dict().items():
        assert_close(found[name.replace(".2.", ".1.")], value)


def reference_impala_loss(
    value: Tensor, distribution: torch.distributions.Distribution, batch: dict[str, Tensor], config: IMPALAConfig
) -> Tensor:
    """Return IMPALA's loss by V-trace's recursion over a network's outputs for every observation [B, T + 1]."""
    log_prob, entropy = distribution.log_prob(batch["action"]), distribution.entropy()
    terms, values = [], value.tolist()
    streams, steps = batch["reward"].shape
    for b in range(streams):
        correction, following = 0.0, values[b][steps]  # v_t+1 - V(s_t+1), and v_t+1
        for t in range(steps - 1, -1, -1):
            here, beyond = values[b][t], values[b][t + 1]
            if not batch["continues"][b, t]:
                correction, following = 0.0, beyond
            ratio = min(1.0, math.exp(float(log_prob[b, t].detach() - batch["log_prob"][b, t])))
            reward, discount = float(batch["reward"][b, t]), float(batch["discount"][b, t])
            advantage = ratio * (reward + discount * following - here)
            correction = ratio * (reward + discount * beyond - here) + discount * ratio * correction
            following = here + correction
            if batch["is_trained"][b, t]:
                error = value[b, t] - following
                bonus = config.entropy_coefficient * entropy[b, t]
                terms.append(-advantage * log_prob[b, t] + 0.25 * error**2 - bonus)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("env_spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_impala_equals_an_independent_implementation(env_spec: EnvSpec) -> None:
    """Loss and all gradients on a fixed rollout of another policy's, to 1e-4 in float32."""
    config = IMPALAConfig(hidden_sizes=(8,), unroll=STEPS, gamma=GAMMA)
    agent, batch = IMPALAAgent(config, env_spec, CPU, seed=3), rollout(env_spec)
    network = Reference(agent.policy_state(), env_spec)
    value, distribution = network.value(batch["observation"]).squeeze(-1), network.distribution(batch["observation"])
    expected = reference_impala_loss(value, distribution, batch, config)
    loss, _ = agent.loss(batch, torch.ones(STREAMS))
    assert_close(loss, expected)
    ours = dict(agent.network.named_parameters())
    gradients = dict(zip(ours, torch.autograd.grad(loss, list(ours.values())), strict=True))
    for name, gradient in network.gradients(expected).items():
        assert_close(gradients[name], gradient)


@pytest.mark.parametrize("entropy_coefficient", [0.0, 0.01])
@pytest.mark.parametrize("target_kl", [0.0, 1e-9], ids=["all_passes", "ended_early"])
def test_ppo_reports_its_last_gradient_step(
    entropy_coefficient: float, target_kl: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is worked out for one step of an update is what working it out for every step leaves."""
    settings: dict[str, Any] = {"entropy_coefficient": entropy_coefficient, "target_kl": target_kl}
    config = PPOConfig(hidden_sizes=(8,), unroll=STEPS, epochs=2, minibatches=2, **settings)
    batch, weight = rollout(DISCRETE), torch.ones(STREAMS)
    once, always = (PPOAgent(config, DISCRETE, CPU, seed=3) for _ in range(2))
    found = once.update(batch, weight).metrics
    measured = always.loss

    def loss(samples: Samples, *, is_measured: bool) -> tuple[Tensor, dict[str, Tensor]]:
        return measured(samples)

    monkeypatch.setattr(always, "loss", loss)
    assert found == always.update(batch, weight).metrics
    assert found.keys() > {"loss", "entropy", "kl", "clipped", "grad_norm"}


def test_target_kl_ends_the_passes() -> None:
    """A tiny bound leaves one pass of many; without it all are made."""
    batch, weight = rollout(DISCRETE), torch.ones(STREAMS)

    def moved(**settings: Any) -> Tensor:  # noqa: ANN401 - of the settings
        config = PPOConfig(hidden_sizes=(8,), unroll=STEPS, minibatches=1, learning_rate=1e-2, **settings)
        agent = PPOAgent(config, DISCRETE, CPU, seed=3)
        agent.update(batch, weight)
        return agent.policy_state()["policy.0.weight"]

    assert torch.equal(moved(epochs=9, target_kl=1e-9), moved(epochs=1))
    assert not torch.equal(moved(epochs=9), moved(epochs=1))


def test_final_observation_steps_are_not_trained_on() -> None:
    """Wherever a window lies, exactly the rows that follow an end and begin nothing are left out."""
    count = 12
    columns: dict[str, Any] = {name: np.zeros(count, dtype=bool) for name in ("terminated", "truncated", "is_first")}
    columns["truncated"][3] = columns["terminated"][8] = True  # row 4 is a final observation step; 9 begins an episode
    columns["is_first"][[0, 5, 9]] = True
    columns |= {name: np.arange(count, dtype=np.float32) for name in ("reward", "log_prob")}
    columns |= {"observation": np.arange(count, dtype=np.float32)[:, None], "action": np.arange(count)}
    window = WindowSpec(1, 3, 4, keep_all=True)
    index = np.array([[0, 0, 1, 2, 3], [3, 4, 5, 6, 7], [7, 8, 9, 10, 11]])  # the first row has none before it
    batch = rollouts(columns, index, window, 1, GAMMA)
    assert batch["is_trained"].tolist() == [[True] * 3, [False, True, True], [True] * 3]
    assert batch["observation"][:, :, 0].tolist() == index[:, 1:].tolist()
    assert batch["continues"].tolist() == [[True] * 3, [True] * 3, [False, True, True]]


def test_step_of_an_environment_that_failed_is_not_trained_on() -> None:
    """A first row behind a row that ends nothing: what the action of that row did is not known, nor looked beyond."""
    count = 12
    columns: dict[str, Any] = {name: np.zeros(count, dtype=bool) for name in ("terminated", "truncated", "is_first")}
    columns["is_first"][[0, 3, 5, 9]] = True  # rows 2, 4 and 8 are those of failures
    columns |= {name: np.arange(count, dtype=np.float32) for name in ("reward", "log_prob")}
    columns |= {"observation": np.arange(count, dtype=np.float32)[:, None], "action": np.arange(count)}
    window = WindowSpec(1, 3, 4, keep_all=True)
    index = np.array([[0, 0, 1, 2, 3], [3, 4, 5, 6, 7], [7, 8, 9, 10, 11]])
    batch = rollouts(columns, index, window, 1, GAMMA)
    assert batch["is_trained"].tolist() == [[True, True, False], [False, True, True], [False, True, True]]
    assert batch["continues"][0].tolist()[:2] == [True, False]


@pytest.mark.parametrize("env_spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_policy_draws_by_its_probabilities_and_reports_them(env_spec: EnvSpec) -> None:
    """The log-probability of each action is that of the distribution it was drawn from, whose frequencies it has."""
    config, count = PPOConfig(hidden_sizes=(8,), initial_log_std=-1.0), 20_000
    policy = build_policy(config, env_spec, seed=1)
    agent = PPOAgent(config, env_spec, CPU, seed=5)
    with torch.no_grad():
        agent.network.get_parameter("policy.1.weight").normal_(std=2.0, generator=torch.Generator().manual_seed(0))
    policy.load(agent.policy_state())
    observation = np.full((count, 3), 0.3, np.float32)
    output = policy.act(policy_input(observation))
    distribution = agent.network.distribution(torch.from_numpy(observation))
    expected = distribution.log_prob(torch.from_numpy(output.action)).detach().numpy()
    np.testing.assert_allclose(output.extras["log_prob"], expected, rtol=1e-5, atol=1e-5)
    if env_spec.is_discrete:
        frequency = np.bincount(output.action, minlength=4) / count
        np.testing.assert_allclose(frequency, distribution.head[0].softmax(0).detach(), atol=0.015)
    else:
        np.testing.assert_allclose(output.action.mean(0), distribution.head[0].detach(), atol=0.015)
        np.testing.assert_allclose(output.action.std(0), math.exp(-1.0), atol=0.01)


def test_standard_deviation_may_follow_the_observation() -> None:
    """It starts near the one asked for, differs between observations once the network does, and actions have it."""
    config, count = PPOConfig(hidden_sizes=(8,), initial_log_std=-1.0, gaussian_std="observation"), 20_000
    agent, policy = PPOAgent(config, CONTINUOUS, CPU, seed=5), build_policy(config, CONTINUOUS, seed=1)
    seen = torch.eye(3)
    fresh = agent.network.distribution(seen)
    assert fresh.log_std is not None
    torch.testing.assert_close(fresh.log_std, torch.full((3, 2), -1.0), atol=0.05, rtol=0)
    with torch.no_grad():
        agent.network.get_parameter("policy.1.weight").normal_(generator=torch.Generator().manual_seed(0))
    policy.load(agent.policy_state())
    std = agent.network.distribution(seen).log_std
    assert std is not None
    assert (std[0] - std[1]).abs().min() > 0.01
    action = policy.act(policy_input(np.tile(seen[1].numpy(), (count, 1)))).action
    np.testing.assert_allclose(np.log(action.std(axis=0)), std[1].detach(), atol=0.02)


def test_updates_that_the_host_ends_are_not_recorded() -> None:
    """`target_kl` and CUDA graphs exclude each other, and `auto` does not try them together."""
    with pytest.raises(ConfigError, match=naming("compile 'cuda-graphs' auto none target_kl")):
        PPOConfig(target_kl=0.1, compile="cuda-graphs")
    assert not can_record(PPOConfig(target_kl=0.1))
    assert can_record(PPOConfig())
    chosen = with_chosen_compile(PPOConfig(target_kl=0.1), DISCRETE, torch.device("cuda:0"), 4)
    assert isinstance(chosen, PPOConfig)
    assert chosen.compile == "none"
