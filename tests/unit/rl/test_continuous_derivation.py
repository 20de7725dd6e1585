"""Each continuous agent's update against an independent one: NumPy in float64, gradients by differences."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.support.batches import CONTINUOUS, random_batch
from tests.unit.rl import reference_update as ref
from tests.unit.rl.reference_update import Batch, Floats, Params
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig

SEED, SIZE = 5, 12


class Reference(NamedTuple):
    """What an independent derivation says of one update.

    Attributes:
        critic_loss: Of the critic's parameters.
        priority: Of each item, [B].
        actor_loss: Of the actor's parameters and those of the critic it follows.
    """

    critic_loss: Callable[[Params], float]
    priority: Floats
    actor_loss: Callable[[Params, Params], float]


def ddpg(state: dict[str, Params], batch: Batch, weight: Floats) -> Reference:
    """Lillicrap et al. 2016, algorithm 1."""
    following = batch["bootstrap_observation"]
    bootstrap = ref.plain_critic(state["target_critic"], following, ref.plain_actor(state["target_actor"], following))
    target = ref.td_target(batch, bootstrap[:, 0])

    def q(critic: Params, action: Floats) -> Floats:
        return ref.plain_critic(critic, batch["observation"], action)[:, 0]

    return Reference(
        lambda critic: ref.half_squares(q(critic, batch["action"]), target, weight),
        np.abs(q(state["critic"], batch["action"]) - target),
        lambda actor, critic: -float(q(critic, ref.plain_actor(actor, batch["observation"])).mean()),
    )


def td3(state: dict[str, Params], batch: Batch, weight: Floats) -> Reference:
    """Fujimoto et al. 2018, algorithm 1."""
    rng = torch.Generator().manual_seed(SEED)
    noise = torch.randn((SIZE, 2), generator=rng).numpy().astype(np.float64) * 0.2
    following = batch["bootstrap_observation"]
    smoothed = np.clip(ref.plain_actor(state["target_actor"], following) + np.clip(noise, -0.3, 0.3), -1.0, 1.0)
    target = ref.td_target(batch, ref.twin_q(state["target_critic"], following, smoothed).min(axis=0))
    observation = batch["observation"]

    def actor_loss(actor: Params, critic: Params) -> float:
        return -float(ref.twin_q(critic, observation, ref.plain_actor(actor, observation))[0].mean())

    return Reference(
        lambda critic: ref.half_squares(ref.twin_q(critic, observation, batch["action"]), target, weight),
        np.abs(ref.twin_q(state["critic"], observation, batch["action"]) - target).mean(axis=0),
        actor_loss,
    )


def d4pg(state: dict[str, Params], batch: Batch, weight: Floats) -> Reference:
    """Barth-Maron et al. 2018, algorithm 1, with 11 atoms from -2 to 2."""
    support, following = np.linspace(-2.0, 2.0, 11), batch["bootstrap_observation"]
    logits = ref.plain_critic(state["target_critic"], following, ref.plain_actor(state["target_actor"], following))
    values = batch["n_step_return"][:, None] + batch["bootstrap_discount"][:, None] * support
    target = ref.projected(values, ref.softmax(logits), support)
    entropy = -(target * np.log(target, where=target > 0, out=np.zeros_like(target))).sum(axis=1)

    def predicted(critic: Params, action: Floats) -> Floats:
        return ref.plain_critic(critic, batch["observation"], action)

    def actor_loss(actor: Params, critic: Params) -> float:
        action = ref.plain_actor(actor, batch["observation"])
        return -float((ref.softmax(predicted(critic, action)) @ support).mean())

    return Reference(
        lambda critic: float((weight * ref.cross_entropy(predicted(critic, batch["action"]), target)).mean()),
        ref.cross_entropy(predicted(state["critic"], batch["action"]), target) - entropy,
        actor_loss,
    )


def sac(state: dict[str, Params], batch: Batch, weight: Floats) -> Reference:
    """Haarnoja et al. 2018, algorithm 1 without a value network, at the temperature .1."""
    rng = torch.Generator().manual_seed(SEED)
    noise = torch.randn((2, SIZE, 2), generator=rng).numpy().astype(np.float64)
    observation, following = batch["observation"], batch["bootstrap_observation"]
    action, log_prob = ref.squashed(ref.batched(state["actor"], following)[0], noise[0])
    target = ref.td_target(batch, ref.twin_q(state["target"], following, action).min(axis=0) - 0.1 * log_prob)

    def actor_loss(actor: Params, critic: Params) -> float:
        drawn, density = ref.squashed(ref.batched(actor, observation)[0], noise[1])
        return float((0.1 * density - ref.twin_q(critic, observation, drawn).min(axis=0)).mean())

    return Reference(
        lambda critic: ref.half_squares(ref.twin_q(critic, observation, batch["action"]), target, weight),
        np.abs(ref.twin_q(state["critic"], observation, batch["action"]) - target).mean(axis=0),
        actor_loss,
    )


def tqc(state: dict[str, Params], batch: Batch, weight: Floats) -> Reference:
    """Kuznetsov et al. 2020, algorithm 1, at the temperature .1, three critics of 4 quantiles, 2 left out for each."""
    rng = torch.Generator().manual_seed(SEED)
    noise = torch.randn((2, SIZE, 2), generator=rng).numpy().astype(np.float64)
    observation, following = batch["observation"], batch["bootstrap_observation"]
    action, log_prob = ref.squashed(ref.batched(state["actor"], following)[0], noise[0])

    def quantiles(critic: Params, observed: Floats, acted: Floats) -> Floats:
        return ref.batched(critic, np.concatenate((observed, acted), axis=1))

    kept = ref.truncated(quantiles(state["target"], following, action), dropped=2) - 0.1 * log_prob[:, None]
    target = batch["n_step_return"][:, None] + batch["bootstrap_discount"][:, None] * kept
    predicted = quantiles(state["critic"], observation, batch["action"])

    def actor_loss(actor: Params, critic: Params) -> float:
        drawn, density = ref.squashed(ref.batched(actor, observation)[0], noise[1])
        return float(0.1 * density.mean() - quantiles(critic, observation, drawn).mean())

    return Reference(
        lambda critic: ref.quantile_huber(quantiles(critic, observation, batch["action"]), target, weight),
        np.abs(predicted.mean(axis=2) - target.mean(axis=1)).mean(axis=0),
        actor_loss,
    )


def crossq(state: dict[str, Params], batch: Batch, weight: Floats) -> Reference:
    """Bhatt et al. 2024, algorithm 1, at the temperature .1, while batches are normalised by their own statistics."""
    rng = torch.Generator().manual_seed(SEED)
    noise = torch.randn((2, SIZE, 2), generator=rng).numpy().astype(np.float64)
    observation, following = batch["observation"], batch["bootstrap_observation"]
    action, log_prob = ref.squashed(ref.running_normalised(state["actor"], following)[0], noise[0])
    both = np.concatenate((observation, following)), np.concatenate((batch["action"], action))

    def values(critic: Params) -> Floats:
        return ref.batch_normalised(critic, np.concatenate(both, axis=1))[..., 0]

    target = ref.td_target(batch, values(state["critic"])[:, SIZE:].min(axis=0) - 0.1 * log_prob)

    def actor_loss(actor: Params, critic: Params) -> float:
        drawn, density = ref.squashed(ref.batch_normalised(actor, observation)[0], noise[1])
        q = ref.running_normalised(critic, np.concatenate((observation, drawn), axis=1))[..., 0]
        return float((0.1 * density - q.min(axis=0)).mean())

    return Reference(
        lambda critic: ref.half_squares(values(critic)[:, :SIZE], target, weight),
        np.abs(values(state["critic"])[:, :SIZE] - target).mean(axis=0),
        actor_loss,
    )


CASES: dict[str, tuple[AgentConfig, Callable[[dict[str, Params], Batch, Floats], Reference]]] = {
    "ddpg": (DDPGConfig(actor_sizes=(6,), critic_sizes=(6, 5)), ddpg),
    "td3": (TD3Config(hidden_sizes=(6,), noise_clip=0.3), td3),
    "d4pg": (D4PGConfig(actor_sizes=(6,), critic_sizes=(6, 5), num_atoms=11, value_min=-2.0, value_max=2.0), d4pg),
    "sac": (SACConfig(hidden_sizes=(6,), temperature="fixed", initial_temperature=0.1), sac),
    "tqc": (
        SACConfig(hidden_sizes=(6,), temperature="fixed", initial_temperature=0.1, critics=3, quantiles=4),
        tqc,
    ),
    "crossq": (SACConfig(hidden_sizes=(6,), temperature="fixed", initial_temperature=0.1, crossq=True), crossq),
}


def gradient_taken(state: dict[str, Any], optimizer: str, names: Params) -> Params:
    """Return the gradient of an optimizer's first step: its mean is then a tenth of it."""
    mean, learned = state[optimizer]["mean"], [name for name in names if "running" not in name]
    return {name: 10.0 * mean[str(i)].numpy().astype(np.float64) for i, name in enumerate(learned)}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("config, derive", CASES.values(), ids=CASES.keys())
