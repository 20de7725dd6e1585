"""Networks of observations of several parts, in every algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.batches import SMALL_R2D2, policy_input
from tests.support.naming import naming
from tests.support.playing import play
from tidemill.envs.make import spec_of
from tidemill.envs.settings import EnvSettings
from tidemill.errors import ConfigError
from tidemill.observation_parts import in_order, pack
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.networks.parts import VECTOR_FEATURES
from tidemill.rl.networks.torso import build_torso
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.on_policy import IMPALAConfig, PPOConfig
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.types import EnvSpec, ObservationPart

PARTS = in_order(
    [
        ObservationPart("camera", "uint8", (36, 38, 3)),
        ObservationPart("speed", "float32", (2,)),
        ObservationPart("map", "uint8", (36, 36)),
        ObservationPart("gear", "float32", (3,)),
    ]
)
VECTORS = PARTS[:2]


def _spec(parts: tuple[ObservationPart, ...], **others: Any) -> EnvSpec:  # noqa: ANN401 - fields of the spec
    return EnvSpec((sum(part.step_bytes for part in parts),), "uint8", observation_parts=parts, **others)


def _values(parts: tuple[ObservationPart, ...], lead: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return {part.name: rng.integers(256, size=(*lead, *part.shape)).astype(part.dtype) for part in parts}


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("count", [1, 4])
def test_every_part_passes_through_its_own_network(stack: int, count: int) -> None:
    """Features are those of the parts, made one by one; a slice at an odd place of a batch makes no difference."""
    lead = (count, stack) if stack > 1 else (count,)
    spec, values = _spec(PARTS, frame_stack=stack), _values(PARTS, lead)
    torso: Any = build_torso("nature", spec, torch.Generator().manual_seed(0))
    batch = torch.from_numpy(pack(PARTS, values, lead))
    found = torso(batch)
    assert found.shape == (count, torso.outputs)
    images = [torso.images[i](torch.from_numpy(values[name])) for i, name in enumerate(("camera", "map"))]
    vectors = [
        torch.relu(torso.vectors[i](torch.from_numpy(values[name]).flatten(1)))
        for i, name in enumerate(("gear", "speed"))
    ]
    torch.testing.assert_close(found, torch.cat([*images, *vectors], dim=1))
    assert vectors[0].shape[1] == VECTOR_FEATURES
    torch.testing.assert_close(torso(batch[count - 1 :]), found[count - 1 :])


def test_vectors_alone_are_laid_side_by_side() -> None:
    """As one vector would be, for the layers that follow, or for a torso of one's own."""
    values = _values(VECTORS, (2,))
    torso = build_torso("mlp", _spec(VECTORS), torch.Generator())
    found = torso(torch.from_numpy(pack(VECTORS, values, (2,))))
    assert found.tolist() == np.concatenate([values["gear"], values["speed"]], axis=1).tolist()
    with pytest.raises(ConfigError, match=naming("(5,)")):
        build_torso("nature", _spec(VECTORS), torch.Generator())


CONTINUOUS = {"action_shape": (2,)}
CASES: dict[str, tuple[AgentConfig, dict[str, Any]]] = {
    "dqn": (DQNConfig(hidden_sizes=(8,), update_precision="float32"), {"num_actions": 3}),
    "r2d2": (R2D2Config(network="nature", **SMALL_R2D2, update_precision="float32"), {"num_actions": 3}),
    "ppo": (PPOConfig(network="nature", hidden_sizes=(8,), unroll=5, epochs=1, minibatches=1), {"num_actions": 3}),
    "impala": (IMPALAConfig(network="nature", hidden_sizes=(8,), unroll=5), CONTINUOUS),
    "ppo_lstm": (
        PPOConfig(network="nature", lstm_size=8, hidden_sizes=(8,), unroll=5, epochs=1, minibatches=1),
        {"num_actions": 3},
    ),
    "sac": (SACConfig(network="nature", hidden_sizes=(8,)), CONTINUOUS),
    "td3": (TD3Config(network="nature", hidden_sizes=(8,)), CONTINUOUS),
    "ddpg": (DDPGConfig(network="nature", actor_sizes=(8,), critic_sizes=(8, 8)), CONTINUOUS),
    "d4pg": (D4PGConfig(network="nature", actor_sizes=(8,), critic_sizes=(8, 8)), CONTINUOUS),
    "dqn_vectors": (DQNConfig(network="mlp", hidden_sizes=(8,)), {"num_actions": 3, "parts": VECTORS}),
    "sac_vectors": (SACConfig(hidden_sizes=(8,)), {**CONTINUOUS, "parts": VECTORS}),
    "td3_vectors": (TD3Config(hidden_sizes=(8,)), {**CONTINUOUS, "parts": VECTORS}),
}


