"""Puts the parts of an actor in lock-step together."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from functools import partial

import numpy as np
import structlog
import torch

from tidemill.acting.writer import open_writer
from tidemill.config.fixed import keep_fixed
from tidemill.config.lock_step import LockStep, history_file, lock_step_of
from tidemill.config.sections import ActorConfig
from tidemill.envs.make import make_timed
from tidemill.envs.watch import EnvWatch
from tidemill.errors import ConfigError
from tidemill.params.watcher import ParamsWatcher
from tidemill.rl.agents.build import build_policy
from tidemill.rl.agents.interface import Policy
from tidemill.rl.exploration import ActorSlot
from tidemill.rl.settings.registry import extra_columns_of
from tidemill.rpc.background import BackgroundServer
from tidemill.services.actor.acting.loop import ActingLoop, PolicyParams, make_throttle
from tidemill.services.actor.acting.metrics import EXPECTED, ActorMetrics, open_curves, watch_writer
from tidemill.services.actor.lock_step.history import History
from tidemill.services.actor.lock_step.policy import RoundPolicy
from tidemill.services.actor.lock_step.round_file import RoundEnd
from tidemill.services.actor.lock_step.rounds import RoundPacer, check_epoch
from tidemill.types import EnvSpec

_log = structlog.get_logger()


def act_in_lock_step(config: ActorConfig, seed: int, server: BackgroundServer, stop: threading.Event) -> None:
    """Act in rounds until `stop` is set; what a former process of this actor played is played again first.

    Args:
        config: The settings; the same in every process of this actor.
        seed: Of its first environment.
        server: Tells of the health of the process.
        stop: Ends it.

    Raises:
        ConfigError: The actor's index is missing or not below `actor.count`, its policy has a recurrent state, or the
            run was started with other settings.
        FatalError: The files of the actor, or its streams, are lost.
    """
    settings, index = config.actor, config.actor.index or 0
    if settings.index is None and settings.count > 1:
        raise ConfigError(
            f"actor.index is none, allowed with run.deterministic and several actors: 0 .. {settings.count - 1}"
        )
    if index >= settings.count:
        raise ConfigError(f"actor.index is {index}, but must be below actor.count ({settings.count})")
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler
    EXPECTED.set(settings.count)
    folder, actor_id = config.run.folder / "lock_step", settings.id or f"actor-{index}"
    keep_fixed(config, folder / f"{actor_id}.settings.json")
    file = folder / f"{actor_id}.round"
    with ExitStack() as stack:
        history = stack.enter_context(closing(History(history_file(config.run, actor_id))))
        watch = stack.enter_context(EnvWatch(config.env, server.health))
        made = make_timed(config.env, config.env.num_envs, watch.timed, training=True)
        env = stack.enter_context(closing(watch.watched(made)))
        policy, kept = _round_policy(config, env.spec, index), RoundEnd.read(file)
        writer = open_writer(
            config,
            actor_id,
            env.spec.frame_stack,
            policy.initial_priority,
            stop,
            num_envs=config.env.num_envs,
            max_in_flight_chunks=settings.max_in_flight_chunks,
            hold=True,
            epoch=kept.epoch if kept is not None else 0,
        )
        if writer is None:
            _log.info("stopped")
            return
        stack.enter_context(closing(writer))
        check_epoch(writer, file)
        watcher = stack.enter_context(ParamsWatcher(config.cluster.params, folder=config.run.params_folder))
        params = PolicyParams(watcher, policy)
        watch_writer(writer, lambda: params.waited_s)
        pacer = RoundPacer(_lock_step(config), index, policy, writer, history, file)
        curves = open_curves(config, actor_id, pacer.env_steps, stack, watcher.newest)
        metrics = ActorMetrics(settings.log_every_s, curves, pacer.is_past)
        throttle = make_throttle(settings.max_env_steps_per_s, env.num_envs, stop)
        own_columns, wait = extra_columns_of(config.agent, env.spec), partial(pacer.wait, params)
        loop = ActingLoop(env, policy, params, writer, metrics, throttle, own_columns, wait)
        if pacer.load(params, stop):
            server.set_serving(True)
            _log.info("acting in lock-step", actor_id=actor_id, index=index, seed=seed, rounds_before=history.rounds)
            loop.run(seed, stop)
        server.set_serving(False)
    _log.info("stopped", unacknowledged_chunks=writer.unacknowledged_chunks, epoch=writer.epoch)


def _lock_step(config: ActorConfig) -> LockStep:
    return lock_step_of(config.run, config.table, config.learner, config.env.num_envs, config.actor.count)


def _round_policy(config: ActorConfig, env_spec: EnvSpec, index: int) -> RoundPolicy:
    build = partial(_build_policy, config, env_spec, index)
    policy = RoundPolicy(build, _lock_step(config).env_steps, wants_inputs=config.table.sampler == "prioritized")
    if policy.recurrent_state_size:
        raise ConfigError(
            f"agent.algorithm is {config.agent.algorithm!r}, whose policy has a recurrent state, which "
            "run.deterministic does not support: use another algorithm, or set run.deterministic to false"
        )
    return policy


def _build_policy(config: ActorConfig, env_spec: EnvSpec, index: int, number: int) -> Policy:
    """Return the policy of a round: equal each time, whatever was built before."""
    slot = ActorSlot(index, config.env.num_envs, config.actor.count)
    precision = "float32" if config.actor.precision == "auto" else config.actor.precision  # auto depends on the time
    words = np.random.SeedSequence([config.run.seed, index, number]).generate_state(1)
    return build_policy(config.agent, env_spec, seed=int(words[0]), slot=slot, precision=precision)
