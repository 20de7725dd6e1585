"""A compiled update is the eager update, and resumes as exactly."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from torch import Tensor

from tests.unit.rl.batches import CASES, IMAGE, VECTOR, sampled_batch
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.config import AgentConfig
from tidemill.rl.agents.dqn.config import DQNConfig
from tidemill.rl.agents.interface import Agent
from tidemill.rl.agents.r2d2.config import R2D2Config
from tidemill.rl.compilation import Compile, compiled
from tidemill.types import EnvSpec

UPDATES = 20
IMAGES = DQNConfig(hidden_sizes=(16,), target_every=5, update_precision="float32")
SEQUENCES = R2D2Config(
    network="mlp",
    hidden_sizes=(),
    lstm_size=4,
    head_sizes=(4,),
    dueling=False,
    burn_in=0,
    unroll=2,
    period=1,
    n_step=1,
    target_every=5,
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What torch compiles lies in a folder of these tests, and no process is kept to compile in."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    with torch._inductor.config.patch(compile_threads=1):
        yield
    torch.compiler.reset()


def updated(agent: Agent, config: AgentConfig, env_spec: EnvSpec, numbers: range) -> list[Tensor]:
    """Make the updates of these numbers, each with a batch of its own; return all that they report."""
    reported: list[Tensor] = []
    device = next(iter(agent.policy_state().values())).device
    for number in numbers:
        rng = torch.Generator().manual_seed(number)
        batch = sampled_batch(agent, config, env_spec, 8, rng)
        update = agent.update({name: tensor.to(device) for name, tensor in batch.items()}, torch.ones(8, device=device))
        reported += [update.priority, *update.metrics.values()]
    return reported


def assert_same_updates(config: DQNConfig | R2D2Config, env_spec: EnvSpec, how: Compile, device: str = "cpu") -> None:
    """Compare what compiled and eager updates report, and the parameters they end with."""
    agents = [build_agent(dataclasses.replace(config, compile=each), env_spec, device, 1) for each in ("none", how)]
    eager, fast = (updated(agent, config, env_spec, range(UPDATES)) for agent in agents)
    torch.testing.assert_close(fast, eager, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(agents[1].policy_state(), agents[0].policy_state(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("how", ["default", "cuda-graphs"])
def test_compiled_updates_equal_eager_ones(how: Compile) -> None:
    """Twenty updates with copies to the target: priorities, metrics and parameters agree to rounding."""
    config, env_spec = CASES["dqn"]
    assert isinstance(config, DQNConfig)
    assert_same_updates(dataclasses.replace(config, target_every=5), env_spec, how)


def test_compiled_updates_of_images_equal_eager_ones() -> None:
    """So does a network with convolutions and a dueling head."""
    assert_same_updates(IMAGES, IMAGE, "default")


def test_compiled_updates_of_sequences_equal_eager_ones() -> None:
    """So does a recurrent network, whose steps are unrolled."""
    assert_same_updates(SEQUENCES, VECTOR, "default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs are recorded nowhere else")
def test_recorded_updates_on_a_gpu_equal_eager_ones() -> None:
    """What one update reports stays as it is when the next one has written over the recording's memory."""
    assert_same_updates(IMAGES, IMAGE, "cuda-graphs", "cuda")


def test_compiled_agent_resumes_exactly() -> None:
    """Half of the updates, a new agent with the state and the other half end in the bits of all in one go."""
    config, env_spec = dataclasses.replace(CASES["dqn"][0], compile="default"), CASES["dqn"][1]  # type: ignore[type-var]
    straight, before, resumed = (build_agent(config, env_spec, seed=seed) for seed in (1, 1, 2))
    updated(straight, config, env_spec, range(UPDATES))
    updated(before, config, env_spec, range(UPDATES // 2))
    resumed.load_state_dict(copy.deepcopy(before.state_dict()))
    updated(resumed, config, env_spec, range(UPDATES // 2, UPDATES))
    left, right = resumed.policy_state(), straight.policy_state()
    assert all(torch.equal(left[name], right[name]) for name in right)


def test_missing_compiler_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names the setting, before any update."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    missing = torch._inductor.config.patch({"cpp.cxx": (None, str(tmp_path / "no-compiler"))})
    with missing, pytest.raises(ConfigError, match=r"^agent\.compile asks .* cannot here; .* set it to none \(.*\)$"):
        compiled(lambda _, weight: (weight,), "default", torch.device("cpu"))


def test_noisy_network_is_not_compiled() -> None:
    """The message says why."""
    with pytest.raises(ConfigError, match="compile is 'default', but must be one of none with noisy layers"):
        DQNConfig(noisy=True, compile="default")
