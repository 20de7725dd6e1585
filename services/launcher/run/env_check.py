"""Trial of a run's environment in a separate process, before any service is started.

The launcher imports neither gymnasium nor torch, and an environment may hang, or take its process down with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tidemill.config.evaluation import check_policy
from tidemill.config.hindsight import item_window
from tidemill.config.load import from_document, read_document, write_document
from tidemill.config.sections import RunConfig
from tidemill.config.sources import fractions_of
from tidemill.errors import ConfigError, FatalError, InvalidArgument, TidemillError, Unavailable
from tidemill.parent import PARENT_VARIABLE
from tidemill.process import run
from tidemill.programs.fork_client import ForkClient, started
from tidemill.programs.fork_server import Order
from tidemill.programs.group_guard import MARK_VARIABLE
from tidemill.programs.groups import Groups
from tidemill.replay.limits import MAX_BATCH_SIZE, MAX_BATCH_STEPS
from tidemill.rl.networks.torsos import check_axes, check_settings
from tidemill.rl.settings.base import AgentSettings
from tidemill.rl.settings.registry import ALGORITHMS, AgentConfig, require_bfloat16, stored_columns
from tidemill.services.launcher.run.continuation import changed_settings
from tidemill.services.launcher.run.paths import with_addresses
from tidemill.settings.check import check, check_that
from tidemill.settings.user_code import user_object
from tidemill.temporary_folder import temporary_folder

if TYPE_CHECKING:
    from tidemill.envs.interface import VectorEnv
    from tidemill.envs.settings import EnvSettings
    from tidemill.types import EnvSpec

_MODULE = "tidemill.services.launcher.run.env_check"
_SETTINGS, _BEFORE, _REFUSAL, _NOTICE, _OUTPUT = "settings.yaml", "before.yaml", "refusal", "notice", "output"
_ANY_LEARNERS = "any_learners"  # a file without content: how many share a batch is not known
_IMPORT_FRAME = '  File "<frozen importlib.'  # of a traceback: without a line of source
_SHOWN_LINES = 8
_NAME = "env_check"
_TEXTS = "text in the observations of {} is left out: {}"
_ENDLESS = (
    "{} does not limit its episodes: unless each ends by itself, set --env.max-evaluation-steps, "
    "and --env.max-episode-steps for training"
)


def check_environment(
    config: RunConfig, forks: ForkClient | None = None, before: RunConfig | None = None, *, any_learners: bool = False
) -> str:
    """Make one environment of the run, play 32 random steps and close it again; takes about a second.

    Args:
        config: Of the run.
        forks: What the process is forked from; None for a separate program.
        before: What a run that has trained was started with, whose checkpoint and table must fit.
        any_learners: Whether something other than `launcher.learners` decides how many learners share a batch.

    Returns:
        What its user should know, on one line; empty if there is nothing.

    Raises:
        ConfigError: There is no such environment, the algorithm does not fit it, it returns what cannot be stored,
            making or playing it failed or took longer than `launcher.start_timeout_s`, or a table of `learner.sources`
            cannot be reached or does not fit.
        FatalError: Making or playing it failed or took that long in a run that has trained: it may work the next time.
    """
    tried, timeout_s = _tried(config), config.launcher.start_timeout_s
    failed = ConfigError if before is None else FatalError
    with temporary_folder("env-check") as name, closing(Groups()) as groups:
        folder, mark = Path(name), groups.new_mark()
        groups.start()
        write_document(config, folder / _SETTINGS)
        if before is not None:
            write_document(before, folder / _BEFORE)
        if any_learners:
            (folder / _ANY_LEARNERS).touch()
        with (folder / _OUTPUT).open("wb") as output:
            process = started(_order(folder, mark), output, forks)
        groups.add(process.pid, mark)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise failed(
                f"trying {tried} took over {timeout_s:g} s; raise launcher.start_timeout_s, or make the environment "
                "start faster"
            ) from error
        finally:
            process.kill()
            process.wait()
            groups.end(process.pid)  # with simulators that it has left
        if (refusal := folder / _REFUSAL).exists():
            raise ConfigError(refusal.read_text(encoding="utf-8"))
        notice = folder / _NOTICE
        said = notice.read_text(encoding="utf-8") if notice.exists() else ""
        output_lines = (folder / _OUTPUT).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last_lines = _without_import(output_lines)
    if code:
        how = ":" if last_lines else f": its process ended with exit code {code} and printed nothing"
        shown = _end_of(last_lines)
        raise failed((" " if len(shown) == 1 else "\n").join([f"trying {tried} failed{how}", *shown]))
    return said


def _end_of(lines: list[str]) -> list[str]:
    """Return the last lines, from the beginning of a frame on if they are in a traceback."""
    shown = lines[-_SHOWN_LINES:]
    first = next((index for index, line in enumerate(shown) if line.startswith('  File "')), 0)
    shown = shown[first:] if len(shown) < len(lines) else shown
    return [line.removeprefix(f"{_NAME}: ") for line in shown]


def _without_import(lines: list[str]) -> list[str]:
    """Return lines with a traceback without the frames of importing a module and those that led there."""
    first = next((index for index, line in enumerate(lines) if line.startswith(_IMPORT_FRAME)), 0)
    return [line for line in lines[first:] if not line.startswith(_IMPORT_FRAME)]


def _tried(config: RunConfig) -> str:
    """Return the names of all that is tried, for messages: the environment, and a user's algorithm with its update."""
    tried = f"env.id {config.env.id!r}"
    if config.agent.algorithm in ALGORITHMS:
        return tried
    update = (
        "" if config.learner.device.startswith("cuda") else " (an update on the CPU; none with learner.device cuda)"
    )
    return f"{tried} and agent.algorithm {config.agent.algorithm!r}{update}"


