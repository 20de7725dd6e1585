"""A learner that continues from its checkpoint is the learner that was."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from tests.support.batches import policy_input
from tests.support.naming import naming
from tidemill.errors import ConfigError, FatalError
from tidemill.params.blob import unpack
from tidemill.rl.agents.build import build_agent, build_policy
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.on_policy import PPOConfig
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import AgentConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig
from tidemill.services.learner.checkpoint.resume import ResumableState, seed_rng
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.status.counters import Counters
from tidemill.types import EnvSpec

_PPO_NORMALIZED = Path(__file__).parent / "ppo-normalized"

_CONTINUOUS = EnvSpec((8,), "float32", action_shape=(2,))
_DISCRETE = EnvSpec((4,), "float32", num_actions=3)
_SAC = SACConfig(hidden_sizes=(16, 16))
_DQN = DQNConfig(network="mlp", hidden_sizes=(16,), target_update_period=7)

_CASES = [pytest.param(_SAC, _CONTINUOUS, id="sac"), pytest.param(_DQN, _DISCRETE, id="dqn")]


def _batches(spec: EnvSpec, count: int) -> list[dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(3)
    size = 8

    def action() -> Tensor:
        if spec.is_discrete:
            return torch.randint(spec.num_actions, (size,), generator=rng)
        return torch.rand((size, *spec.action_shape), generator=rng) * 2 - 1

    return [
        {
            "observation": torch.randn((size, *spec.observation_shape), generator=rng),
            "action": action(),
            "n_step_return": torch.randn(size, generator=rng),
            "bootstrap_discount": torch.full((size,), 0.99),
            "bootstrap_observation": torch.randn((size, *spec.observation_shape), generator=rng),
        }
        for _ in range(count)
    ]


def _train(agent: Agent, batches: list[dict[str, Tensor]]) -> None:
    for each in batches:
        agent.update(each, torch.ones(8))


def _resumable(agent: Agent, counters: Counters, algorithm: str = "x", digest: str = "") -> ResumableState:
    return ResumableState(agent, counters, algorithm=algorithm, config_digest=digest)


@pytest.mark.parametrize("config, spec", _CASES)
def test_checkpoint_of_a_checkpoint_is_equal(config: AgentConfig, spec: EnvSpec, tmp_path: Path) -> None:
    """Nothing of the state is left out: what was restored is captured again as it was."""
    agent = build_agent(config, spec, seed=1)
    _train(agent, _batches(spec, 3))
    saved = _resumable(agent, Counters(learner_steps=3)).capture()
    CheckpointStore(tmp_path, keep=1).write(saved)
    other, counters = build_agent(config, spec, seed=2), Counters()
    resumable = _resumable(other, counters)
    resumable.restore(CheckpointStore(tmp_path, keep=1))
    torch.testing.assert_close(resumable.capture().agent, saved.agent, rtol=0, atol=0)
    assert resumable.capture().counters == saved.counters


@pytest.mark.parametrize("config, spec", _CASES)
def test_learner_goes_back_to_a_state_it_held(config: AgentConfig, spec: EnvSpec) -> None:
    """After further updates it is what it was: a checkpoint of it equals one of then, generators included."""
    agent, counters = build_agent(config, spec, seed=1), Counters(learner_steps=3)
    resumable, batches = _resumable(agent, counters), _batches(spec, 6)
    _train(agent, batches[:3])
    then, held = resumable.to_bytes(), resumable.snapshot()
    _train(agent, batches[3:])
    counters.learner_steps = 6
    resumable.roll_back(held)
    assert resumable.to_bytes() == then


def test_normalizer_of_an_earlier_program_is_read(tmp_path: Path) -> None:
    """A checkpoint and parameters of PPO, whose mean and deviation of observations were float32: it acts as it did."""
    for each in _PPO_NORMALIZED.iterdir():
        shutil.copy(each, tmp_path)
    config = PPOConfig(hidden_sizes=(4,), unroll=5, normalize_observations=True, normalize_rewards=True)
    spec = EnvSpec((3,), "float32", action_shape=(1,))
    agent = build_agent(config, spec, seed=9)
    restored = _resumable(agent, Counters(), "ppo").restore(CheckpointStore(tmp_path, keep=1))
    assert ": 2 updates" in restored
    stored = unpack((tmp_path / "policy.safetensors").read_bytes())
    seen = policy_input(np.linspace(-20, 20, 24, dtype=np.float32).reshape(8, 3))
    expected = np.array(json.loads((tmp_path / "actions.json").read_text()))
    for state in (agent.policy_state(), {name: torch.from_numpy(value) for name, value in stored.items()}):
        policy = build_policy(config, spec, seed=7)
        policy.load(state)
        np.testing.assert_allclose(policy.act(seen, evaluation=True).action, expected, atol=1e-6)


def test_what_came_back_and_what_did_not_is_said(tmp_path: Path) -> None:
    """Also which library is another than the one that wrote it."""
    agent = build_agent(_SAC, _CONTINUOUS)
    then = ResumableState(
        agent, Counters(), algorithm="x", config_digest="", written_by={"torch": "1", "learners": "2"}
    )
    CheckpointStore(tmp_path, keep=1).write(then.capture())
    now = ResumableState(agent, Counters(), algorithm="x", config_digest="", written_by={"torch": "2", "learners": "2"})
    restored = now.restore(CheckpointStore(tmp_path, keep=1))
    assert "optimizers, schedules, counters and random generators are restored, with torch 1 then, 2 now" in restored
    assert restored.endswith("not restored: batches that were ready but not trained on")


@pytest.mark.parametrize(
    "then, now, changed", [(2, 0, False), (0, 2, False), (2, 2, False), (2, 4, True), (4, 2, True)]
)
def test_generators_of_gpus_are_lost_only_if_both_processes_had_some(
    then: int, now: int, changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner on a CPU draws from none, also where an earlier version saved those of its machine."""
    state = _resumable(build_agent(_SAC, _CONTINUOUS), Counters(), "x")
    captured = state.capture()
    captured.rng["cuda"] = [torch.zeros(16, dtype=torch.uint8) for _ in range(then)]
    CheckpointStore(tmp_path, keep=1).write(captured)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: now > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: now)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda _: None)
    restored = state.restore(CheckpointStore(tmp_path, keep=1))
    assert ("random generators of the GPUs" in restored) == changed


