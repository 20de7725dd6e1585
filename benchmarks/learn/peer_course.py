"""The peer's way through training: what is measured when, by the evaluator's own rules."""

from __future__ import annotations

import copy
import csv
import dataclasses
import io
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learn.atomic import write_json, write_text
from tidemill.config.evaluation import TEST_SEED_OFFSET
from tidemill.config.sections import RunConfig
from tidemill.scores import COLUMNS, Score
from tidemill.services.evaluator.protocol import Evaluation
from tidemill.services.evaluator.verdict import confirmation_seeds, evaluation_seeds, reaches_target

State = dict[str, Any]


class Course:
    """Evaluations, the confirmation of the target, and the versions that are tested at the end."""

    def __init__(
        self,
        config: RunConfig,
        output: Path,
        play: Callable[[Sequence[int]], Evaluation | None],
        every: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            config: Target and protocol.
            output: Folder of the results.
            play: Plays an episode of each seed with the parameters of now.
            every: Agent decisions between two evaluations.
            now: Monotonic time in seconds.
        """
        self._config, self._output, self._play, self._every, self._now = config, output, play, every, now
        self._scores: list[Score] = []
        self._solved: Score | None = None
        self._confirmation: Evaluation | None = None
        self._failed = 0
        self._best: State = {}
        self._last: State = {}
        self._next = every
        self._started_s, self._paused_s = now(), 0.0

    def at(self, env_steps: int, learner_steps: int, state: Callable[[], State]) -> None:
        """Evaluate if it is due.

        Args:
            env_steps: Agent decisions so far.
            learner_steps: Updates so far.
            state: Returns the parameters of now.
        """
        if env_steps < self._next:
            return
        self._next += self._every
        paused_s = self._now()
        score = self._measure(env_steps, learner_steps)
        if max(self._scores, key=lambda each: each.mean, default=None) is score:
            self._best = copy.deepcopy(state())
        if self._solved is None and reaches_target(self._config.run, score.mean):
            self._confirm(score)
        self._paused_s += self._now() - paused_s

    def end(self, env_steps: int, learner_steps: int, state: Callable[[], State]) -> None:
        """Evaluate what training ended with, unless that was done."""
        if not self._scores or self._scores[-1].env_steps < env_steps:
            self._next = env_steps
            self.at(env_steps, learner_steps, state)
        self._last = copy.deepcopy(state())

    def to_test(self) -> Iterator[tuple[int, State]]:
        """Yield number and parameters of the last and the best version, once each."""
        last, best = self._scores[-1].params_version, self._best_score.params_version
        yield last, self._last
        if best != last:
            yield best, self._best

    def test(self, number: int, episodes: int) -> None:
        """Play fresh episodes with the parameters of now, which are those of a version; 0 for none."""
        seeds = evaluation_seeds(self._config.evaluator.seed + TEST_SEED_OFFSET, episodes)
        if episodes and (found := self._play(seeds)):
            document = {
                "mean": found.mean,
                "std": found.std,
                "episodes": episodes,
                "env_steps": self._scores[number - 1].env_steps,
                "seeds": list(seeds),
                "returns": found.returns.tolist(),
            }
            write_json(self._output / "evaluations" / f"learn-version-{number}-episodes-{episodes}.json", document)

    def result(self) -> dict[str, Any]:
        """The fields of result.json that describe the peer's training."""
        decided, confirmation = self._solved or self._scores[-1], self._confirmation
        return {
            "solved": self._solved is not None,
            "reason": "all its decisions were made",
            "env_steps": decided.env_steps,
            "wall_s": decided.wall_s,
            "params_version": self._scores[-1].params_version,
            "best_version": self._best_score.params_version,
            "confirmed_mean": confirmation.mean if confirmation else None,
            "confirm_episodes": len(confirmation.seeds) if confirmation else 0,
            "failed_confirmations": self._failed,
        }

    @property
    def _best_score(self) -> Score:
        return max(self._scores, key=lambda each: each.mean)

    def _measure(self, env_steps: int, learner_steps: int) -> Score:
        """Play the episodes of an evaluation and add its row."""
        wall_s = self._now() - self._started_s - self._paused_s
        settings = self._config.evaluator
        found = self._play(evaluation_seeds(settings.seed, settings.episodes))
        assert found is not None  # nobody stops it
        score = Score(
            wall_s=round(wall_s, 3),
            learner_steps=learner_steps,
            env_steps=env_steps,
            params_version=len(self._scores) + 1,
            episodes=len(found.returns),
            mean=found.mean,
            std=found.std,
            min=float(found.returns.min()),
            max=float(found.returns.max()),
            median=found.median,
            mean_length=float(found.lengths.mean()),
        )
        self._scores.append(score)
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([COLUMNS, *map(dataclasses.astuple, self._scores)])
        write_text(self._output / "scores.csv", lines.getvalue())
        return score

    def _confirm(self, score: Score) -> None:
        """Play fresh episodes, if the protocol has them; the target counts as reached when they bear it out."""
        settings = self._config.evaluator
        if not settings.confirm_episodes:
            self._solved = score
            return
        found = self._play(confirmation_seeds(settings.seed, settings.confirm_episodes, self._failed))
        if found is not None and reaches_target(self._config.run, found.mean):
            self._solved, self._confirmation = score, found
        else:
            self._failed += 1
