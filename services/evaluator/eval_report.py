"""The report on one evaluation: what `tidemill evaluate` prints and writes."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass
from pathlib import Path

from tidemill import formats
from tidemill.atomic_files import write_atomically
from tidemill.config.evaluation import epsilon_of, noop_max_of
from tidemill.config.sections import EvaluatorConfig
from tidemill.envs.atari_scores import human_normalised
from tidemill.params.version import Version
from tidemill.scores import Score
from tidemill.services.evaluator.csv_logs import score_of
from tidemill.services.evaluator.protocol import Evaluation


@dataclass(frozen=True)
class EvalReport:
    """Report on one evaluation, as a JSON document.

    Episodes are full games, and returns are raw, whatever training episodes and rewards were.
    """

    run: str
    algorithm: str
    env_id: str
    score: Score
    """Its fields are in the document, except `wall_s`, which is 0."""
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
    failed_episodes: int
    """Episodes that are left out because their environment failed."""
    first_seed: int
    """Seed of the first episode, left out or not."""
    seeds: list[int]
    returns: list[float]
    lengths: list[int]
    created_at: str
    """When the test ended, ISO 8601, UTC."""

    @property
    def file_name(self) -> str:
        """Name of its file: version, policy, first seed and episodes asked for, and for Atari the no-op starts."""
        policy = f"epsilon-{self.epsilon:g}" if self.policy == "epsilon" else self.policy
        start = "" if self.noop_max is None else f"-noops-{self.noop_max}"
        version, episodes = self.score.params_version, self.score.episodes + self.failed_episodes
        return f"version-{version}-{policy}{start}-seed-{self.first_seed}-episodes-{episodes}.json"

    def write(self, file: Path) -> None:
        """Write the document, whole or not at all."""
        file.parent.mkdir(parents=True, exist_ok=True)
        fields = dataclasses.asdict(self)
        score = fields.pop("score")
        del score["wall_s"]
        document = {formats.KEY: formats.NEWEST[formats.EVALUATION], **score, **fields}
        write_atomically(file, json.dumps(document, indent=2) + "\n")

    def __str__(self) -> str:
        """Return the scores in one line, and one before it if episodes failed."""
        score = self.score
        all_episodes = score.episodes + self.failed_episodes
        left_out = f"{self.failed_episodes} of {all_episodes} episodes are left out: their environment failed\n"
        normalised = (
            "" if score.human_normalised is None else f"  human-normalised {100 * score.human_normalised:.1f} %"
        )
        return (
            f"{left_out if self.failed_episodes else ''}"
            f"mean {score.mean:.2f}  std {score.std:.2f}  min {score.min:.2f}  max {score.max:.2f}  "
            f"median {score.median:.2f}  mean length {score.mean_length:.1f}{normalised}"
        )


def make_report(
    evaluation: Evaluation, config: EvaluatorConfig, version: Version, first_seed: int | None = None
) -> EvalReport:
    """Return the report on an evaluation that ended now; `first_seed` None stands for that of its first episode."""
    env, settings = config.env, config.evaluator
    score = score_of(evaluation, version, wall_s=0.0)
    return EvalReport(
        run=config.run.name,
        algorithm=version.metadata.algorithm,
        env_id=env.id,
        score=dataclasses.replace(score, human_normalised=human_normalised(env.id, score.mean)),  # of the game played
        policy=settings.policy,
        epsilon=epsilon_of(config) if settings.policy == "epsilon" else 0.0,
        noop_max=noop_max_of(config) if env.is_atari else None,
        sticky_actions=env.sticky_actions if env.is_atari else None,
        max_steps=env.max_evaluation_steps,
        failed_episodes=evaluation.failed,
        first_seed=evaluation.seeds[0] if first_seed is None else first_seed,
        seeds=list(evaluation.seeds),
        returns=evaluation.returns.tolist(),
        lengths=evaluation.lengths.tolist(),
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
