"""A compiled update is the eager update, and resumes as exactly."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from tests.support.batches import DISTINCT_CASES, VECTOR, WithIdleRank, sampled_batch
from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.agents.q_learning import compiled
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config
from tidemill.rl.settings.registry import AgentConfig
from tidemill.types import EnvSpec

UPDATES = 20
CONFIG, SPEC = DQNConfig(network="mlp", hidden_sizes=(16,), target_update_period=5), VECTOR


needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="needs a C++ compiler, which agent.compile asks for and nothing else does: apt-get install g++",
)


def _inductor(**settings: object) -> AbstractContextManager[None]:
    """Change settings of torch's compiler, which no other test needs to import: it takes two seconds."""
    config = importlib.import_module("torch._inductor.config")
    return config.patch(settings)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What torch compiles lies in a folder of these tests, and no process is kept to compile in.

    The compiler is taken to know the processor's instructions: torch would compile six programs to find out.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    with _inductor(**{"compile_threads": 1, "cpp.vec_isa_ok": True}):
        yield
    torch.compiler.reset()


def updated(agent: Agent, config: AgentConfig, env_spec: EnvSpec, numbers: range) -> list[Tensor]:
    """Make the updates of these numbers, each with another batch; return all that they report."""
    reported: list[Tensor] = []
    for number in numbers:
        rng = torch.Generator().manual_seed(number)
        batch = sampled_batch(agent, config, env_spec, 8, rng)
        update = agent.update(batch, torch.ones(8))
        reported += [update.priority, *update.metrics.values()]
    return reported


def assert_same_updates(config: AgentConfig, env_spec: EnvSpec, updates: int = UPDATES) -> Agent:
    """Compare what compiled and eager updates report, and the parameters they end with; return the compiled agent."""
    agents = [build_agent(with_compile(config, how), env_spec, seed=1) for how in ("none", "default")]
    eager, fast = (updated(agent, config, env_spec, range(updates)) for agent in agents)
    torch.testing.assert_close(fast, eager, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(agents[1].policy_state(), agents[0].policy_state(), rtol=1e-3, atol=1e-4)
    return agents[1]


def with_compile(config: AgentConfig, how: str) -> AgentConfig:
    """Return the settings with another way to compile."""
    changed: AgentConfig = dataclasses.replace(config, compile=how)  # type: ignore[type-var]
    return changed


def can_be_compiled(config: AgentConfig) -> bool:
    """True if the settings offer it and nothing in them forbids it."""
    return isinstance(config, DQNConfig | R2D2Config) and not getattr(config, "noisy", False)


@needs_compiler
@pytest.mark.timeout(300)  # a C++ compiler at work
def test_compiled_updates_equal_eager_ones_and_resume_exactly() -> None:
    """Twenty updates with copies to the target: priorities, metrics and parameters agree to rounding.

    Half of the updates, a new agent with the state and the other half end in the bits of all in one go.
    """
    straight, config = assert_same_updates(CONFIG, SPEC), with_compile(CONFIG, "default")
    before, resumed = (build_agent(config, SPEC, seed=seed) for seed in (1, 2))
    updated(before, config, SPEC, range(UPDATES // 2))
    resumed.load_state_dict(copy.deepcopy(before.state_dict()))
    updated(resumed, config, SPEC, range(UPDATES // 2, UPDATES))
    left, right = resumed.policy_state(), straight.policy_state()
    assert all(torch.equal(left[name], right[name]) for name in right)


@pytest.mark.parametrize("name", [name for name, (config, _) in DISTINCT_CASES.items() if can_be_compiled(config)])
def test_every_compilable_update_is_one_graph_and_equals_the_eager_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the network, distribution or memory; what torch traced runs here without its C++ compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    assert_same_updates(*DISTINCT_CASES[name], updates=3)


def test_compiled_gradients_are_averaged_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates of a rank whose other one has gradients of 0 are those of an eager one.

    What torch traced runs here without its C++ compiler.
    """
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    agents = [build_agent(with_compile(CONFIG, how), SPEC, seed=1) for how in ("none", "default")]
    for agent in agents:
        ranks = WithIdleRank()
        agent.set_process_group(ranks)
        updated(agent, CONFIG, SPEC, range(2))
        assert ranks.means == 2
    torch.testing.assert_close(agents[1].policy_state(), agents[0].policy_state())


def test_missing_compiler_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names the setting, before any update."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    missing = {"cpp.cxx": (None, str(tmp_path / "no-compiler"))}
    with (
        _inductor(**missing),
        pytest.raises(ConfigError, match=naming("agent.compile auto")) as raised,
    ):
        compiled(lambda _, weight: (weight,), "default", torch.device("cpu"))
    assert "\n" not in str(raised.value)


def test_gpu_without_a_compiler_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton needs one to start kernels; its message has several lines, the learner's one."""

    def fail(_: object) -> NoReturn:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable")

    monkeypatch.setattr(torch, "compile", fail)
    why = "(Failed to find C compiler. Please specify via CC environment variable)"
    with pytest.raises(ConfigError, match=naming("agent.compile", why)) as raised:
        compiled(lambda _, weight: (weight,), "default", torch.device("cuda", 0))
    assert "\n" not in str(raised.value)


def test_noisy_network_is_not_compiled() -> None:
    """The message says why."""
    with pytest.raises(ConfigError, match=naming("compile 'default' auto none cuda-graphs noisy")):
        DQNConfig(noisy=True, compile="default")
