"""Assembles one learner from its parts: connects, restores, trains, publishes."""

from __future__ import annotations

import gc
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import structlog
import torch

from tidemill import container_limits, gpus
from tidemill.atomic_files import make_folder
from tidemill.config.digest import config_digest, diverged_tag, training_settings
from tidemill.config.hindsight import item_window
from tidemill.config.sections import LearnerConfig
from tidemill.devices import flush_denormals, use_device
from tidemill.envs.goals import goal_rewards
from tidemill.envs.recorded_spec import record_spec
from tidemill.envs.watch import watched_spec
from tidemill.errors import FatalError, GpuLost, GpuUnusable, Unavailable
from tidemill.learner.status import LearnerState
from tidemill.near_processors import use_near_processors
from tidemill.params.client import ParamsClient
from tidemill.params.publisher import ParamsPublisher
from tidemill.params.run_end import HAS_DIVERGED, IS_OVER, PAUSED, RunEnd, clear_divergence, note_divergence
from tidemill.params.version import ParamsMetadata
from tidemill.replay.shards.directory import ShardDirectory
from tidemill.replay.shards.readiness import wait_for_replay
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.capture_trial import with_chosen_compile
from tidemill.rl.agents.hindsight import Draws, HindsightAgent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.optimizers import fallen
from tidemill.rl.settings.registry import stored_columns
from tidemill.rpc.readiness import wait_for_service
from tidemill.rpc.server import RpcServer
from tidemill.services.learner.checkpoint.checkpointer import Checkpointer
from tidemill.services.learner.checkpoint.resume import ResumableState, seed_rng
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.learner.curves import learner_callbacks
from tidemill.services.learner.data.device import learner_device, torch_threads
from tidemill.services.learner.data.table import create_tables
from tidemill.services.learner.data.table_watch import TableWatch
from tidemill.services.learner.distributed.learner_group import LearnerGroup, RankInfo, StepVote, joined_group
from tidemill.services.learner.ended import marks
from tidemill.services.learner.lock_step.pace import LockStepPace
from tidemill.services.learner.publishing import PolicyPublisher
from tidemill.services.learner.rollback import PUBLISH_S, Rollback
from tidemill.services.learner.servicer import LearnerServicer
from tidemill.services.learner.status.control import Control
from tidemill.services.learner.status.counters import Counters
from tidemill.services.learner.status.divergence import Diverged
from tidemill.services.learner.status.fence import Fence
from tidemill.services.learner.status.metrics import watch_gpu
from tidemill.services.learner.status.progress import Progress, StatusReporter
from tidemill.services.learner.training.pace import Feed, FreeRunning, Learning, Pace
from tidemill.services.learner.training.threads import Threads
from tidemill.services.learner.training.trainer import Limits, Trainer, TrainerOutputs
from tidemill.settings.overlay import to_document
from tidemill.types import EnvSpec

_LAST_PUBLISH_S = 5.0
PUBLISH_LEAST_S = 0.2
"""Between two versions of a learner that a GPU makes fast."""
_SIGNAL_S = 1.0
"""Longest time between the signals to two processes of a machine that is asked to end."""
_SAVING = 2 / 3  # of the time that other machines wait at the end; then comes the last version
_LEAVES = StepVote(stop=True, pause=False, lacks_batch=True, largest_weight=0.0, is_over=True)
_FENCE_DEADLINE_S = 1.0  # for that answer; a server that is silent holds nothing up for longer

_log = structlog.get_logger()


