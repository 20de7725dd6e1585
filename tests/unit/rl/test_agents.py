"""Promises of every agent and its policy, whatever the algorithm."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.batches import (
    CONTINUOUS,
    DISTINCT_CASES,
    IMAGE,
    VECTOR,
    policy_input,
    random_batch,
    recurrent_state_size,
    sampled_batch,
)
from tests.support.naming import naming
from tidemill.arrays import Array
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.interface import Agent, Policy, SplitPolicy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.policy_io import PolicyInput
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import AgentConfig, LearnsOnPolicy
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec

every_agent = pytest.mark.parametrize("config,env_spec", DISTINCT_CASES.values(), ids=DISTINCT_CASES.keys())

CONTINUOUS_PIXELS = EnvSpec((84, 84), "uint8", frame_stack=4, action_shape=(2,))


def run(agent: Agent, config: AgentConfig, env_spec: EnvSpec, updates: range, batch_size: int = 8) -> None:
    """Make the updates of these numbers; the number alone decides the batch."""
    for number in updates:
        rng = torch.Generator().manual_seed(number)
        batch = sampled_batch(agent, config, env_spec, batch_size, rng)
        agent.update(batch, torch.rand(batch_size, generator=rng))


def leaves(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf of a nested state."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}/")
        else:
            yield path + name, value


def assert_equal_states(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Fail unless both states hold bit-equal leaves of the same names."""
    expected = dict(leaves(right))
    found = dict(leaves(left))
    assert found.keys() == expected.keys()
    for name, value in found.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, expected[name]), name
        else:
            assert value == expected[name], name


def policy_of(config: AgentConfig, env_spec: EnvSpec, seed: int = 0, num_envs: int = 5) -> Policy:
    """Return a policy placed for `num_envs` environments."""
    return build_policy(config, env_spec, seed=seed, slot=ActorSlot(0, num_envs, 1))


def seen_by(config: AgentConfig, env_spec: EnvSpec) -> PolicyInput:
    """Return the input of a policy of these settings from five environments."""
    return policy_input(
        observations(env_spec),
        recurrent_state_size=recurrent_state_size(config, env_spec),
        last_action=np.zeros((5, *env_spec.action_shape), env_spec.action_dtype),
    )


def observations(env_spec: EnvSpec, count: int = 5) -> Array:
    """Return made-up observations as an actor sees them."""
    seen: Array = random_batch(env_spec, count, torch.Generator().manual_seed(9))["observation"].numpy()
    return seen


@every_agent
def test_settings_say_whether_initial_priorities_need_parameters(config: AgentConfig, env_spec: EnvSpec) -> None:
    """A run is refused by its settings alone where an inference service keeps the parameters from the actor."""
    policy = policy_of(config, env_spec)
    assert isinstance(policy, SplitPolicy)
    assert getattr(config, "priority_uses_params", False) == policy.priority_uses_params


_RESUMED = {name: 6 for name, (_, env_spec) in DISTINCT_CASES.items() if env_spec.observation_dtype == "uint8"}
_RESUMED |= {"dqn": 500, "sac": 500, "sac_tqc": 60}


