"""The agent of a learner: as it is, or behind the relabelling of its goals."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from structlog.testing import capture_logs

from tests.support.naming import naming
from tidemill.config.load import from_document
from tidemill.config.sections import LearnerConfig
from tidemill.envs.make import spec_of
from tidemill.errors import ConfigError, FatalError
from tidemill.rl.agents.dqn import DQNAgent
from tidemill.rl.agents.hindsight import HindsightAgent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.services.learner import learner
from tidemill.services.learner.data import device as data_device
from tidemill.services.learner.data.device import learner_device
from tidemill.services.learner.learner import Learner, learning_agent
from tidemill.types import EnvSpec, WindowSpec


def test_agent_is_wrapped_only_where_goals_are_relabelled() -> None:
    """Without, nothing stands between the learner and its algorithm; with, items are as long as goals may be away."""
    document: dict[str, Any] = {
        "env": {"id": "examples.bit_flip:BitFlip", "observation_stack": 2},
        "agent": {"algorithm": "dqn", "network": "mlp", "hidden_sizes": [4], "n_step": 1},
        "table": {"hindsight_steps": 10},
    }
    for hindsight, kind, steps in ((0.0, DQNAgent, 1), (0.8, HindsightAgent, 10)):
        document["table"]["hindsight"] = hindsight
        config = from_document(LearnerConfig, document)
        agent = learning_agent(config, spec_of(config.env), torch.device("cpu"), 32)
        assert type(agent) is kind
        assert agent.window == WindowSpec(history=1, steps=steps)


class _BuiltError(Exception):
    """Ends a learner that would build its agent."""


@pytest.fixture(name="on_gpu")
def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Learner, list[str]]:
    """Return a learner that is given a GPU, and what it does until it has built its agent, which raises _BuiltError."""
    done: list[str] = []

    def chosen(config: DQNConfig, *_: object) -> DQNConfig:
        done.append("try updates")
        return replace(config, compile="none")

    def build(config: LearnerConfig, *_: object) -> None:
        done.append(f"build with {config.agent.compile}")  # type: ignore[attr-defined]
        raise _BuiltError

    monkeypatch.setattr(learner, "learner_device", lambda *_: torch.device("cuda", 1))
    monkeypatch.setattr(learner, "with_chosen_compile", chosen)
    monkeypatch.setattr(learner, "use_device", lambda device: done.append(f"use {device}"))
    monkeypatch.setattr(learner, "watch_gpu", lambda device: done.append(f"watch {device}"))
    monkeypatch.setattr(learner, "learning_agent", build)
    for changes_process in ("flush_denormals", "seed_rng", "use_near_processors"):
        monkeypatch.setattr(learner, changes_process, lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    config = from_document(LearnerConfig, {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}})
    return Learner(config, threading.Event()), done


def test_updates_are_tried_before_the_gpu_is_opened(on_gpu: tuple[Learner, list[str]]) -> None:
    """The trial is another process: a GPU in exclusive-process mode refuses it once the learner holds the GPU."""
    made, done = on_gpu
    with pytest.raises(_BuiltError):
        made._build()
    assert done == ["try updates", "use cuda:1", "watch cuda:1", "build with none"]


@pytest.mark.parametrize("asked, device", [("auto", "cpu"), ("cuda", "cuda:1")])
def test_gpu_that_recorded_updates_alone_spoke_for_is_left_if_none_can_be(
    asked: str, device: str, on_gpu: tuple[Learner, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core computes small layers before the host has launched their kernels one by one. A GPU that is named stays."""
    monkeypatch.setattr(learner, "learner_device", learner_device)
    monkeypatch.setattr(data_device, "resolve_device", lambda *_: torch.device("cuda", 1))
    settings = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}, "learner": {"device": asked}}
    with pytest.raises(_BuiltError), capture_logs() as logs:
        Learner(from_document(LearnerConfig, settings), threading.Event())._build()
    done = [step for step in on_gpu[1] if not step.startswith("watch")]
    assert done == ["try updates", f"use {device}", "build with none"]
    told = [line["event"] for line in logs]
    assert told == (["training on the GPU", "training on the CPU although there is a GPU"] if asked == "auto" else [])


@pytest.mark.parametrize("asked, works", [("cuda:7", True), ("cuda", False)])
def test_run_that_has_trained_is_tried_again_without_its_gpu(
    asked: str, works: bool, on_gpu: tuple[Learner, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A GPU that is lost may return, or another machine has one; a new run asks for what was never there."""
    monkeypatch.setattr(learner, "learner_device", learner_device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: works)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    settings = {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "dqn"}, "learner": {"device": asked}}
    config = from_document(LearnerConfig, {**settings, "run": {"root": str(tmp_path), "name": "lost"}})
    named = naming(f"learner.device '{asked}' 7 GPUs")
    with pytest.raises(ConfigError, match=named):
        Learner(config, threading.Event())._build()
    (config.run.folder / "checkpoints").mkdir(parents=True)
    with pytest.raises(FatalError, match=named):
        Learner(config, threading.Event())._build()
    assert on_gpu[1] == []


def test_learner_that_records_updates_can_make_its_agent_without(
    on_gpu: tuple[Learner, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For another rank that cannot record them; an agent that records none is not made twice."""
    built: list[str] = []

    def build(config: LearnerConfig, spec: EnvSpec, _: torch.device, batch_size: int) -> Agent:
        settings = cast(DQNConfig, config.agent)
        built.append(settings.compile)
        on_cpu = replace(config, agent=replace(settings, compile="none"))
        return learning_agent(on_cpu, spec, torch.device("cpu"), batch_size)

    monkeypatch.setattr(learner, "learning_agent", build)
    assert on_gpu[0]._build().eager is None
    monkeypatch.setattr(learner, "with_chosen_compile", lambda config, *_: replace(config, compile="cuda-graphs"))
    eager = on_gpu[0]._build().eager
    assert eager is not None
    eager()
    assert built == ["none", "cuda-graphs", "none"]


@pytest.mark.parametrize("step", ["use_device", "watch_gpu", "learning_agent"])
def test_learner_that_a_full_gpu_refuses_says_what_is_free(
    step: str, on_gpu: tuple[Learner, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA itself takes memory, then the agent."""

    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(learner, step, refuse)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**28 * device.index, 79 * 2**30))
    with pytest.raises(FatalError, match=naming("0.2 79.0 GiB agent.batch_size")):
        on_gpu[0]._build()


@pytest.mark.parametrize(
    "settings, most, chooses",
    [
        ({}, 4, True),
        ({}, 1, False),
        ({"learner": {"threads": 4}}, 4, False),
        ({"agent": {"compile": "default"}}, 4, False),
    ],
)
def test_threads_are_chosen_while_training_unless_their_number_is_given(
    settings: dict[str, Any], most: int, chooses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they where another number would compile the update again."""

    def build(config: LearnerConfig, *rest: Any) -> Agent:  # noqa: ANN401
        return learning_agent(replace(config, agent=replace(cast(DQNConfig, config.agent), compile="none")), *rest)

    monkeypatch.setattr(learner, "torch_threads", lambda *_: most)
    monkeypatch.setattr(learner, "learning_agent", build)
    for changes_process in ("flush_denormals", "seed_rng"):
        monkeypatch.setattr(learner, changes_process, lambda *_: None)
    set_to: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    agent = {"algorithm": "dqn", **settings.get("agent", {})}
    config = from_document(LearnerConfig, {"env": {"id": "CartPole-v1"}, **settings, "agent": agent})
    made = Learner(config, threading.Event())._build()
    assert (made.threads is not None, set(set_to)) == (chooses, {most})