class Learner:
    """One learner of a run; `run` is all of it."""

    def __init__(self, config: LearnerConfig, stop: threading.Event, rank: RankInfo | None = None) -> None:
        """Take the settings and the event that a signal sets; nothing is connected yet.

        Args:
            config: The settings.
            stop: Ends the learner when set.
            rank: Which of the ranks it is; the only one if not given. The first publishes, writes checkpoints and
                answers callers, and makes the others stop, pause and resume.

        Raises:
            ConfigError: The ranks cannot divide the batch evenly, or the settings give no whole rounds of lock-step.
        """
        self._config, self._stop, self._rank = config, stop, rank or RankInfo()
        paused_file = config.run.folder / PAUSED if self._rank.is_first else None
        self._control, self._counters = Control(stop, paused_file), Counters()
        self._pace = self._make_pace()
        log_every_s = config.learner.log_every_s if self._rank.is_first else math.inf
        self._progress = Progress(self._counters, log_every_s=log_every_s, clock=time.monotonic)
        self._board = StatusReporter(
            self._control, self._counters, self._progress, max_learner_steps=config.run.max_learner_steps
        )
        self._digest = config_digest(config)
        self._end: RunEnd | None = None
        self._divergence: RunEnd | None = None
        self._unsaved = ""
        """Reason the last checkpoint is not written; empty if it is, or until then."""

    def add_to(self, server: RpcServer) -> None:
        """Add the control service to a server that is not started yet."""
        LearnerServicer(self._control, self._board.read).add_to(server)

    def run(self, set_serving: Callable[[bool], None]) -> None:
        """Connect, restore, train to the end, publish and checkpoint.

        Args:
            set_serving: Sets the health of the process.

        Raises:
            Unavailable: A service the learner needs did not answer in time, or another machine was asked to end.
            StalePublisher: A newer learner took over.
            FatalError: The checkpoint is of another run, the GPU is full, or the learner was interrupted and its last
                checkpoint could not be written, unless an engine restarts it, for which that would be a failure.
        """
        if self._control.paused:
            _log.warning("paused, as before the restart; `tidemill ctl resume` continues")
        try:
            learning, is_left = self._build(), False
        except (GpuLost, GpuUnusable):
            is_over, has_diverged = marks(self._config) if self._rank.size == 1 else (False, False)
            if not is_over:
                raise
            _log.info(HAS_DIVERGED if has_diverged else IS_OVER)
            self._control.close()
            return
        try:
            with gpus.full_gpu_explained(), ExitStack() as stack:  # also of what other threads raise here
                if self._services_are_ready() and not self._run_is_over(stack):
                    is_over = self._train(learning, self._directory(stack), set_serving, stack)
                    if self._unsaved and not is_over and self._config.run.supervisor != "engine":
                        raise FatalError(f"last checkpoint not written: {self._unsaved}; a resume takes an earlier one")
                    is_left = self._rank.machines > 1 and not is_over and not self._stop.wait(_SIGNAL_S)
            if is_left:  # torchrun starts this machine's ranks again, which wait for the others
                raise Unavailable("another machine was asked to end; waiting for it to return")
        finally:
            self._control.close()

    def _make_pace(self) -> Pace:
        config, counters, control = self._config, self._counters, self._control
        if config.run.deterministic:
            return LockStepPace(config, counters, self._rank, lambda: control.stop_reason is not None)
        return FreeRunning(config, counters, self._rank)

    def _build(self) -> Learning:
        config = self._config
        self._pace.prepare()
        flush_denormals()
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(container_limits.cpus()))
        seed_rng(config.run.seed)
        spec = watched_spec(config.env)
        batch_size = self._rank.local_batch_size(config)
        with gpus.retried_if_lost(config.run.folder):
            device = learner_device(config, spec, self._rank)
            if not config.run.deterministic:  # `auto` is then nothing, so that a run is the same on every machine
                # Before this process opens the GPU, which it may have to itself: the trial is another process.
                chosen = with_chosen_compile(config.agent, spec, device, batch_size)
                is_refused = chosen != config.agent and getattr(chosen, "compile", "none") == "none"
                config = replace(config, agent=chosen)
                if device.type == "cuda" and is_refused:  # recording may have been all that spoke for the GPU
                    device = learner_device(config, spec, self._rank)
        torch.set_num_threads(most := torch_threads(config, spec, device, self._rank))
        is_chosen = config.learner.threads < 0 and most > 1
        tries = is_chosen and getattr(config.agent, "compile", "none") == "none"  # another number compiles again
        with gpus.full_gpu_explained(device):
            use_device(device)  # so that the training thread's stream is this device's
            if device.type == "cuda":
                torch.backends.cudnn.benchmark = not config.run.deterministic  # shapes never change
                watch_gpu(device)
                use_near_processors(device)
            agent = learning_agent(config, spec, device, batch_size)
        table = self._pace.table(agent, stored_columns(config.agent, spec))
        eager = None
        if device.type == "cuda" and getattr(config.agent, "compile", "none") == "cuda-graphs":
            without = replace(config, agent=replace(config.agent, compile="none"))  # type: ignore[type-var]
            eager = partial(learning_agent, without, spec, device, batch_size)
        return Learning(agent, table, device, spec, Threads(most) if tries else None, eager)

    def _directory(self, stack: ExitStack) -> ShardDirectory:
        cluster = self._config.cluster
        return stack.enter_context(closing(ShardDirectory(cluster.replay, cluster.shard_count)))

    def _services_are_ready(self) -> bool:
        cluster, timeout_s = self._config.cluster, self._config.cluster.connect_timeout_s
        is_ready = wait_for_replay("cluster.replay", cluster.replay, timeout_s, self._stop)
        if not self._rank.is_first:
            return is_ready
        return is_ready and wait_for_service("cluster.params", cluster.params, timeout_s, self._stop)

    def _run_is_over(self, stack: ExitStack) -> bool:
        """True if the run is over and this is the only rank; otherwise stop the learner when the run ends."""
        if self._config.run.supervisor == "launcher" or not self._rank.is_first:
            return False
        params = self._config.cluster.params
        self._end = stack.enter_context(closing(RunEnd(params, self._config.run.end_tag)))
        self._divergence = stack.enter_context(closing(RunEnd(params, diverged_tag(self._config))))
        is_over, has_diverged = self._end.is_marked(), self._divergence.is_marked()
        self._end.watch(partial(self._control.stop, "the run is over"))
        if is_over:
            _log.info(IS_OVER)
        elif has_diverged:
            self._end = None  # it has another mark
            _log.error(HAS_DIVERGED)
            self._control.stop("training has diverged")
        return (is_over or has_diverged) and self._rank.size == 1  # other ranks learn of it once they have joined

    def _train(
        self,
        learning: Learning,
        directory: ShardDirectory,
        set_serving: Callable[[bool], None],
        stack: ExitStack,
    ) -> bool:
        """Train to the end; return whether it is that of all ranks, and not a signal that interrupted one of them."""
        callbacks = learner_callbacks(self._config, is_first=self._rank.is_first)
        stack.enter_context(closing(callbacks))  # closed last
        self._progress.on_update = callbacks.on_update
        timeout_s = self._config.learner.ranks_timeout_s
        group = stack.enter_context(joined_group(self._rank, learning.device, timeout_s))
        join(learning, group)
        checkpointer, publisher, rollback = self._start_outputs(learning, group, directory, stack)
        outputs = TrainerOutputs(None, publisher, checkpointer, group, callbacks.on_publish, threads=learning.threads)
        feed = self._pace.open(learning, outputs, directory, stack)
        self._board.shards, self._board.sources = feed.shards, feed.sources
        trainer = Trainer(
            learning.agent,
            feed.batches,
            feed.outputs,
            self._control,
            self._counters,
            self._progress,
            replace(self._limits(), publish_least_s=publish_least_s(self._config, learning.device)),
        )
        if self._rank.is_first and not self._config.run.deterministic:  # lock-step counts by its schedule
            stack.enter_context(closing(self._table_watch(directory, learning.table.name)))
        self._progress.restart()
        set_serving(True)
        rolls_back = partial(rollback.roll_back, publisher) if rollback and publisher else None
        try:
            try:
                self._control.stop(trainer.run())
                self._progress.finish()
                self._progress.check()
                _end_sampling(set_serving, feed)
                rolled_back = rolls_back is not None and rolls_back()
            except Diverged as error:
                _end_sampling(set_serving, feed)
                if rolls_back is None or not rolls_back(has_diverged=True):
                    raise
                self._end_before(error)
                rolled_back = True
            self._finish(publisher, checkpointer, PUBLISH_S if rolled_back else _LAST_PUBLISH_S)
            if self._end is not None and self._ends_run(trainer, rolled_back=rolled_back):
                self._end.mark(self._config.cluster.connect_timeout_s)
        except Diverged as error:
            self._end_as_diverged(error, publisher)
        if self._rank.machines > 1 and trainer.is_over:  # if one fails to end the run, all start again
            group.all_agree(_LEAVES)
        if publisher is not None and publisher.version != self._counters.version:
            callbacks.on_publish(publisher.version)
        return trainer.is_over

    def _table_watch(self, directory: ShardDirectory, table: str) -> TableWatch:
        progress = self._progress

        def found(items: int) -> None:
            progress.table_items = items

        return TableWatch(
            directory,
            table,
            self._counters,
            lambda: progress.state in (LearnerState.STARTING, LearnerState.WAITING),
            found,
        )

    def _start_outputs(
        self, learning: Learning, group: LearnerGroup, directory: ShardDirectory, stack: ExitStack
    ) -> tuple[Checkpointer | None, PolicyPublisher | None, Rollback | None]:
        """Restore, publish a first version, and have all ranks start as the first one does."""
        state = self._resumable_state(learning)
        if not self._rank.is_first:
            state.load_bytes(group.broadcast(b""))
            return None, None, None
        found = create_tables(directory, learning.table)
        store = self._restored(state, found.items)
        self._record_spec(learning.spec)
        last_known_token = max(store.fencing_token, found.fencing_token)
        connection = stack.enter_context(closing(self._connection(last_known_token=last_known_token)))
        rollback = self._rollback(connection.fencing_token, state, stack)
        take_snapshot = rollback.take_snapshot if rollback is not None else lambda: None
        publisher = stack.enter_context(closing(self._publisher(learning.agent, connection, take_snapshot)))
        publisher.publish()  # actors wait for a first version
        checkpointer = stack.enter_context(closing(self._checkpointer(state, store, self._fence(stack))))
        if group.size > 1:
            group.broadcast(state.to_bytes())
        return checkpointer, publisher, rollback

    def _finish(self, publisher: PolicyPublisher | None, checkpointer: Checkpointer | None, timeout_s: float) -> None:
        if publisher is not None:
            publisher.publish()
        if checkpointer is not None:
            self._unsaved = checkpointer.finish()
        if publisher is not None and not publisher.flush(timeout_s):
            _log.warning("the parameter server did not acknowledge the last parameters", timeout_s=timeout_s)
        _log.info("stopped", reason=self._control.stop_reason, learner_steps=self._counters.learner_steps)

    def _ends_run(self, trainer: Trainer, *, rolled_back: bool) -> bool:
        """True if others must hear of the end: of a limit, and, where nothing restarts the learner, of `Stop`."""
        reached = self._limits().reached(self._counters) is not None
        if reached or (trainer.is_at_limit and not rolled_back):  # the evaluator marks its verdict
            return True
        return (trainer.is_over or rolled_back) and self._config.run.supervisor == "job"

    def _end_before(self, error: Diverged) -> None:
        """End at the version of the verdict, which training has moved past and diverged since."""
        self._progress.finish()
        self._control.stop("the evaluator has ended the run")
        _log.warning("training has diverged after the version that ended the run", reason=str(error))

    def _end_as_diverged(self, error: Diverged, publisher: PolicyPublisher | None) -> None:
        """End the run with the last finite parameters and checkpoint; other ranks than the first just end."""
        self._progress.finish()
        loss = self._progress.metrics.get("loss", math.nan)
        told = "" if str(error).startswith("loss ") else f", loss {loss:g}"
        what = f"training has diverged at update {self._counters.learner_steps:,}: {error}{told}"
        self._control.stop(what)
        _log.error(what, advice="the last finite checkpoint is kept; resume with a smaller learning rate")
        if publisher is None:
            return
        publisher.drop_diverged(PUBLISH_S)
        publisher.close()  # a version that came later would seem to have got past the mark
        try:
            note_divergence(self._config.run.folder, what)
        except OSError as failure:
            _log.warning("cannot record the end in the run's folder", reason=failure.strerror)
        if self._divergence is not None:
            self._divergence.mark(self._config.cluster.connect_timeout_s)

    def _resumable_state(self, learning: Learning) -> ResumableState:
        algorithm, ranks = self._config.agent.algorithm, str(self._rank.size)
        written_by = {
            "tidemill": version("tidemill"),
            "torch": torch.__version__,
            "learners": ranks,
            "device": learning.device.type,
        }
        return ResumableState(
            learning.agent,
            self._counters,
            algorithm=algorithm,
            config_digest=self._digest,
            settings=training_settings(self._config),
            table=to_document(self._config.table),
            written_by=written_by,
            priorities=self._pace.kept_priorities,
        )

    def _restored(self, state: ResumableState, table_items: int) -> CheckpointStore:
        """Continue from the newest checkpoint, if there is one."""
        clear_divergence(self._config.run.folder)
        folder, keep = self._config.run.folder / "checkpoints", self._config.learner.keep_checkpoints
        store = CheckpointStore(folder, keep=keep, sync=self._pace.syncs_checkpoints)
        if restored := state.restore(store):
            self._board.restored = "; ".join(
                part
                for part in (
                    restored,
                    f"the table holds {table_items:,} items",
                    fallen(self._config.agent, self._counters.learner_steps),
                )
                if part
            )
            _log.info("restored", what=self._board.restored)
            store.note_restored(self._board.restored)
        return store

    def _record_spec(self, spec: EnvSpec) -> None:
        """Write what checkpoint and table are for, now that they fit."""
        folder = self._config.run.folder
        try:
            make_folder(folder)
            record_spec(folder, spec)
        except OSError as error:
            _log.warning("cannot record the environment's spaces", path=str(folder), reason=error.strerror)

    def _checkpointer(self, state: ResumableState, store: CheckpointStore, fence: Fence) -> Checkpointer:
        others_wait_s = self._config.learner.ranks_timeout_s if self._rank.machines > 1 else math.inf
        checkpointer = Checkpointer(
            store,
            state.capture,
            every_s=self._pace.checkpoint_every_s,
            steps=self._counters.learner_steps,
            clock=time.monotonic,
            fence=fence.check,
            end_s=others_wait_s * _SAVING,
        )
        self._board.checkpoint_steps = lambda: checkpointer.steps
        self._board.checkpoint_error = lambda: checkpointer.error
        return checkpointer

    def _fence(self, stack: ExitStack) -> Fence:
        """Return the fence that keeps this learner from writing once a newer one took over."""
        client = stack.enter_context(ParamsClient(self._config.cluster.params, deadline_s=_FENCE_DEADLINE_S))
        return Fence(lambda: client.list_versions().fencing_token, self._counters.fencing_token)

    def _connection(self, *, last_known_token: int) -> ParamsPublisher:
        cluster, name = self._config.cluster, f"{socket.gethostname()}-{os.getpid()}"
        connection = ParamsPublisher(
            cluster.params,
            name=name,
            last_known_token=last_known_token,
            last_known_version=self._counters.version,
            connect_timeout_s=cluster.connect_timeout_s,
        )
        self._counters.fencing_token = connection.fencing_token
        return connection

    def _publisher(
        self, agent: Agent, connection: ParamsPublisher, take_snapshot: Callable[[], None]
    ) -> PolicyPublisher:
        with_half = self._config.learner.publish_half
        return PolicyPublisher(
            connection, agent.policy_state, self._metadata, with_half=with_half, take_snapshot=take_snapshot
        )

    def _rollback(self, fencing_token: int, state: ResumableState, stack: ExitStack) -> Rollback | None:
        """Return the rollback to the version of a verdict; None for a run that only the learner's own limits end."""
        run, params = self._config.run, self._config.cluster.params
        if run.target_return is None and not run.max_wall_s:
            return None
        rollback = Rollback(params, fencing_token, state, lambda: self._control.stop("the evaluator has ended the run"))
        return stack.enter_context(closing(rollback))

    def _metadata(self) -> ParamsMetadata:
        return ParamsMetadata(
            algorithm=self._config.agent.algorithm,
            env_id=self._config.env.id,
            learner_steps=self._counters.learner_steps,
            env_steps=self._counters.env_steps,
            config_digest=self._digest,
        )

    def _limits(self) -> Limits:
        run, lag = self._config.run, self._config.learner.max_policy_lag
        return Limits(run.max_learner_steps, run.max_env_steps, self._pace.publish_every, max_policy_lag=lag)


