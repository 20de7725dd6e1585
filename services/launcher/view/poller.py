"""Polls the status of a running cluster: its learner, replay services, processes and files."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tidemill.config.lock_step import lock_step_of
from tidemill.config.sections import RunConfig
from tidemill.errors import TidemillError
from tidemill.learner.client import LearnerClient
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import TableDescription
from tidemill.scores import EVALUATING, Score, ScoreReader, best_score
from tidemill.services.launcher.run.continuation import trained_s
from tidemill.services.launcher.supervise.supervisor import Phase
from tidemill.services.launcher.view.curves import by_kind, env_failures, training_return
from tidemill.services.launcher.view.rate_meter import RateMeter
from tidemill.services.launcher.view.status import ClusterStatus, ProcessRow
from tidemill.services.launcher.view.warnings import ClusterSample, WarningTracker

_DEADLINE_S = 1.0


class ReplayTables:
    """The replay services of a run, one shard after the other."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Prepare; nothing is contacted yet. A `dns:` name is skipped: it does not distinguish the shards behind it."""
        own = (address for address in addresses if not address.startswith("dns:"))
        self._clients = [ReplayClient(address, deadline_s=_DEADLINE_S) for address in own]

    def describe(self) -> tuple[tuple[TableDescription, ...], ...]:
        """Return the tables of each service, none of one that does not answer, within a second for each."""
        found: list[tuple[TableDescription, ...]] = []
        for client in self._clients:
            found.append(())
            with contextlib.suppress(TidemillError):
                found[-1] = tuple(client.list_tables())
        return tuple(found)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()