def _order(folder: Path, mark: str) -> Order:
    own = {PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: mark}
    environment = os.environ | own | {"SDL_VIDEODRIVER": "dummy"}
    return Order(_MODULE, [str(folder)], environment, needs_torch=False)


def try_here(folder: Path) -> int:
    """Try the environment of the settings in a folder; write there what is refused, and what is to be noted."""
    from tidemill.envs.goals import goal_rewards
    from tidemill.envs.make import spec_of
    from tidemill.services.launcher.run.continuation import check_continues, check_spec
    from tidemill.services.launcher.run.random_play import play_random_steps

    try:
        config = from_document(RunConfig, read_document(folder / _SETTINGS))
        has_trained = (folder / _BEFORE).exists()
        before = from_document(RunConfig, read_document(folder / _BEFORE)) if has_trained else None
        _check_callbacks(config)
        notices: list[str] = []
        with contextlib.ExitStack() as stack:
            env = None if config.env.spaces else stack.enter_context(closing(_made(config.env)))
            spec = spec_of(config.env) if env is None else env.spec
            _check_fits(config, spec, is_new=before is None, any_learners=(folder / _ANY_LEARNERS).exists())
            if env is not None:
                notices = _notices(config, env)
                play_random_steps(env, config.env, config.run.seed)
        if before is not None and changed_settings(before, config):
            check_continues(before, config, spec_of)
        if has_trained:
            check_spec(config, spec)
        if config.table.hindsight:
            goal_rewards(config.env)
        if _names_own_code(config.agent):
            from tidemill.rl.agents.algorithm_trial import (
                try_algorithm,
                updates_on_cpu,
            )  # torch takes seconds to import
            from tidemill.rl.agents.split_policy import check_remote

            own_policy = try_algorithm(
                config.agent,
                spec,
                with_update=updates_on_cpu(config.learner.device),
                with_priority=config.table.sampler == "prioritized",
            )
            if own_policy is not None and (config.launcher.inference or config.cluster.inference):
                has_actors = config.launcher.actors > 0 and not config.env.spaces
                check_remote(
                    own_policy,
                    prioritized=has_actors and config.table.sampler == "prioritized",
                    max_policy_lag=config.learner.max_policy_lag,
                    keeps_params=config.actor.inference_fallback == "local",
                    algorithm=config.agent.algorithm,
                )
        if config.learner.sources:
            _check_sources(config, spec)
        if notices:
            (folder / _NOTICE).write_text("; ".join(notices), encoding="utf-8")
    except (ConfigError, InvalidArgument, Unavailable) as error:
        (folder / _REFUSAL).write_text(str(error), encoding="utf-8")
    return 0


def _made(settings: EnvSettings) -> VectorEnv:
    """Make the environment; FatalError says in one line what its own code raises, as it may not the next time."""
    from tidemill.envs.checks import FAILURES, fault
    from tidemill.envs.make import make_env

    try:
        return make_env(settings, 1, training=False)
    except TidemillError:
        raise
    except FAILURES as error:
        raise FatalError(f"making it {fault(None, reset=False, error=error)}") from error