def _end_sampling(set_serving: Callable[[bool], None], feed: Feed) -> None:
    """Serve and sample no more: steps of samples that still came would count into a version that is restored."""
    set_serving(False)
    feed.close()


def publish_least_s(config: LearnerConfig, device: torch.device) -> float:
    """Return the least seconds between two published versions.

    Args:
        config: The learner's settings.
        device: Where it computes.
    """
    if config.run.deterministic:  # each round ends with a version
        return 0.0
    asked = config.learner.publish_least_s
    if asked >= 0:
        return asked
    is_on_policy = config.table.sampler == "fifo" or config.learner.max_policy_lag >= 0
    return 0.0 if device.type != "cuda" or is_on_policy else PUBLISH_LEAST_S


def join(learning: Learning, group: LearnerGroup) -> None:
    """Make the agent one of the ranks', which record updates as CUDA graphs if each of them can record its own.

    The others would wait for a rank that cannot. Their step sizes are rounded to float32 where they fall, and those of
    that rank are not, so that the parameters of the ranks would part.

    Args:
        learning: The agent as this rank would train it alone. One that is replaced is gone before the next is made.
        group: The ranks; every one of them calls this.
    """
    vote = StepVote(stop=False, pause=False, lacks_batch=learning.eager is None, largest_weight=0.0)
    if group.all_agree(vote).lacks_batch and learning.eager is not None:
        _log.warning("another learner cannot record updates as CUDA graphs; running them without here, too")
        make, learning.eager = learning.eager, None
        del learning.agent
        gc.collect()  # an agent that records holds itself
        learning.agent = make()
    learning.agent.set_process_group(group)


def learning_agent(config: LearnerConfig, spec: EnvSpec, device: torch.device, batch_size: int) -> Agent:
    """Return the agent that a learner trains.

    Args:
        config: The learner's settings, `agent.compile` being chosen.
        spec: Of the environment.
        device: Where it computes.
        batch_size: Items of this rank's part of an update.

    Raises:
        ConfigError: The algorithm does not fit the environment, or with `table.hindsight` its rewards cannot be
            computed from goals.
    """
    agent = build_agent(config.agent, spec, str(device), config.run.seed)
    if not config.table.hindsight:
        return agent
    window = item_window(config.agent, config.table, spec.frame_stack)
    draws = Draws(config.run.seed, batch_size)
    return HindsightAgent(agent, window, goal_rewards(config.env), config.table.hindsight, draws)
