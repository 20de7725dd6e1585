"""`tidemill check`: checks the settings of a whole cluster before any part of it starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from tidemill.config.given import given_by
from tidemill.config.inference import check_inference
from tidemill.config.load import load, newer_writer, read_settings
from tidemill.config.run import ClusterSettings
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError, NewerSettings
from tidemill.services.launcher.commands.train import check_settings
from tidemill.services.launcher.run.continuation import describe_changes, trained_settings
from tidemill.services.launcher.run.folder import check_free, has_trained, keep_settings

_ABOUT = """Check the settings of a cluster that an engine starts service by service: pass those of all services.

It tries one environment. With addresses of services it writes ROOT/NAME/config.yaml, which `tidemill evaluate`,
`export`, `log` and `plot` read; without them it writes nothing. If a setting is wrong it writes nothing and exits with
2. It refuses what `tidemill train` refuses, except what only the services know, which report it when they start: tables
of learner.sources, a batch, a learner.device or replay shards that the learners cannot share, run.deterministic with
several learners, a batch that is larger than the replay service allows, evaluator.source `simulators` without
simulators, and an error in the update of your own algorithm."""


def check(argv: Sequence[str]) -> int:
    """Check settings, and write them into the run's folder if an engine starts its services; return the exit code."""
    config = load(RunConfig, list(argv), prog="tidemill check", description=_ABOUT)
    _check_addresses(config)
    check_inference(config, actors=config.actor.count)
    file = config.run.folder / "config.yaml"
    is_elsewhere = _is_elsewhere(config.cluster, argv)
    before: RunConfig | None = None
    if file.exists() and has_trained(config.run.folder):
        try:
            before = read_settings(RunConfig, file)
        except ConfigError as error:
            if not (is_elsewhere and isinstance(error, NewerSettings)):
                raise ConfigError(f"cannot compare these settings with those of {file}: {error}") from error
            of_newer = f"{file} of Tidemill {newer_writer(file)}"
            print(f"note: {of_newer} is replaced, not compared with these settings", file=sys.stderr)
    # an engine starts the replay service, may let the learner alone reach the servers of sources, and gives it other
    # memory, processors and perhaps a GPU: an algorithm of the user's makes no update here
    started_elsewhere = replace(
        config,
        launcher=replace(config.launcher, replay=False),
        learner=replace(config.learner, sources={}, device="cuda"),
    )
    trained = before and trained_settings(before, config.run.folder)
    check_settings(started_elsewhere, None, trained, any_learners=True)
    if is_elsewhere:  # else `train` writes them, and `resume` would train with them, unasked
        keep_settings(config)
    elif before is None:
        check_free(config.run.folder, fresh=True, has_begun=True)
    if before is not None and (changes := describe_changes(before, config)):
        print(f"note: the run has trained, and these settings differ: {changes}", file=sys.stderr)
    if is_elsewhere and 1 < config.launcher.actors != config.actor.count:  # 1 is the default
        print(
            f"note: launcher.actors is {config.launcher.actors}, but actor.count is {config.actor.count}: `tidemill "
            f"train` would start {config.launcher.actors} actors (for Compose and Slurm set TIDEMILL_ACTORS, for "
            "Kubernetes ACTORS)",
            file=sys.stderr,
        )
    not_written = (
        f"not written to {file} (if you start services yourself, add --cluster.params {config.cluster.params})"
    )
    kept = f"written to {file}" if is_elsewhere else not_written
    print(f"the settings are fine: {config.agent.algorithm} on {config.env.id}, {kept}", file=sys.stderr)
    return 0


def _is_elsewhere(cluster: ClusterSettings, argv: Sequence[str]) -> bool:
    """True if a command line or its file says where services are, as for an engine; a launcher starts its own.

    The default address counts if it is given, see `given_by`.
    """
    given = given_by(argv)
    return any(
        f"cluster.{name}" in given or getattr(cluster, name) != getattr(ClusterSettings, name)
        for name in ("replay", "params", "learner")
    )


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