@pytest.mark.parametrize("name,updates", _RESUMED.items())
def test_resumed_agent_equals_the_one_that_went_on(name: str, updates: int) -> None:
    """One that is saved half way and continues, and one that loads what was saved, end in bit-equal states.

    All cases of images and bytes, and some over what is measured only now and then; `process/test_exact_resume.py` has
    all other cases.
    """
    config, env_spec = DISTINCT_CASES[name]
    straight, resumed = build_agent(config, env_spec, seed=1), build_agent(config, env_spec, seed=2)
    run(straight, config, env_spec, range(updates // 2))
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    for agent in (straight, resumed):
        run(agent, config, env_spec, range(updates // 2, updates))
    assert_equal_states(resumed.state_dict(), straight.state_dict())


@every_agent
def test_state_dict_holds_only_what_can_be_stored_without_pickle(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Every leaf is a tensor, an int, a float or a string, on a fresh agent as on a trained one."""
    agent = build_agent(config, env_spec)
    fresh = dict(leaves(agent.state_dict()))
    run(agent, config, env_spec, range(2))
    trained = dict(leaves(agent.state_dict()))
    assert fresh.keys() == trained.keys()
    assert all(isinstance(value, Tensor | int | float | str) for value in trained.values())


@every_agent
def test_update_reports_a_priority_for_each_item_and_scalar_metrics(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Priorities are finite, not negative, of shape [B] and without a gradient; metrics are scalars."""
    agent = build_agent(config, env_spec)
    update = agent.update(sampled_batch(agent, config, env_spec, 6, torch.Generator().manual_seed(0)), torch.ones(6))
    assert update.priority.shape == (6,)
    assert bool(torch.isfinite(update.priority).all())
    assert bool((update.priority >= 0).all())
    assert not update.priority.requires_grad
    assert all(metric.ndim == 0 and not metric.requires_grad for metric in update.metrics.values())


@every_agent
def test_losses_values_and_norms_of_gradients_are_reported(config: AgentConfig, env_spec: EnvSpec) -> None:
    """At the first update, and from then on at each or at every 50th: what TensorBoard shows of training."""
    agent = build_agent(config, env_spec)
    if isinstance(config, LearnsOnPolicy):
        batch = sampled_batch(agent, config, env_spec, 4, torch.Generator().manual_seed(0))
        names = set(agent.update(batch, torch.ones(4)).metrics)
        parts = {"q"} if config.algorithm == "pqn" else {"policy_loss", "value_loss", "value", "entropy"}
        assert names >= {"loss", "grad_norm"} | parts
        return
    norms = {"grad_norm"} if config.algorithm in ("dqn", "r2d2") else {"critic_grad_norm", "actor_grad_norm"}
    seen: list[set[str]] = []
    for number in range(51 if not env_spec.is_discrete else 2):
        batch = sampled_batch(agent, config, env_spec, 4, torch.Generator().manual_seed(number))
        metrics = agent.update(batch, torch.ones(4)).metrics
        seen.append(set(metrics))
        assert all(bool(metrics[name] > 0) for name in norms & metrics.keys())
    assert norms | {"loss", "q"} <= seen[0]
    assert norms | {"loss", "q"} <= seen[-1]
    if not env_spec.is_discrete:
        assert not any(norms & names for names in seen[1:50])


@every_agent
def test_item_of_weight_zero_does_not_move_the_values(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Importance weights scale each item's part in the loss: with all of them 0 the critic's gradient is 0."""
    agent = build_agent(config, env_spec)
    names = {"dqn": "online", "r2d2": "online", "ppo": "network", "impala": "network", "pqn": "network"}
    name = names.get(config.algorithm, "critic")
    before = copy.deepcopy(_learned(agent.state_dict()[name]))
    agent.update(sampled_batch(agent, config, env_spec, 6, torch.Generator().manual_seed(0)), torch.zeros(6))
    assert_equal_states(_learned(agent.state_dict()[name]), before)


def _learned(network: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters; every pass moves the vectors of spectral normalisation, and running statistics."""
    moving = ("._u", "._v", ".running_mean", ".running_std")
    return {name: value for name, value in network.items() if not name.endswith(moving)}


@every_agent
def test_same_seed_gives_the_same_agent_and_another_seed_another(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Initial parameters depend on the seed alone, not on torch's global generator."""
    first = build_agent(config, env_spec, seed=3).policy_state()
    torch.manual_seed(12345)
    again = build_agent(config, env_spec, seed=3).policy_state()
    other = build_agent(config, env_spec, seed=4).policy_state()
    assert_equal_states(first, again)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@every_agent
def test_published_policy_state_is_a_copy(config: AgentConfig, env_spec: EnvSpec) -> None:
    """What is being sent does not change under the next update."""
    agent = build_agent(config, env_spec)
    published = agent.policy_state()
    kept = {name: value.clone() for name, value in published.items()}
    run(agent, config, env_spec, range(3))
    assert_equal_states(published, kept)
    assert any(not torch.equal(value, kept[name]) for name, value in agent.policy_state().items())


@every_agent
def test_policies_with_the_same_parameters_agree(config: AgentConfig, env_spec: EnvSpec) -> None:
    """After `load` the greedy actions depend on the parameters, not on the policy's own seed."""
    state = build_agent(config, env_spec, seed=1).policy_state()
    policies = [policy_of(config, env_spec, seed) for seed in (1, 2)]
    for policy in policies:
        policy.load(state)
    actions = [policy.act(seen_by(config, env_spec), evaluation=True).action for policy in policies]
    np.testing.assert_array_equal(actions[0], actions[1])


@every_agent
def test_policy_computes_as_in_evaluation(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Acting changes nothing in a network: dropout drops nothing, spectral normalisation iterates no further."""
    networks = [part for part in vars(policy_of(config, env_spec)).values() if isinstance(part, torch.nn.Module)]
    assert networks
    assert not any(network.training for network in networks)


@every_agent
def test_exploration_follows_its_seed(config: AgentConfig, env_spec: EnvSpec) -> None:
    """The same seed repeats the actions; torch's and NumPy's global generators take no part."""
    state = build_agent(config, env_spec).policy_state()

    def actions(seed: int) -> Array:
        policy = policy_of(config, env_spec, seed)
        policy.load(state)
        return np.stack([policy.act(seen_by(config, env_spec), step).action for step in (0, 100_000, 100_001)])

    first = actions(7)
    torch.manual_seed(1)
    np.testing.assert_array_equal(actions(7), first)
    assert not np.array_equal(actions(8), first)


@every_agent
def test_actions_have_the_environments_shape_and_type(config: AgentConfig, env_spec: EnvSpec) -> None:
    """int64 [N] in range, or float32 [N, ...] in [-1, 1], from both ways to act."""
    policy = policy_of(config, env_spec)
    seen = seen_by(config, env_spec)
    for action in (
        policy.act(seen, 0).action,
        policy.act(seen, 10**6).action,
        policy.act(seen, evaluation=True).action,
    ):
        assert action.dtype == env_spec.action_dtype
        assert action.shape == (5, *env_spec.action_shape)
        low, high = (0, env_spec.num_actions - 1) if env_spec.is_discrete else (-1, 1)
        if isinstance(config, LearnsOnPolicy) and not env_spec.is_discrete:
            low, high = -10, 10  # a Gaussian's, which the environment clips
        assert action.min() >= low
        assert action.max() <= high


@every_agent
def test_what_a_policy_returned_is_not_changed_by_the_next_version(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Nothing is a view of its parameters, into which `load` writes."""
    policy = policy_of(config, env_spec)
    assert isinstance(policy, SplitPolicy)
    returned = policy.forward(seen_by(config, env_spec))
    kept = {name: value.clone() for name, value in returned.items()}
    policy.load({name: value + 1 for name, value in build_agent(config, env_spec).policy_state().items()})
    assert_equal_states(returned, kept)


@pytest.mark.requires_cuda
@every_agent
def test_policy_on_a_gpu_acts_in_the_hosts_memory(config: AgentConfig, env_spec: EnvSpec) -> None:
    """Whole, or in two halves, of which the second chooses by the numbers of the first."""
    policy, seen = build_policy(config, env_spec, "cuda", slot=ActorSlot(0, 5, 1)), seen_by(config, env_spec)
    policy.load(build_agent(config, env_spec).policy_state())
    assert isinstance(policy, SplitPolicy)
    chosen = policy.choose(seen, policy.forward(seen))
    for output in (policy.act(seen, 0), policy.act(seen, evaluation=True), chosen):
        arrays = [output.action, *output.priority_inputs.values(), *output.extras.values()]
        arrays += [] if output.recurrent_state is None else [output.recurrent_state]
        assert {type(array) for array in arrays} == {np.ndarray}
        assert {len(array) for array in arrays} == {5}


@every_agent
def test_initial_priority_is_one_positive_number_an_environment(config: AgentConfig, env_spec: EnvSpec) -> None:
    """The columns of a output, stacked over n + 1 steps, are all a policy needs."""
    policy, steps = policy_of(config, env_spec), config.window(env_spec.frame_stack).steps
    acted = [policy.act(seen_by(config, env_spec), 0).priority_inputs for _ in range(steps + 1)]
    columns = {name: np.stack([step[name] for step in acted]) for name in acted[0]}
    flags = np.zeros((steps + 1, 5), dtype=bool)
    columns |= {"reward": flags.astype(np.float32), "terminated": flags, "truncated": flags, "is_reset_step": flags}
    priority = policy.initial_priority(columns)
    assert priority.dtype == np.float32
    assert priority.shape == (5,)
    assert (priority >= 0).all()


@pytest.mark.parametrize(
    "config,env_spec,message",
    [
        (TD3Config(), VECTOR, "'td3'"),
        (DQNConfig(), CONTINUOUS, "'dqn' continuous"),
        (SACConfig(), VECTOR, "'sac'"),
        (SACConfig(network="mlp"), CONTINUOUS_PIXELS, "'mlp' (84, 84)"),
        (TD3Config(network="mlp"), CONTINUOUS_PIXELS, "agent.network 'mlp'"),
        (DDPGConfig(network="mlp"), CONTINUOUS_PIXELS, "agent.network 'mlp'"),
        (D4PGConfig(network="mlp"), CONTINUOUS_PIXELS, "agent.network 'mlp'"),
        (DQNConfig(network="nature"), VECTOR, "'nature' (3,) mlp"),
        (DQNConfig(network="nature"), EnvSpec((20, 84), "uint8", 4, 3), "36x36"),
    ],
)
def test_algorithm_that_does_not_fit_the_environment_is_refused(
    config: AgentConfig, env_spec: EnvSpec, message: str
) -> None:
    """The message names the setting, its value and what the environment has."""
    with pytest.raises(ConfigError, match=naming(message)):
        build_agent(config, env_spec)


def test_smallest_image_passes_through_the_network() -> None:
    """36 pixels leave one after three convolutions."""
    config = DQNConfig(hidden_sizes=(8,))
    spec = EnvSpec((36, 36), "uint8", IMAGE.frame_stack, 3)
    assert policy_of(config, spec).act(seen_by(config, spec), evaluation=True).action.shape == (5,)