def test_update_is_the_derived_one(
    config: AgentConfig, derive: Callable[[dict[str, Params], Batch, Floats], Reference], seed: int
) -> None:
    """Priorities and the gradients of critic and actor are those of the derivation, to float32's precision."""
    agent = build_agent(config, CONTINUOUS, seed=SEED)
    rng = torch.Generator().manual_seed(seed)
    tensors, weights = random_batch(CONTINUOUS, SIZE, rng), torch.rand(SIZE, generator=rng)
    batch = {name: value.numpy().astype(np.float64) for name, value in tensors.items()}
    before = agent.state_dict()
    start = {name: ref.params_of(before[name]) for name in before if name.rpartition("_")[2] in _NETWORKS}
    reference = derive(copy.deepcopy(start), batch, weights.numpy().astype(np.float64))
    update = agent.update(tensors, weights)
    state = agent.state_dict()
    np.testing.assert_allclose(update.priority.numpy(), reference.priority, atol=2e-5)
    after = ref.params_of(state["critic"])
    expected = ref.numeric_gradient(reference.critic_loss, start["critic"])
    _assert_close(gradient_taken(state, "critic_optimizer", start["critic"]), expected)
    expected = ref.numeric_gradient(lambda actor: reference.actor_loss(actor, after), start["actor"])
    _assert_close(gradient_taken(state, "actor_optimizer", start["actor"]), expected)


_NETWORKS = ("actor", "critic", "target")


def _assert_close(found: Params, expected: Params) -> None:
    assert max(np.abs(value).max() for value in expected.values()) > 1e-4  # there is something to compare
    for name in found:
        value = expected[name]
        np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-6, err_msg=name)