def test_settings_that_changed_since_the_checkpoint_are_named(tmp_path: Path) -> None:
    """Those that only one version of Tidemill knows have not changed; nor has any of a checkpoint that names none."""
    agent, store = build_agent(_SAC, _CONTINUOUS), CheckpointStore(tmp_path, keep=1)

    def warned(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
        before, after = (
            ResumableState(agent, Counters(), algorithm="x", config_digest=str(settings), settings=settings)
            for settings in (then, now)
        )
        store.write(before.capture())
        with capture_logs() as lines:
            after.restore(store)
        return [line["changed"] for line in lines if line["log_level"] == "warning"]

    then = {"agent.gamma": 0.9, "agent.removed": 1, "env.kwargs": {"size": 3}}
    assert warned(then, {"agent.gamma": 0.9, "agent.added": 2, "env.kwargs": {"size": 3}}) == []
    expected = "agent.gamma 0.99 (it was 0.9), env.kwargs {} (it was {'size': 3})"
    assert warned(then, {"agent.gamma": 0.99, "env.kwargs": {}}) == [expected]
    assert warned({}, then) == []


def test_fresh_run_restores_nothing(tmp_path: Path) -> None:
    """An empty folder leaves agent and counters as they are."""
    counters = Counters()
    assert _resumable(build_agent(_SAC, _CONTINUOUS), counters).restore(CheckpointStore(tmp_path, keep=1)) == ""
    assert counters.learner_steps == 0


def test_learner_whose_checkpoints_are_all_corrupt_does_not_start_from_scratch(tmp_path: Path) -> None:
    """The refusal names each file and the folder to move away; it removes nothing."""
    store = CheckpointStore(tmp_path, keep=2)
    resumable = _resumable(build_agent(_SAC, _CONTINUOUS), Counters())
    paths = [store.write(resumable.capture()) for _ in range(2)]
    for path in paths:
        path.write_bytes(b"torn")
    with pytest.raises(ConfigError, match=naming(str(tmp_path), *(path.name for path in paths), "move from scratch")):
        resumable.restore(store)
    assert all(path.exists() for path in paths)


def test_random_numbers_go_on_after_a_resume(tmp_path: Path) -> None:
    """The process's generators are part of the state."""
    agent = build_agent(_SAC, _CONTINUOUS)
    seed_rng(1)
    CheckpointStore(tmp_path, keep=1).write(_resumable(agent, Counters()).capture())
    expected = torch.rand(3)
    seed_rng(2)
    _resumable(agent, Counters()).restore(CheckpointStore(tmp_path, keep=1))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("config, spec", _CASES)
def test_run_of_another_kind_of_device_goes_on(config: AgentConfig, spec: EnvSpec, tmp_path: Path) -> None:
    """A GPU's generator has a state of 16 bytes; the seed and the updates decide what is drawn instead, and it is said.

    Twice the same, and other numbers after other updates.
    """
    first = build_agent(config, spec, seed=1)
    drawn = list[Tensor]()
    for updates in (3, 3, 4):
        state = first.state_dict() | {"noise": torch.zeros(16, dtype=torch.uint8), "updates": updates}
        checkpoint = dataclasses.replace(_resumable(first, Counters(learner_steps=updates)).capture(), agent=state)
        store = CheckpointStore(tmp_path / str(len(drawn)), keep=1)
        store.write(checkpoint)
        agent = build_agent(config, spec, seed=1)
        restored = _resumable(agent, Counters()).restore(store)
        assert (
            "not restored: batches that were ready but not trained on, the generator of the agent's noise" in restored
        )
        assert agent.state_dict()["updates"] == updates
        drawn.append(agent.state_dict()["noise"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_other_network_is_refused_and_the_agent_untouched(tmp_path: Path) -> None:
    """A run whose hidden sizes changed says which tensor does not fit."""
    wide = build_agent(SACConfig(hidden_sizes=(32, 16)), _CONTINUOUS)
    CheckpointStore(tmp_path, keep=1).write(_resumable(wide, Counters()).capture())
    agent = build_agent(_SAC, _CONTINUOUS, seed=1)
    before = agent.policy_state()
    with pytest.raises(FatalError, match=r"of shape \[.*32.*of shape \[.*16"):
        _resumable(agent, Counters()).restore(CheckpointStore(tmp_path, keep=1))
    for name, tensor in agent.policy_state().items():
        assert torch.equal(tensor, before[name])


def test_other_algorithm_is_refused(tmp_path: Path) -> None:
    """A DQN run does not start from a SAC checkpoint."""
    agent = build_agent(_SAC, _CONTINUOUS)
    CheckpointStore(tmp_path, keep=1).write(_resumable(agent, Counters(), "sac").capture())
    other = build_agent(_DQN, _DISCRETE)
    with pytest.raises(FatalError, match=naming("sac dqn")):
        _resumable(other, Counters(), "dqn").restore(CheckpointStore(tmp_path, keep=1))


def test_state_the_agent_cannot_take_is_a_clear_error(tmp_path: Path) -> None:
    """Equal policy shapes but another critic: the agent's refusal names the file."""
    normed = build_agent(SACConfig(hidden_sizes=(16, 16), critic_layer_norm=True), _CONTINUOUS)
    CheckpointStore(tmp_path, keep=1).write(_resumable(normed, Counters()).capture())
    with pytest.raises(FatalError, match=naming("checkpoint-000000-00000001.safetensors")):
        _resumable(build_agent(_SAC, _CONTINUOUS), Counters()).restore(CheckpointStore(tmp_path, keep=1))


def test_gpu_that_is_full_is_not_taken_for_another_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of an optimizer is made on the GPU at a restart; the learner then says what is free."""
    agent, store = build_agent(_SAC, _CONTINUOUS), CheckpointStore(tmp_path, keep=1)
    store.write(_resumable(agent, Counters()).capture())
    monkeypatch.setattr(agent, "load_state_dict", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(torch.OutOfMemoryError):
        _resumable(agent, Counters()).restore(store)