@pytest.mark.parametrize("name", CASES)
def test_agent_learns_from_stored_parts_and_its_policy_acts(name: str) -> None:
    """An update from the named columns of a stream, and actions from packed observations, with a stack of two."""
    config, others = CASES[name]
    parts = others.get("parts", PARTS)
    spec = _spec(parts, frame_stack=2, **{key: value for key, value in others.items() if key != "parts"})
    agent, policy = build_agent(config, spec, seed=0), build_policy(config, spec, seed=0)
    rows, rng = agent.window.length + 2, np.random.default_rng(0)
    action = rng.integers(3, size=rows) if spec.is_discrete else rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    columns = {f"observation__{part}": value for part, value in _values(parts, (rows,)).items()}
    columns |= {"action": action, "reward": np.ones(rows, np.float32), "log_prob": np.full(rows, -1.0, np.float32)}
    columns |= {name: np.zeros(rows, np.bool_) for name in ("terminated", "truncated", "is_first")}
    index = np.arange(2)[:, None] + np.arange(agent.window.length)
    batch = {name: torch.from_numpy(column) for name, column in agent.decode(columns, index).items()}
    if agent.recurrent_state_size:
        batch["recurrent_state"] = torch.zeros((2, agent.recurrent_state_size))
    before = agent.policy_state()
    update = agent.update(batch, torch.ones(2))
    assert all(torch.isfinite(value).all() for value in update.metrics.values())
    changed = {key for key, value in agent.policy_state().items() if not torch.equal(value, before[key])}
    assert changed
    policy.load(agent.policy_state())
    seen = pack(parts, _values(parts, (3, 2)), (3, 2))
    output = policy.act(policy_input(seen, recurrent_state_size=policy.recurrent_state_size), evaluation=True)
    assert output.action.shape == (3, *spec.action_shape)


def test_mlp_is_refused_for_an_image_among_the_parts() -> None:
    """By the algorithms that refuse it for an image alone."""
    with pytest.raises(ConfigError, match=naming("agent.network 'mlp' (36, 38, 3)")):
        SACConfig(network="mlp").validate_env(_spec(PARTS, **CONTINUOUS))


def test_agent_learns_what_only_one_part_shows() -> None:
    """The gear is in a part of the Dict; after some updates every action equals it."""
    settings = EnvSettings("tests.support.envs:parts", observation_stack=2)
    config = DQNConfig(
        network="mlp",
        hidden_sizes=(16,),
        exploration="schedule",
        learning_rate=0.01,
        n_step=1,
        gamma=0.0,
        dueling=False,
    )
    spec = spec_of(settings)
    agent, policy = build_agent(config, spec, seed=1), build_policy(config, spec, seed=1)
    columns = play(settings, policy, 24, 4)
    index = np.arange(1, 94)[:, None] + np.arange(agent.window.length) - 1
    for _ in range(150):
        batch = {name: torch.from_numpy(column) for name, column in agent.decode(columns, index).items()}
        agent.update(batch, torch.ones(len(index)))
    policy.load(agent.policy_state())
    assert play(settings, policy, 3, 2, evaluation=True)["reward"].tolist() == [1.0] * 6
