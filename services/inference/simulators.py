"""The programs that play as clients: a slot for each, whose episodes are acted in and stored."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from tidemill.errors import FailedPrecondition, InvalidArgument, Reason, ResourceExhausted, TidemillError, Unavailable
from tidemill.params.version import Params
from tidemill.replay.writing.writer import ReplayWriter
from tidemill.rl.agents.interface import NoiseRows, SplitPolicy
from tidemill.services.inference.episode import Episode, Row
from tidemill.services.inference.evaluation import EpisodeEnd, Evaluation
from tidemill.services.inference.forward_thread import ForwardThread
from tidemill.services.inference.metrics import SimulatorCurves, SimulatorMetrics
from tidemill.services.inference.resume_token import Identity, Place, place_of
from tidemill.simulator.wire import Declared, SeenStep

_T = TypeVar("_T")

_LOOK_S = 0.5
"""How soon a step that waits for room notices that nothing is stored any more."""

_log = structlog.get_logger()


@dataclass(frozen=True)
class Choice:
    """What is done at a step.

    Attributes:
        step: Its number.
        action: [*action_shape]; None at the end of an episode.
        params_version: Of the parameters that it was chosen with; 0 if it was reported.
        resume_token: At an episode's first step, what continues it.
        stored_steps: Steps of the episode that are stored for good.
    """

    step: int
    action: NDArray[Any] | None
    params_version: int
    resume_token: bytes
    stored_steps: int


@dataclass
class Seat:
    """A client's slot, and what is kept for it between two steps.

    Attributes:
        slot: Number of its stream.
        client: Name of the client.
        caller: Address of the machine that it calls from.
        policy: Chooses its actions.
        noise: Where the noise of a noisy network comes from.
        episode: The one that is played; None between two.
        place: Where its rows are.
        newest: What was done at the newest step.
        calls: How many calls the client has made for this seat; only the newest one may play.
        is_eager: Whether batches wait for it: its last step came sooner than they wait at most.
        patience: Runs from an answer for as long as batches wait at most.
        is_resumable: Whether the client may have the token of the episode, and so come back for it.
        under_way: The step or the end of the episode that is worked on.
        expiry: Ends the episode when the client does not come back.
    """

    slot: int
    client: str
    caller: str
    policy: SplitPolicy
    noise: NoiseRows
    episode: Episode | None = None
    place: Place | None = None
    newest: Choice | None = None
    calls: int = 1
    is_eager: bool = False
    patience: asyncio.TimerHandle | None = field(default=None, repr=False)
    is_resumable: bool = False
    under_way: asyncio.Task[Any] | None = None
    expiry: asyncio.TimerHandle | None = field(default=None, repr=False)


class Simulators:
    """Seats clients, answers their steps, and writes their rows. All of it runs in one event loop."""

    def __init__(  # noqa: PLR0913 - its parts, put together in one place
        self,
        writer: ReplayWriter,
        forward: ForwardThread,
        new_episode: Callable[[int], Episode],
        make_policy: Callable[[int], SplitPolicy],
        identity: Identity,
        metrics: SimulatorMetrics,
        on_error: Callable[[BaseException], None],
        *,
        slots: int,
        slots_per_caller: int,
        grace_s: float,
        max_wait_s: float,
        device: torch.device,
        rng: np.random.Generator,
        curves: SimulatorCurves | None = None,
    ) -> None:
        """Begin with nobody.

        Args:
            writer: Takes the rows; has as many environments as there are slots.
            forward: The network's thread.
            new_episode: Makes an episode, given the number of its first step.
            make_policy: Makes the policy that explores in a slot.
            identity: What tokens are signed with; its epoch is that of the writer that this one continues, or another.
            metrics: Counts.
            on_error: Called with what ends the service: the writer can store nothing more.
            slots: Most clients at a time.
            slots_per_caller: Most clients at a time of one caller.
            grace_s: How long an episode is kept whose client is gone, in seconds.
            max_wait_s: Longest wait of a batch for others, in seconds.
            device: Where noise is drawn.
            rng: Draws the seeds of noise.
            curves: Gets the returns of episodes that ended; then this object's.
        """
        self._curves, self._point = curves, asyncio.Lock()
        self._env_steps = self._learner_steps = 0  # of the whole cluster, as far as this service knows
        self._writer, self._forward, self._metrics, self._on_error = writer, forward, metrics, on_error
        self._new_episode, self._make_policy, self._identity = new_episode, make_policy, identity
        self._grace_s, self._max_wait_s, self._device, self._rng = grace_s, max_wait_s, device, rng
        self._seats: dict[int, Seat] = {}
        self._policies: dict[int, SplitPolicy] = {}
        continues = identity.epoch == writer.epoch
        # slots whose streams end with rows of an episode that its client may still continue
        self._untouched = set(range(slots)) if continues else set[int]()
        self._free, self._slots = list(range(slots)), slots
        self._taken, self._slots_per_caller = Counter[str](), slots_per_caller
        identity.keep(writer.epoch)
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._blocked_s = 0.0
        self._evaluation: Evaluation | None = None
        self._stores = True

    async def join(self, declared: Declared, caller: str) -> Seat:
        """Return the seat of a client: the one of its token, or a free one.

        Args:
            declared: What the client declares.
            caller: Address of the machine that it calls from. A name can be made up, so the address has a budget.

        Raises:
            ResourceExhausted: All seats are taken, or the caller has as many as one may have.
            Unavailable: Another call continues the episode.
        """
        signed = place_of(declared.resume_token, self._identity.key)
        place = None if signed is None else self._identity.moved(signed)
        if place is not None and (seat := self._continued(place, declared, caller)) is not None:
            if seat.expiry is not None:
                seat.expiry.cancel()
                seat.expiry = None
            call = seat.calls
            if seat.under_way is not None:
                try:
                    await asyncio.wait((seat.under_way,))  # of the call that broke off
                except asyncio.CancelledError:  # as this one does now
                    self.leave(seat, call, at_once=False)
                    raise
                if call != seat.calls:
                    raise Unavailable("another call continues this episode", reason=Reason.CALL_REPLACED)
            if self._seats.get(seat.slot) is seat:
                return seat
        if not self._free:
            self._metrics.refused.labels("simulators").inc()
            raise ResourceExhausted(
                f"{self._slots} clients are connected, the maximum (inference.simulators); call again later",
                reason=Reason.TOO_MANY_CALLS,
            )
        # a slot whose episode may be continued is taken last
        slot = min(self._free, key=lambda each: (each in self._untouched, each))
        return self._seat(slot, declared, caller)

    async def play(self, seat: Seat, call: int, seen: SeenStep) -> Choice:
        """Answer a step of a client.

        Args:
            seat: Its seat.
            call: Number of its call, `seat.calls` when it joined.
            seen: The step.

        Raises:
            InvalidArgument: It is not the next step of the episode, nor the first of another.
            Unavailable: Another call continues the episode.
        """
        if call != seat.calls:
            raise Unavailable("another call continues this episode", reason=Reason.CALL_REPLACED)
        self._set_eager(seat, is_eager=seat.patience is not None)
        # finished whatever becomes of the call, so that a repeated step is known to be one
        task = self._begun(self._play(seat, seen))
        seat.under_way = task
        choice: Choice = await asyncio.shield(task)
        seat.is_resumable = True
        wait_no_more = partial(self._set_eager, seat, is_eager=False)
        seat.patience = asyncio.get_running_loop().call_later(self._max_wait_s, wait_no_more)
        return choice

    def leave(self, seat: Seat, call: int, *, at_once: bool) -> None:
        """Let a client go, whose call has ended; it may come back for its episode unless that ends at once."""
        self._set_eager(seat, is_eager=False)
        if call != seat.calls or self._seats.get(seat.slot) is not seat:
            return
        is_kept = seat.is_resumable and seat.episode is not None and not (seat.episode.is_over or seat.episode.evaluate)
        if at_once or not is_kept:
            self._end(seat)
        else:
            seat.expiry = asyncio.get_running_loop().call_later(self._grace_s, self._end, seat)

    def evaluate(self, evaluation: Evaluation, params: Params, *, is_last: bool) -> None:
        """Have the next episodes played with these parameters, in place of an evaluation before.

        Args:
            evaluation: Takes the episodes.
            params: What is evaluated.
            is_last: Training has ended: store nothing more.

        Raises:
            FailedPrecondition: An earlier evaluation was the last.
        """
        if not (self._stores or is_last):
            raise FailedPrecondition(
                "is_last is false, allowed: true, since the run's last evaluation has begun and no more steps are "
                "stored; to continue the run, restart the inference service",
                reason=Reason.EVALUATION_OVER,
            )
        if self._evaluation is not None:
            self._evaluation.replace()
        self._evaluation, self._stores = evaluation, not is_last
        self._forward.evaluate_with(params)

    def end_evaluation(self, evaluation: Evaluation) -> None:
        """Take no more episodes for an evaluation, whose call has ended."""
        if self._evaluation is evaluation:
            self._evaluation = None
            self._forward.evaluate_with(None)

    def close(self) -> None:
        """End what is worked on: the service stops. Episodes stay open, for the service that takes its place."""
        for seat in self._seats.values():
            if seat.expiry is not None:
                seat.expiry.cancel()
        for task in self._tasks:
            task.cancel()
        self._writer.close()
        if self._curves is not None:
            self._curves.close()

    def _continued(self, place: Place, declared: Declared, caller: str) -> Seat | None:
        """Return the seat of an episode: as it was left, or from what an earlier service has stored of it."""
        seat = self._seats.get(place.slot)
        if seat is not None:
            if seat.place != place:
                return None
            seat.calls += 1
            seat.is_resumable = True
            return seat
        if place.slot not in self._untouched or place.epoch != self._writer.epoch:
            return None
        seat = self._seat(place.slot, declared, caller)
        stored = int(self._writer.next_steps[place.slot]) - place.begin
        if stored < 0:  # the end of the episode before was lost; this one, of which nothing is stored, takes its place
            place, stored = self._identity.move(place, place.begin + stored), 0
        seat.episode, seat.place, seat.is_resumable = self._new_episode(stored), place, True
        return seat

    def _seat(self, slot: int, declared: Declared, caller: str) -> Seat:
        if self._taken[caller] >= self._slots_per_caller:
            self._metrics.refused.labels("simulators_per_client").inc()
            raise ResourceExhausted(
                f"client {declared.client!r}: {self._taken[caller]} clients play from {caller}, allowed: "
                f"{self._slots_per_caller} (inference.simulators_per_client); call again when one of them has left, or "
                "raise the setting",
                reason=Reason.TOO_MANY_CALLS,
            )
        self._taken[caller] += 1
        self._free.remove(slot)
        self._untouched.discard(slot)
        if slot not in self._policies:
            self._policies[slot] = self._make_policy(slot)
        noise = NoiseRows(torch.Generator(self._device).manual_seed(int(self._rng.integers(2**62))), 1)
        seat = self._seats[slot] = Seat(slot, declared.client, caller, self._policies[slot], noise)
        self._metrics.simulators.set(len(self._seats))
        return seat

    async def _play(self, seat: Seat, seen: SeenStep) -> Choice:
        token = b""
        if seen.step == 0 and (seat.episode is None or seat.episode.next_step):
            seat.is_resumable = False
            await self._abandon(seat)
            seat.episode = self._new_episode(0)
            seat.place = Place(
                self._writer.epoch, seat.slot, int(self._writer.next_steps[seat.slot]), secrets.token_bytes(16)
            )
            if self._evaluation is not None and seen.reported is None and self._evaluation.takes():
                seat.episode.evaluation, seat.episode.evaluate = self._evaluation, True
            is_kept = not (seen.evaluate or seat.episode.evaluate)
            token = seat.place.signed(self._identity.key) if is_kept else b""
        if seat.episode is None:
            raise InvalidArgument(f"step is {seen.step}, allowed: 0, which begins an episode")
        episode = seat.episode
        policy_input, acted = episode.see(seen), None
        if policy_input is not None:
            answer = await self._forward.answer(policy_input, seat.noise, evaluation=episode.evaluate)
            self._learner_steps = answer.learner_steps
            self._env_steps = max(self._writer.env_steps, answer.env_steps)
            acted = episode.act(seen, policy_input, answer, seat.policy, self._env_steps)
        await self._write(seat, episode.advance(seen, acted))
        self._metrics.steps.inc()
        if episode.is_over:
            self._count_episode(episode, "terminated" if seen.terminated else "truncated")
        is_over = acted is None or episode.is_over
        seat.newest = Choice(
            step=seen.step,
            action=None if is_over or acted is None else acted.output.action[0],
            params_version=0 if acted is None else acted.params_version,
            resume_token=token,
            stored_steps=self._stored_steps(seat),
        )
        return seat.newest

    def _stored_steps(self, seat: Seat) -> int:
        """Return the number of the episode's steps that survive this service; if unknown, all but the newest."""
        assert seat.episode is not None
        assert seat.place is not None
        if seat.place.epoch != self._writer.epoch or seat.episode.evaluate:
            return seat.episode.next_step - 1
        return max(0, int(self._writer.stored_steps[seat.slot]) - seat.place.begin)

    async def _write(self, seat: Seat, rows: list[Row]) -> None:
        """Store rows of a client's stream; waits while the rate limiter holds writers back."""
        if not rows:
            return
        try:
            async with self._writing:
                for row in rows:
                    await self._append(seat, row)
            self._identity.keep(self._writer.epoch)  # another one once the replay service has lost the streams
        except TidemillError as error:
            self._on_error(error)
            raise Unavailable(
                f"the service cannot store steps: {error}", reason=Reason.DEPENDENCY_UNAVAILABLE
            ) from error
        blocked_s, self._blocked_s = self._writer.blocked_s - self._blocked_s, self._writer.blocked_s
        self._metrics.blocked_seconds.inc(max(blocked_s, 0.0))

    async def _append(self, seat: Seat, row: Row) -> None:
        while self._stores:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._writer.append_async(
                        row.columns,
                        env=seat.slot,
                        params_version=row.params_version,
                        is_decision=row.is_decision,
                        beside=row.beside,
                        payload=row.payload,
                    )
            except TimeoutError:  # it has taken nothing
                continue
            return

    async def _abandon(self, seat: Seat) -> None:
        if seat.episode is not None and not seat.episode.is_over:
            await self._write(seat, seat.episode.abandon())
            self._count_episode(seat.episode, "abandoned")
            _log.info("episode truncated", client=seat.client, steps=seat.episode.next_step)

    def _end(self, seat: Seat) -> None:
        """Take the seat from a client that is gone."""
        del self._seats[seat.slot]
        self._metrics.simulators.set(len(self._seats))
        self._begun(self._freed(seat)).add_done_callback(_log_failure)

    async def _freed(self, seat: Seat) -> None:
        """End the episode of a seat that was taken away, and let another have its slot."""
        try:
            if seat.under_way is not None:
                if seat.episode is None or seat.episode.next_step == 0:
                    seat.under_way.cancel()  # nothing is stored of it, and nobody could take its decision
                await asyncio.wait((seat.under_way,))
            await self._abandon(seat)
        finally:
            self._free.append(seat.slot)
            self._taken[seat.caller] -= 1
            self._taken += Counter()  # without those who have none

    def _count_episode(self, episode: Episode, end: str) -> None:
        if episode.evaluate and episode.has_reported:
            end = "reported"
        # its return is not known, or not the policy's
        has_failed = end in ("abandoned", "reported") or not episode.is_whole
        self._metrics.count_episode(None if has_failed else episode.episode_return, end, evaluate=episode.evaluate)
        if episode.evaluation is not None:
            length = episode.next_step - 1
            episode.evaluation.add(
                EpisodeEnd(has_failed=True) if has_failed else EpisodeEnd(episode.episode_return, length)
            )
        if has_failed:
            return
        if self._curves is not None and self._curves.count(episode.episode_return, evaluate=episode.evaluate):
            self._begun(self._write_point(self._curves)).add_done_callback(_log_failure)
        if episode.evaluate:
            _log.info("evaluation episode", episode_return=episode.episode_return, steps=episode.next_step - 1)

    async def _write_point(self, curves: SimulatorCurves) -> None:
        async with self._point:
            await asyncio.to_thread(curves.write, self._env_steps, self._learner_steps)

    def _set_eager(self, seat: Seat, *, is_eager: bool) -> None:
        if seat.patience is not None:
            seat.patience.cancel()
            seat.patience = None
        if is_eager != seat.is_eager:
            seat.is_eager = is_eager
            self._forward.count_actors(1 if is_eager else -1)

    def _begun(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits for it, if anybody still does


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Log the error of a task that nobody waits for."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background task failed", exc_info=error)
