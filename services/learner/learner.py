"""Puts the parts of one learner together: what exists from the start, what is connected, what trains."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from importlib.metadata import version

import structlog
import torch

from tidemill.config.sections import LearnerConfig
from tidemill.envs.make import spec_of
from tidemill.params.client import ParamsClient
from tidemill.params.publisher import ParamsPublisher
from tidemill.params.run_end import RunEnd
from tidemill.params.version import ParamsMetadata
from tidemill.replay.sampler import ReplaySampler
from tidemill.replay.shards.directory import ShardDirectory, is_sharded
from tidemill.replay.table_config import TableConfig
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.optimizers import fallen
from tidemill.rpc.server import RpcServer
from tidemill.services.learner.batches import Batches
from tidemill.services.learner.checkpoint import CheckpointStore
from tidemill.services.learner.checkpointer import Checkpointer
from tidemill.services.learner.control import Control
from tidemill.services.learner.counters import Counters
from tidemill.services.learner.damaged_items import DamagedItems
from tidemill.services.learner.decoder import Decoder
from tidemill.services.learner.digest import config_digest
from tidemill.services.learner.fence import Fence
from tidemill.services.learner.gpu_metrics import watch_gpu
from tidemill.services.learner.judged import PUBLISH_S, Judged
from tidemill.services.learner.peers import wait_for_peer, wait_for_shard
from tidemill.services.learner.priorities import PriorityWriter
from tidemill.services.learner.progress import Progress
from tidemill.services.learner.publishing import PolicyPublisher
from tidemill.services.learner.ranks import Place, Ranks, joined_ranks
from tidemill.services.learner.resume import Resumable
from tidemill.services.learner.rng import seed_rng
from tidemill.services.learner.sampling import create_tables, open_sampler
from tidemill.services.learner.servicer import LearnerServicer
from tidemill.services.learner.status import StatusBoard
from tidemill.services.learner.table import batches_per_sample, table_config
from tidemill.services.learner.trainer import Limits, Outlets, Trainer
from tidemill.services.learner.transfer import Transfer, device_of

_LAST_PUBLISH_S = 5.0
_FENCE_S = 1.0  # how old the parameter server's word may be that no newer learner took over, for priorities
_FENCE_DEADLINE_S = 1.0  # for that word; a server that is silent holds nothing up for longer

_log = structlog.get_logger()


class Learner:
    """One learner of a run; `run` is its whole life."""

    def __init__(self, config: LearnerConfig, stop: threading.Event, place: Place | None = None) -> None:
        """Take the settings and the event that a signal sets; nothing is connected yet.

        Args:
            config: The settings.
            stop: Ends the learner when set.
            place: Which of the ranks it is; the only one if not given. The first publishes, writes checkpoints and
                answers callers, and tells the others to stop, pause and go on.

        Raises:
            ConfigError: The ranks cannot share the batch evenly.
        """
        self._config, self._stop, self._place = config, stop, place or Place()
        self._share = self._place.share_of(config.agent.batch_size)
        self._control, self._counters = Control(stop), Counters()
        log_every_s = config.learner.log_every_s if self._place.is_first else math.inf
        self._progress = Progress(self._counters, log_every_s=log_every_s, clock=time.monotonic)
        self._board = StatusBoard(
            self._control, self._counters, self._progress, max_learner_steps=config.run.max_learner_steps
        )
        self._digest = config_digest(config)
        self._end: RunEnd | None = None

    def add_to(self, server: RpcServer) -> None:
        """Add the control service to a server that is not started yet."""
        LearnerServicer(self._control, self._board.read).add_to(server)

    def run(self, set_serving: Callable[[bool], None]) -> None:
        """Connect, restore, train to the end, publish and checkpoint.

        Args:
            set_serving: Sets the health of the process.

        Raises:
            Unavailable: A service the learner needs did not answer in time.
            StalePublisher: A newer learner took over.
            FatalError: The checkpoint is of another run, or training has diverged.
        """
        agent, table, device = self._build()
        try:
            with ExitStack() as stack:
                directory = self._directory(stack)
                if self._peers_are_ready(directory) and not self._has_ended(stack):
                    self._train(agent, table, device, directory, set_serving, stack)
        finally:
            self._control.close()

    def _build(self) -> tuple[Agent, TableConfig, torch.device]:
        config, device = self._config, device_of(self._config.learner.device, self._place)
        if config.learner.threads:
            torch.set_num_threads(config.learner.threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # so that the training thread's stream is this device's
            watch_gpu(device)
        seed_rng(config.run.seed)
        spec = spec_of(config.env)
        agent = build_agent(config.agent, spec, str(device), config.run.seed)
        return agent, table_config(config.table, config.learner, agent, spec, config.agent.batch_size), device

    def _directory(self, stack: ExitStack) -> ShardDirectory | None:
        """Return the replay shards; None if there is one server, and never more."""
        addresses = self._config.cluster.replay
        return stack.enter_context(closing(ShardDirectory(addresses))) if is_sharded(addresses) else None

    def _peers_are_ready(self, directory: ShardDirectory | None) -> bool:
        cluster, timeout_s = self._config.cluster, self._config.cluster.connect_timeout_s
        if directory is None:
            is_ready = wait_for_peer("cluster.replay", cluster.replay[0], timeout_s, self._stop)
        else:
            is_ready = wait_for_shard("cluster.replay", directory, timeout_s, self._stop)
        if not self._place.is_first:
            return is_ready
        return is_ready and wait_for_peer("cluster.params", cluster.params, timeout_s, self._stop)

    def _has_ended(self, stack: ExitStack) -> bool:
        """Return whether the run is over and this is all of the learner; have it end when it becomes so."""
        if self._config.run.supervisor == "launcher" or not self._place.is_first:
            return False
        self._end = stack.enter_context(closing(RunEnd(self._config.cluster.params, self._config.run.end_tag)))
        is_over = self._end.is_marked()
        self._end.watch(partial(self._control.stop, "the run is over"))
        if is_over:
            _log.info("the run has reached its target or a limit; with others it would go on")
        return is_over and self._place.size == 1  # other ranks are told when they have joined

    def _train(
        self,
        agent: Agent,
        table: TableConfig,
        device: torch.device,
        directory: ShardDirectory | None,
        set_serving: Callable[[bool], None],
        stack: ExitStack,
    ) -> None:
        ranks = stack.enter_context(joined_ranks(self._place, device, self._config.learner.ranks_timeout_s))
        agent.set_process_group(ranks)
        checkpointer, publisher, judged = self._keepers(agent, table, ranks, directory, stack)
        sampler = self._sampler(directory, table, stack)
        self._board.shards = sampler.shards
        priorities = self._priorities(sampler, stack)
        if priorities is not None:
            stack.enter_context(closing(priorities))
        batches = stack.enter_context(closing(self._batches(agent, table, device, sampler)))
        trainer = Trainer(
            agent,
            batches,
            Outlets(priorities, publisher, checkpointer, ranks),
            self._control,
            self._counters,
            self._progress,
            self._limits(),
        )
        self._progress.begin()
        set_serving(True)
        self._control.stop(trainer.run())
        set_serving(False)
        batches.close()  # what still comes counts for nothing
        went_back = publisher is not None and judged is not None and judged.go_back(publisher)
        self._finish(publisher, checkpointer, PUBLISH_S if went_back else _LAST_PUBLISH_S)

    def _keepers(
        self, agent: Agent, table: TableConfig, ranks: Ranks, directory: ShardDirectory | None, stack: ExitStack
    ) -> tuple[Checkpointer | None, PolicyPublisher | None, Judged | None]:
        """Restore, publish a first version, and have all ranks start as the first one does."""
        resumable = self._resumable(agent)
        if not self._place.is_first:
            resumable.adopt(ranks.share(b""))
            return None, None, None
        table_items = create_tables(self._config.cluster, directory, table)
        store = self._restored(resumable, table_items)
        connection = stack.enter_context(closing(self._connection(above=store.generation)))
        judged = self._judged(connection.generation, resumable, stack)
        keep = judged.keep if judged is not None else lambda: None
        publisher = stack.enter_context(closing(self._publisher(agent, connection, keep)))
        publisher.publish()  # actors wait for a first version
        checkpointer = stack.enter_context(closing(self._checkpointer(resumable, store, self._fence(stack))))
        if ranks.size > 1:
            ranks.share(resumable.encoded())
        return checkpointer, publisher, judged

    def _finish(self, publisher: PolicyPublisher | None, checkpointer: Checkpointer | None, timeout_s: float) -> None:
        if publisher is not None:
            publisher.publish()
        if checkpointer is not None:
            checkpointer.finish()
        if publisher is not None and not publisher.flush(timeout_s):
            _log.warning("the last parameters were not acknowledged", timeout_s=timeout_s)
        if self._end is not None and self._limits().reached(self._counters):
            self._end.mark(self._config.cluster.connect_timeout_s)
        _log.info("stopped", reason=self._control.stop_reason, learner_steps=self._counters.learner_steps)

    def _resumable(self, agent: Agent) -> Resumable:
        algorithm, ranks = self._config.agent.algorithm, str(self._place.size)
        written_by = {"tidemill": version("tidemill"), "torch": torch.__version__, "learners": ranks}
        return Resumable(agent, self._counters, algorithm=algorithm, config_digest=self._digest, written_by=written_by)

    def _restored(self, resumable: Resumable, table_items: int) -> CheckpointStore:
        """Go on from the newest checkpoint, if there is one."""
        store = CheckpointStore(self._config.run.folder / "checkpoints", keep=self._config.learner.keep_checkpoints)
        if restored := resumable.restore(store):
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
        return store

    def _checkpointer(self, resumable: Resumable, store: CheckpointStore, fence: Fence) -> Checkpointer:
        checkpointer = Checkpointer(
            store,
            resumable.capture,
            every_s=self._config.learner.checkpoint_every_s,
            steps=self._counters.learner_steps,
            clock=time.monotonic,
            fence=fence.check,
        )
        self._board.checkpoint_steps = lambda: checkpointer.steps
        self._board.checkpoint_error = lambda: checkpointer.error
        return checkpointer

    def _fence(self, stack: ExitStack) -> Fence:
        """Return what keeps this learner from writing once a newer one took over."""
        client = stack.enter_context(ParamsClient(self._config.cluster.params, deadline_s=_FENCE_DEADLINE_S))
        return Fence(lambda: client.list_versions().generation, self._counters.generation, time.monotonic)

    def _connection(self, *, above: int) -> ParamsPublisher:
        cluster, name = self._config.cluster, f"{socket.gethostname()}-{os.getpid()}"
        connection = ParamsPublisher(
            cluster.params, name=name, above=above, connect_timeout_s=cluster.connect_timeout_s
        )
        self._counters.generation = connection.generation
        return connection

    def _publisher(self, agent: Agent, connection: ParamsPublisher, keep: Callable[[], None]) -> PolicyPublisher:
        with_half = self._config.learner.publish_half
        return PolicyPublisher(connection, agent.policy_state, self._metadata, with_half=with_half, keep=keep)

    def _judged(self, generation: int, resumable: Resumable, stack: ExitStack) -> Judged | None:
        """Return what goes back at a verdict; None for a run that only the learner's own limits end."""
        run, params = self._config.run, self._config.cluster.params
        if run.target_return is None and not run.max_wall_s:
            return None
        judged = Judged(params, generation, resumable, lambda: self._control.stop("the run has been decided"))
        return stack.enter_context(closing(judged))

    def _metadata(self) -> ParamsMetadata:
        return ParamsMetadata(
            algorithm=self._config.agent.algorithm,
            env_id=self._config.env.id,
            learner_steps=self._counters.learner_steps,
            env_steps=self._counters.env_steps,
            config_digest=self._digest,
        )

    def _sampler(self, directory: ShardDirectory | None, table: TableConfig, stack: ExitStack) -> ReplaySampler:
        size, in_flight = self._share * self._splits(table), self._config.learner.decode_threads + 1
        return open_sampler(self._config.cluster, directory, table, size, in_flight, stack)

    def _priorities(self, sampler: ReplaySampler, stack: ExitStack) -> PriorityWriter | None:
        if self._config.table.sampler != "prioritized":
            return None
        return PriorityWriter(sampler.update_priorities, partial(self._fence(stack).check, _FENCE_S))

    def _batches(self, agent: Agent, table: TableConfig, device: torch.device, sampler: ReplaySampler) -> Batches:
        settings, splits = self._config.learner, self._splits(table)
        damaged = DamagedItems(sampler.delete_items, time.monotonic)
        decoder = Decoder(
            agent, table.signature, self._config.table, self._counters, Transfer(device), damaged, splits=splits
        )
        return Batches(
            sampler,
            decoder.decode,
            self._counters,
            threads=settings.decode_threads,
            prefetch_samples=-(-settings.prefetch_batches // splits),
            clock=time.monotonic,
        )

    def _splits(self, table: TableConfig) -> int:
        return batches_per_sample(self._config.learner, table.signature, self._config.agent.batch_size)

    def _limits(self) -> Limits:
        run, learner = self._config.run, self._config.learner
        return Limits(run.max_learner_steps, run.max_env_steps, learner.publish_every)
