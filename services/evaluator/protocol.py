"""The evaluation protocol: plays given episodes and counts each exactly once.

Every episode has its own seed, fixed before the first step, and every one is played to its end. Taking the
first N episodes that happen to end instead would favour short ones. The seed decides the random actions of `epsilon`
too, so that its results do not depend on how many episodes are played side by side. The policy `sampled` draws its
noise for all of them together.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import structlog
from numpy.typing import NDArray

from tidemill.envs.checks import FAILURES
from tidemill.envs.failures import count_failure
from tidemill.envs.interface import EpisodeSummary, VectorEnv, action_mask_of
from tidemill.envs.parts import as_failure
from tidemill.errors import ConfigError, EnvFailed, FatalError
from tidemill.params.version import Params
from tidemill.rl.policy_io import PolicyInput, PolicyInputBuilder, PolicyOutput, join

_log = structlog.get_logger()


class Runner(Protocol):
    """Measures parameters by episodes."""

    def run(
        self, params: Params, seeds: Sequence[int], is_stopped: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Play as many episodes as there are seeds; None if it was stopped before the last ended.

        Raises:
            EpisodesFailed: None was played to its end.
        """

    def close(self) -> None:
        """Free what episodes are played in."""


class EpisodesFailed(FatalError):
    """The environment failed in every episode of an evaluation, or in more than half of a test."""


@dataclass(frozen=True)
class EvalPolicy:
    """A policy with fixed parameters."""

    act: Callable[[PolicyInput], PolicyOutput]
    """Chooses the actions of any number of environments."""
    recurrent_state_size: int = 0
    """Size of its recurrent state, per environment."""
    epsilon: float = 0.0
    """Probability of a random action instead of the policy's; for discrete actions."""
    num_actions: int = 0
    """Number of discrete actions."""
    keeps_rows: bool = False
    """Whether a row must be the same slot at every step, because the policy's noise lasts from one to the next."""
    clips_rewards: bool = False
    """Whether it sees the signs of rewards, as in training. Scores count them as they are."""

    def choose(self, inputs: Sequence[PolicyInput], rngs: Sequence[np.random.Generator]) -> PolicyOutput:
        """Return the output for one environment of each input, with some actions replaced by random ones.

        Args:
            inputs: One environment each.
            rngs: Of each episode, seeded by its seed.
        """
        output = self.act(join(inputs))
        if self.epsilon == 0.0:
            return output
        action = output.action.copy()
        for i, (policy_input, rng) in enumerate(zip(inputs, rngs, strict=True)):
            if rng.random() < self.epsilon:
                mask = policy_input.action_mask
                legal = self.num_actions if mask is None else np.flatnonzero(mask[0])
                action[i] = rng.choice(legal)
        return replace(output, action=action)


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of N episodes, in the order of their seeds."""

    returns: NDArray[np.float64]
    """Raw returns, [N]."""
    lengths: NDArray[np.int64]
    """Agent decisions, [N]."""
    seeds: tuple[int, ...]
    """Of the episodes, N of them."""
    failed: int = 0
    """Episodes that are left out because their environment failed; none of them counts in any score."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns, not corrected for the sample."""
        return float(self.returns.std())

    @property
    def median(self) -> float:
        """Median return."""
        return float(np.median(self.returns))

    @property
    def refusal(self) -> str:
        """Reason that this is not a score; empty if it is one.

        If most episodes failed, what is left are those that a bad policy ends soon, or that were lucky.
        """
        episodes = len(self.returns) + self.failed
        failed = f"the environment failed in {self.failed} of {episodes} episodes; at most half may fail"
        return failed if 2 * self.failed > episodes else ""


class EnvSlot:
    """One environment that plays one episode after another, each from its seed."""

    def __init__(self, make_env: Callable[[], VectorEnv]) -> None:
        """Take the function that makes an environment batch of one; the first start calls it."""
        self._make_env = make_env
        self._env: VectorEnv | None = None
        self.is_new = True
        """Whether no environment was ever made."""

    @property
    def has_env(self) -> bool:
        """False before the first start, after `close`, and if the environment could not be made."""
        return self._env is not None

    def start(self, seed: int, policy: EvalPolicy) -> PolicyInput:
        """Start the episode of a seed; return the policy's first input."""
        if self._env is None:
            self._env, self.is_new = self._make_env(), False
            assert self._env.num_envs == 1, f"a slot has one environment, got {self._env.num_envs}"
        self._input_builder = PolicyInputBuilder(1, self._env.spec, policy.recurrent_state_size)
        self._clips_rewards = policy.clips_rewards
        self._was_truncated = False
        observation = self._env.reset(seed)
        return self._input_builder.build(observation, np.ones(1, np.bool_), action_mask=action_mask_of(self._env))

    def step(self, output: PolicyOutput, index: int = 0) -> tuple[PolicyInput, EpisodeSummary | None]:
        """Act once, by one row of an output; return the next input, and the episode's summary if it has ended.

        Raises:
            EnvFailed: The environment began another episode without the summary of the one that ended.
        """
        assert self._env is not None, "a step before the first start"
        row = slice(index, index + 1)
        self._input_builder.record(output, row)
        result = self._env.step(output.action[row].copy())  # an environment of the user's may write to it
        has_ended = self._was_truncated or result.is_reset_step[0]  # a terminated one may only have lost a life
        self._was_truncated = bool(result.truncated[0])
        if has_ended and not result.episodes:
            raise EnvFailed(
                "an episode has ended, but no VectorStep.episodes names it: return an EpisodeSummary in the step in "
                "which an episode ends"
            )
        mask = action_mask_of(self._env)
        reward = np.sign(result.reward) if self._clips_rewards else result.reward
        policy_input = self._input_builder.build(result.observation, result.is_first, reward, mask)
        return policy_input, result.episodes[0] if result.episodes else None

    def close(self) -> None:
        """Free the environment, of which the next start makes another; what it raises then changes no result."""
        env, self._env = self._env, None
        with contextlib.suppress(*FAILURES):  # user code
            if env is not None:
                env.close()


