"""Sections of settings that each process reads: a frozen dataclass per process, and one with all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.config.run import ClusterSettings, LogSettings, RunSettings
from tidemill.config.services import (
    ActorSettings,
    EvaluatorSettings,
    InferenceSettings,
    LauncherSettings,
    LearnerSettings,
    ParamServerSettings,
    ReplaySettings,
)
from tidemill.config.table import TableSettings
from tidemill.envs.settings import EnvSettings
from tidemill.rl.settings.soft_actor_critic import SACConfig

if TYPE_CHECKING:
    from tidemill.rl.settings.registry import AgentConfig
else:
    AgentConfig = Any  # the command line offers the fields of the algorithm that was named, whichever it is


@dataclass(frozen=True)
class ProcessConfig:
    """Settings that every process has."""

    log: LogSettings = field(default_factory=LogSettings)
    run: RunSettings = field(default_factory=RunSettings)


@dataclass(frozen=True)
class PolicyConfig(ProcessConfig):
    """Settings that the learner has, and whatever acts by its policy."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    env: EnvSettings = field(default_factory=EnvSettings)
    agent: AgentConfig = field(default_factory=SACConfig)
    actor: ActorSettings = field(default_factory=ActorSettings)
    """Defaults of `agent` depend on `actor.count`, so every process needs it. Only an actor reads the rest."""


@dataclass(frozen=True)
class ReplayConfig(ProcessConfig):
    """Settings of the replay service."""

    replay: ReplaySettings = field(default_factory=ReplaySettings)


@dataclass(frozen=True)
class ParamServerConfig(ProcessConfig):
    """Settings of the parameter server."""

    paramserver: ParamServerSettings = field(default_factory=ParamServerSettings)


@dataclass(frozen=True)
class LearnerConfig(PolicyConfig):
    """Settings of the learner."""

    table: TableSettings = field(default_factory=TableSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)


@dataclass(frozen=True)
class InferenceConfig(PolicyConfig):
    """Settings of an inference service."""

    table: TableSettings = field(default_factory=TableSettings)
    """Where the steps of simulators are stored, if `inference.simulators` allows any."""
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    """`learner.tensorboard_every_s` paces the curves of simulators, which need a `learner.max_policy_lag` of -1."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)


@dataclass(frozen=True)
class ActorConfig(PolicyConfig):
    """Settings of an actor."""

    table: TableSettings = field(default_factory=TableSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    """The actor paces itself by it where `learner.max_policy_lag` is set."""


@dataclass(frozen=True)
class EvaluatorConfig(PolicyConfig):
    """Settings of the evaluator."""

    evaluator: EvaluatorSettings = field(default_factory=EvaluatorSettings)


@dataclass(frozen=True)
class RunConfig(PolicyConfig):
    """Everything a run is made of; `tidemill train` reads it and hands each process its part."""

    table: TableSettings = field(default_factory=TableSettings)
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    paramserver: ParamServerSettings = field(default_factory=ParamServerSettings)
    learner: LearnerSettings = field(default_factory=LearnerSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    evaluator: EvaluatorSettings = field(default_factory=EvaluatorSettings)
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
