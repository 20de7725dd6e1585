"""The report on one evaluation: what `tidemill evaluate` prints and writes."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass
from pathlib import Path

from tidemill import formats
from tidemill.atomic_files import write_atomically
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.atari_scores import human_normalised
from tidemill.params.version import Version
from tidemill.services.evaluator.episode_runner import epsilon_of
from tidemill.services.evaluator.protocol import Evaluation


@dataclass(frozen=True)
class EvalReport:
    """Report on one evaluation, as a JSON document.

    Episodes are full games, and returns are raw, whatever training episodes and rewards were.
    """

    run: str
    algorithm: str
    env_id: str
    params_version: int
    learner_steps: int
    """Updates behind the parameters."""
    env_steps: int
    """Agent decisions behind the parameters."""
    policy: str
    """`greedy`, `epsilon` or `sampled`."""
    epsilon: float
    """Share of random actions; 0 unless the policy is `epsilon`."""
    noop_max: int | None
    """Atari: maximum no-op frames at an episode's start; None elsewhere."""
    sticky_actions: float | None
    """Atari: probability that a frame repeats the last action; None elsewhere."""
    max_steps: int
    """Agent decisions after which an episode was cut; 0 stands for the environment's own limit."""
    episodes: int
    failed_episodes: int
    """Episodes that are left out because their environment failed."""
    mean: float
    std: float
    """Standard deviation of the returns (over the sample, not corrected)."""
    min: float
    max: float
    median: float
    mean_length: float
    """Mean agent decisions of an episode."""
    human_normalised: float | None
    """Of the mean: 0 is random play, 1 a person; None for what is not among the 57 Atari games."""
    seeds: list[int]
    returns: list[float]
    lengths: list[int]
    created_at: str
    """When the test ended, ISO 8601, UTC."""

    @property
    def file_name(self) -> str:
        """Name of its file: version, policy, first seed and episodes, and for Atari the no-op starts."""
        policy = f"epsilon-{self.epsilon:g}" if self.policy == "epsilon" else self.policy
        start = "" if self.noop_max is None else f"-noops-{self.noop_max}"
        return f"version-{self.params_version}-{policy}{start}-seed-{self.seeds[0]}-episodes-{self.episodes}.json"

    def write(self, file: Path) -> None:
        """Write the document, whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        document = {formats.KEY: formats.NEWEST[formats.EVALUATION], **dataclasses.asdict(self)}
        write_atomically(file, json.dumps(document, indent=2) + "\n")

    def __str__(self) -> str:
        """Return the scores in one line, and one before it if episodes failed."""
        all_episodes = self.episodes + self.failed_episodes
        left_out = f"{self.failed_episodes} of {all_episodes} episodes are left out: their environment failed\n"
        normalised = "" if self.human_normalised is None else f"  human-normalised {100 * self.human_normalised:.1f} %"
        return (
            f"{left_out if self.failed_episodes else ''}"
            f"mean {self.mean:.2f}  std {self.std:.2f}  min {self.min:.2f}  max {self.max:.2f}  "
            f"median {self.median:.2f}  mean length {self.mean_length:.1f}{normalised}"
        )


def make_report(evaluation: Evaluation, config: EvaluatorConfig, version: Version) -> EvalReport:
    """Return the report on an evaluation that ended now."""
    env, settings, returns = config.env, config.evaluator, evaluation.returns
    noop_max = env.noop_max if settings.noop_max is None else settings.noop_max
    return EvalReport(
        run=config.run.name,
        algorithm=version.metadata.algorithm,
        env_id=env.id,
        params_version=version.version,
        learner_steps=version.metadata.learner_steps,
        env_steps=version.metadata.env_steps,
        policy=settings.policy,
        epsilon=epsilon_of(config) if settings.policy == "epsilon" else 0.0,
        noop_max=noop_max if env.is_atari else None,
        sticky_actions=env.sticky_actions if env.is_atari else None,
        max_steps=env.max_evaluation_steps,
        episodes=len(returns),
        failed_episodes=evaluation.failed,
        mean=evaluation.mean,
        std=evaluation.std,
        min=float(returns.min()),
        max=float(returns.max()),
        median=evaluation.median,
        mean_length=float(evaluation.lengths.mean()),
        human_normalised=human_normalised(env.id, evaluation.mean),
        seeds=list(evaluation.seeds),
        returns=returns.tolist(),
        lengths=evaluation.lengths.tolist(),
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