def _check_fits(config: RunConfig, spec: EnvSpec, *, is_new: bool, any_learners: bool) -> None:
    """Raise ConfigError or InvalidArgument unless algorithm, evaluation and table fit the environment."""
    from tidemill.replay.table_config import MAX_ITEM_STEPS, check_signature

    if is_new and isinstance(config.agent, AgentSettings) and config.agent.algorithm in ALGORITHMS:
        check_axes(config.agent.network, spec)
        check_settings(config.agent.network, config.agent.network_settings, spec)
    config.agent.validate_env(spec)
    check_policy(config.evaluator.policy, spec, config.evaluator.source)
    for service in ("actor", "inference"):
        if getattr(config, service).precision == "bfloat16":
            require_bfloat16(f"{service}.precision", config.agent, spec)
    check_signature(stored_columns(config.agent, spec))
    steps = item_window(config.agent, config.table, spec.frame_stack).length
    allowed = f"at most {MAX_ITEM_STEPS}: lower agent.n_step or agent.unroll"
    check(steps <= MAX_ITEM_STEPS, "the number of steps of an item", steps, allowed)
    if not any_learners:
        _check_draw(config, steps)


def _check_draw(config: RunConfig, item_steps: int) -> None:
    """Raise ConfigError if one sample call of `launcher.learners` would draw more than a replay server allows."""
    size = config.agent.batch_size
    batches = max(config.learner.batches_per_sample, 1) if config.table.sampler != "fifo" else 1  # as ReplayDataset
    largest_share = max(fractions_of(config.learner.sources))
    items = math.ceil(size // config.launcher.learners * largest_share) * batches
    several = f" and learner.batches_per_sample {batches}" if batches > 1 else ""
    most = min(MAX_BATCH_SIZE, MAX_BATCH_STEPS // item_steps)
    how_long = "table.hindsight_steps" if config.table.hindsight else "agent.n_step or agent.unroll"
    check_that(
        items <= most,
        f"agent.batch_size is {size}{several}: a sample call would draw {items} items of up to {item_steps} steps, "
        f"allowed: at most {most}; lower {'one of them' if several else 'it'}, or {how_long}",
    )


def _notices(config: RunConfig, env: VectorEnv) -> list[str]:
    """Return a notice about an environment that can be trained on; empty if there is nothing to tell."""
    from tidemill.envs.gymnasium_env import GymnasiumVectorEnv

    if not isinstance(env, GymnasiumVectorEnv):
        return []
    notices = [_TEXTS.format(config.env.id, ", ".join(env.texts))] if env.texts else []
    if not env.has_step_limit and not config.env.max_evaluation_steps:
        notices.append(_ENDLESS.format(config.env.id))
    return notices


def _check_sources(config: RunConfig, spec: EnvSpec) -> None:
    """Check the tables of `learner.sources`, but those on replay servers that the launcher is going to start.

    Raises:
        ConfigError: One does not fit the run's own table.
        Unavailable: A server does not answer.
    """
    from tidemill.learner.source_table import find_source
    from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
    from tidemill.rl.agents.build import build_agent

    agent = build_agent(config.agent, spec)
    own = TableConfig(
        config.table.name,
        stored_columns(config.agent, spec),
        SelectorConfig(SelectorKind.UNIFORM),
        max_items=config.table.max_items,
        max_item_steps=item_window(config.agent, config.table, spec.frame_stack).length,
        payload_bytes=agent.recurrent_state_size * np.dtype(np.float32).itemsize,
    )
    replay = with_addresses(config, Path("/")).cluster.replay  # wherever the sockets of the run will be
    for name, source in config.learner.sources.items():
        addresses = source.replay or replay
        if not (config.launcher.replay and set(addresses) & set(replay)):
            find_source(name, source, addresses, own)


def _check_callbacks(config: RunConfig) -> None:
    """Raise ConfigError if a callback is not there; they are made by the services that call them."""
    for service in ("learner", "evaluator"):
        for name in getattr(config, service).callbacks:
            user_object(f"{service}.callbacks", name)


def _names_own_code(agent: AgentConfig) -> bool:
    """True if a setting of the algorithm names a module of the user's."""
    return any(isinstance(value, str) and (":" in value or "." in value) for value in vars(agent).values())


if __name__ == "__main__":
    sys.exit(run(_NAME, lambda: try_here(Path(sys.argv[1]))))
