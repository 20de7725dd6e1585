"""`tidemill check`: checks the settings of a whole cluster before any part of it starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from tidemill.config.inference import check_inference
from tidemill.config.load import from_document, load, read_document
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.services.launcher.commands.train import check_settings
from tidemill.services.launcher.run.folder import has_trained, keep_settings

_ABOUT = """Check the settings of a cluster that an engine starts service by service: pass those of all services.

It tries one environment and writes ROOT/NAME/config.yaml, which `tidemill evaluate`, `export`, `log` and `plot` read.
If a setting is wrong it writes nothing and exits with 2. It refuses what `tidemill train` refuses, except what only the
services know, which report it when they start: tables of learner.sources, a batch or a learner.device that the
learners cannot share, run.deterministic with several learners, a batch that is larger than the replay service allows,
evaluator.source `simulators` without simulators, and an error in the update of your own algorithm."""


def check(argv: Sequence[str]) -> int:
    """Check settings, and write them into the run's folder; return the exit code."""
    config = load(RunConfig, list(argv), prog="tidemill check", description=_ABOUT)
    _check_addresses(config)
    check_inference(config, actors=config.actor.count)
    file = config.run.folder / "config.yaml"
    before = from_document(RunConfig, read_document(file)) if file.exists() and has_trained(config.run.folder) else None
    # an engine starts the replay service, may let the learner alone reach the servers of sources, and gives it other
    # memory, processors and perhaps a GPU: an algorithm of the user's makes no update here
    started_elsewhere = replace(
        config,
        launcher=replace(config.launcher, replay=False),
        learner=replace(config.learner, sources={}, device="cuda"),
    )
    check_settings(started_elsewhere, None, before, any_learners=True)
    keep_settings(config)
    print(f"the settings are fine: {config.agent.algorithm} on {config.env.id}, written to {file}", file=sys.stderr)
    return 0


def _check_addresses(config: RunConfig) -> None:
    """Raise a `ConfigError` if a shard would be asked by nobody, or one be asked that is not there."""
    cluster, started = config.cluster, config.replay.shards
    if cluster.shard_count == started:
        return
    if cluster.replay_shards:
        raise ConfigError(
            f"replay.shards is {started}, but cluster.replay_shards is {cluster.replay_shards}: both count the shards, "
            "give them the same number"
        )
    raise ConfigError(
        f"replay.shards is {started}, but cluster.replay lists {len(cluster.replay)}: {' '.join(cluster.replay)}; list "
        "every shard once (for docker-compose.yml: TIDEMILL_REPLAY_SHARDS counts the addresses in TIDEMILL_REPLAY)"
    )