class StatusPoller:
    """Polls the status of a running cluster.

    `poll` blocks for at most a second for the learner and each replay shard; call it on a thread.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        processes: Callable[[], tuple[ProcessRow, ...]],
        *,
        is_new_session: bool = True,
    ) -> None:
        """Prepare; nothing is contacted yet.

        Args:
            config: Settings of the run, with the addresses of its services.
            folder: Of the run; it need not be there yet.
            processes: What is known of its processes, for each poll.
            is_new_session: Whether its processes start later, with these settings, so that failures counted before are
                of another session.
        """
        self._client = LearnerClient(config.cluster.learner, deadline_s=_DEADLINE_S)
        self._tables = ReplayTables(config.cluster.replay)
        waits_for_simulators = config.inference.simulators and not config.launcher.actors
        simulators_at = config.inference.server.address if waits_for_simulators else ""
        before = env_failures(folder) if is_new_session else None
        self._tracker = WarningTracker(folder, _publish_every(config), simulators_at, before)
        self._folder, self._target = folder, config.run.target_return
        self._processes = processes
        self._env_rate = RateMeter()
        self._refused = 0, ""
        """Newest version that could not be evaluated, and the reason; the file has it until the next evaluation."""
        self._evaluator = config.evaluator if is_new_session else None  # else it may have other settings
        self._scores = ScoreReader(folder / "scores.csv")
        self._confirmations = ScoreReader(folder / "confirmations.csv")
        self._ranked: tuple[Sequence[Score], Sequence[Score], Score | None] = (), (), None
        """Scores and confirmations of the last poll, and the best of them."""
        self._earlier = len(_rows(self._scores)), len(_rows(self._confirmations))
        """Rows of earlier sessions, which may have had other numbers of episodes."""
        self.learner: LearnerStatus | None = None
        """Last status of the learner, with the counts of the one before while it starts; None if it never answered."""
        self._started_s, self._earlier_s = time.monotonic(), trained_s(folder)
        self._min_size = config.table.min_size if config.learner.updates_per_env_step else 0

    def poll(self) -> ClusterStatus:
        """Return the state of the run now."""
        now_s = time.monotonic()
        processes = self._processes()
        scores, confirmations = _rows(self._scores), _rows(self._confirmations)
        if _has_ended("learner", processes):
            answer, self.learner = None, _up_to(scores, self.learner)
        else:
            answer = self._learner_status()
            self.learner = _with_counts(answer, self.learner)
        failed = env_failures(self._folder)
        self._refused = refused_version(self._folder) or self._refused
        tables = () if _has_ended("replay", processes) else self._tables.describe()
        refused = self._refused if self._refused[0] > (scores[-1].params_version if scores else 0) else None
        left_out = self._left_out(scores, confirmations)
        sample = ClusterSample(answer, tuple(chain(*tables)), _free_bytes(self._folder), failed, refused, left_out)
        return ClusterStatus(
            elapsed_s=now_s - self._started_s,
            earlier_s=self._earlier_s,
            min_size=self._min_size,
            processes=processes,
            learner=self.learner,
            learner_answers=answer is not None,
            env_steps_per_s=self._env_steps_per_s(now_s, answer),
            newest=scores[-1] if scores else None,
            best=self._best(scores, confirmations),
            first=scores[0] if scores else None,
            scores=scores,
            confirmations=confirmations,
            training_return=training_return(self._folder),
            evaluating=describe_evaluating(self._folder),
            is_disk_full=sample.is_disk_full,
            tables=tables,
            env_failures=by_kind(failed),
            warnings=self._tracker.warnings(sample, now_s),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._tables.close()

    def _left_out(self, scores: Sequence[Score], confirmations: Sequence[Score]) -> tuple[int, int, str] | None:
        """Return how many episodes of the newest evaluation or its confirmation failed, of how many, and which it was.

        None if none failed.
        """
        if self._evaluator is None or not scores:
            return None
        old_scores, old_confirmations = self._earlier
        for rows, episodes, kind in (
            (confirmations[old_confirmations:], self._evaluator.confirm_episodes, "confirmation"),
            (scores[old_scores:], self._evaluator.episodes, "evaluation"),
        ):
            if rows and rows[-1].params_version == scores[-1].params_version and rows[-1].episodes < episodes:
                return episodes - rows[-1].episodes, episodes, kind
        return None

    def _env_steps_per_s(self, now_s: float, answer: LearnerStatus | None) -> float:
        """Return the rate of decisions; a learner that still restores its counts has none."""
        if answer is None or answer.state is LearnerState.STARTING:
            return 0.0
        return self._env_rate.update(now_s, answer.env_steps)

    def _learner_status(self) -> LearnerStatus | None:
        with contextlib.suppress(TidemillError):
            return self._client.get_status()
        return None

    def _best(self, scores: tuple[Score, ...], confirmations: tuple[Score, ...]) -> Score | None:
        """Return the best score, found again only if there are others than at the last poll."""
        if self._ranked[0] is not scores or self._ranked[1] is not confirmations:
            self._ranked = scores, confirmations, best_score(scores, confirmations, self._target)
        return self._ranked[2]


def _rows(reader: ScoreReader) -> tuple[Score, ...]:
    """Return the rows of a file; none if it holds something else."""
    with contextlib.suppress(TidemillError):
        return reader.read()
    return ()


def _publish_every(config: RunConfig) -> int:
    """Return the updates from one version to the next: those of a round in lock-step."""
    if not config.run.deterministic:
        return config.learner.publish_every
    actors = max(config.actor.count, config.launcher.actors)
    return lock_step_of(config.run, config.table, config.learner, config.env.num_envs, actors).updates


def _has_ended(kind: str, processes: Sequence[ProcessRow]) -> bool:
    """True if every process of a kind has ended for good: asking would wait a second for no answer."""
    phases = {row.phase for row in processes if row.name.partition("-")[0] == kind}
    return phases == {Phase.ENDED}


def _with_counts(answer: LearnerStatus | None, last: LearnerStatus | None) -> LearnerStatus | None:
    """Return the answer, or the last status without one; the last counts while the learner has not restored its own."""
    if answer and last and answer.state is LearnerState.STARTING:
        return replace(last, state=answer.state, steps_per_s=0.0, wait_fraction=0.0, end="")
    return answer or last


def _up_to(scores: Sequence[Score], last: LearnerStatus | None) -> LearnerStatus | None:
    """Return the last status of a learner that has ended, with the counts of the newest score if they are newer."""
    if not last or not scores or scores[-1].params_version <= last.params_version:
        return last
    newest = scores[-1]
    return replace(
        last,
        learner_steps=newest.learner_steps,
        env_steps=newest.env_steps,
        params_version=newest.params_version,
    )


def describe_evaluating(folder: Path) -> str:
    """Return the progress of the present evaluation; empty if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads((folder / EVALUATING).read_text(encoding="utf-8"))
        return f"evaluating version {document['version']}: {document['ended']} of {document['episodes']} episodes"
    return ""


def refused_version(folder: Path) -> tuple[int, str] | None:
    """Return the version that was played last without a score, and the reason; None without one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads((folder / EVALUATING).read_text(encoding="utf-8"))
        return int(document["version"]), str(document["refusal"])
    return None


def _free_bytes(folder: Path) -> int:
    """Return the free space on the disk where the folder is, or will be."""
    return shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists())).free