class EvalProtocol:
    """Plays episodes in slots that are made once and reused by every evaluation."""

    def __init__(self, make_env: Callable[[], VectorEnv], num_slots: int) -> None:
        """Prepare.

        Args:
            make_env: Makes a batch of one evaluation environment.
            num_slots: Episodes played side by side, which share each call of the policy.
        """
        self._slots = [EnvSlot(make_env) for _ in range(num_slots)]

    def play(
        self,
        policy: EvalPolicy,
        seeds: Sequence[int],
        is_stopped: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Evaluation | None:
        """Play one episode of each seed; one whose environment fails is reported and left out.

        A slot whose environment cannot be made leaves its episode to the slots that play, if any do.

        Args:
            policy: The policy.
            seeds: Seeds of the episodes, at least one.
            is_stopped: Asked at every step; True abandons the evaluation.
            on_progress: Called with the number of episodes that have ended, after each.

        Returns:
            The evaluation, or None if it was abandoned.

        Raises:
            EpisodesFailed: The environment failed in every episode.
            ConfigError: The first environment of a slot cannot be made.
        """
        rollout = _Rollout(self._slots, seeds, policy, on_progress)
        while rollout.is_playing:
            if is_stopped():
                return None
            rollout.step()
        return rollout.evaluation()

    def close(self) -> None:
        """Free the environments."""
        for slot in self._slots:
            slot.close()


@dataclass
class _Episode:
    """An episode that is being played."""

    slot: EnvSlot
    number: int
    policy_input: PolicyInput
    rng: np.random.Generator
    is_over: bool = False
    """No seed is left for its slot; the row is only a placeholder."""


class _Rollout:
    """The episodes of one evaluation: a slot that finishes one takes the next remaining seed."""

    def __init__(
        self,
        slots: Sequence[EnvSlot],
        seeds: Sequence[int],
        policy: EvalPolicy,
        on_progress: Callable[[int], None],
    ) -> None:
        self._policy, self._seeds, self._on_progress = policy, seeds, on_progress
        self._failed: dict[int, EnvFailed] = {}
        self.returns = np.full(len(seeds), np.nan)
        self.lengths = np.zeros(len(seeds), np.int64)
        self._left = deque(enumerate(seeds))
        self._playing: list[_Episode] = []
        self._begun = 0  # episodes that have begun and not ended
        for slot in slots:
            self._playing += self._start_next(slot)

    @property
    def is_playing(self) -> bool:
        return self._begun > 0

    def step(self) -> None:
        """Act once in every slot that plays."""
        playing = self._playing
        output = self._policy.choose([each.policy_input for each in playing], [each.rng for each in playing])
        self._playing = []
        for i, episode in enumerate(playing):
            self._playing += [episode] if episode.is_over else self._advance(episode, output, i)

    def _advance(self, episode: _Episode, output: PolicyOutput, row: int) -> list[_Episode]:
        """Step one episode; return what plays in its place from now on."""
        try:
            episode.policy_input, summary = episode.slot.step(output, row)
        except FAILURES as error:
            self._skip(episode.slot, episode.number, error)
        else:
            if summary is None:
                return [episode]
            self.returns[episode.number], self.lengths[episode.number] = summary.episode_return, summary.length
        episode.is_over = True
        self._begun -= 1
        self._on_progress(int(np.count_nonzero(self.lengths)) + len(self._failed))
        return self._start_next(episode.slot) or ([episode] if self._policy.keeps_rows else [])

    def evaluation(self) -> Evaluation:
        """Return the episodes that ended; raises EpisodesFailed if all failed."""
        if not self._failed:
            return Evaluation(self.returns, self.lengths, tuple(self._seeds))
        kept = [number for number in range(len(self._seeds)) if number not in self._failed]
        if not kept:
            raise EpisodesFailed(f"no episode could be completed: {next(iter(self._failed.values()))}")
        seeds = tuple(self._seeds[number] for number in kept)
        return Evaluation(self.returns[kept], self.lengths[kept], seeds, failed=len(self._failed))

    def _start_next(self, slot: EnvSlot) -> list[_Episode]:
        """Return the next episode, started in a slot; nothing if none is left, or if it is left to other slots."""
        while self._left:
            number, seed = self._left.popleft()
            try:
                policy_input = slot.start(seed, self._policy)
            except FAILURES as error:
                if isinstance(error, ConfigError) and slot.is_new and not self._begun:
                    raise
                if self._begun and not slot.has_env:
                    self._left.appendleft((number, seed))
                    failure = as_failure(error)
                    _log.warning("environment not made: fewer episodes are played at a time", reason=str(failure))
                    count_failure(failure.kind)
                    return []
                self._skip(slot, number, error)
            else:
                self._begun += 1
                return [_Episode(slot, number, policy_input, np.random.default_rng(seed))]
        return []

    def _skip(self, slot: EnvSlot, number: int, error: BaseException) -> None:
        """Leave out an episode whose environment failed, and continue with another environment."""
        failure = as_failure(error)
        _log.warning("episode not counted: its environment failed", seed=self._seeds[number], reason=str(failure))
        count_failure(failure.kind)
        self._failed[number] = failure
        slot.close()
