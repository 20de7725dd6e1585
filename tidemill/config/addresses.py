"""Checks of the addresses of a run whose services one command starts, before any of them starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.settings.check import refuse

_DEFAULT = RunConfig()
_SECTIONS = {"replay": "replay", "params": "paramserver", "learner": "learner"}
"""Names of the addresses in `cluster`, and the section of the service that each leads to."""


def check_addresses(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Check every address of a run whose services one command starts.

    Args:
        config: Of the run.
        given: The settings that its user gave, by dotted name: see `given_by` and `given_in`.

    Raises:
        ConfigError: A service would look elsewhere for one that is started here, as with the settings of a run that
            was made in containers or on several machines; services would share an address; or an address that was
            given is the default, which counts as not given. With the other addresses of `cluster`, that of the replay
            service may be the default, because this check asks for all of them.
    """
    _check_defaults(config, given)
    check_simulators(config)
    _check_metrics_addresses(config)
    _check_elsewhere(config)


def _check_defaults(config: RunConfig, given: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` if an address that was given is the default, which would count as not given."""
    is_alone = "cluster.replay" in given and given.keys().isdisjoint(("cluster.params", "cluster.learner"))
    if is_alone and "replay" in _at_sockets(config) and config.cluster.replay == _DEFAULT.cluster.replay:
        raise ConfigError(
            f"cluster.replay is {config.cluster.replay[0]!r}, but this command starts its own replay service: add "
            "--launcher.replay false to use the one at that address, or leave cluster.replay out"
        )
    names = {f"{name}.server.address": getattr(_DEFAULT, name).server.address for name in _SECTIONS.values()}
    refuse(
        f"{name} is {address!r}, the default, which this command replaces by a socket: give another port"
        for name, address in names.items()
        if given.get(name) == address
    )


def _started(config: RunConfig) -> list[str]:
    """Return the names in `cluster` of the services that are started."""
    return [name for name in _SECTIONS if name != "replay" or config.launcher.replay]


def _at_sockets(config: RunConfig) -> list[str]:
    """Return the names in `cluster` of the services that are started and were given no address."""
    both = {name: [getattr(each, _SECTIONS[name]) for each in (config, _DEFAULT)] for name in _started(config)}
    return [name for name, (own, default) in both.items() if own.server.address == default.server.address]


def _check_elsewhere(config: RunConfig) -> None:
    """Raise a `ConfigError` if services would look elsewhere for those that are started here."""
    elsewhere = {
        name: f"cluster.{name} is {_listed(getattr(config.cluster, name))!r}"
        for name in _at_sockets(config)
        if getattr(config.cluster, name) != getattr(_DEFAULT.cluster, name)
    }
    if not elsewhere:
        return
    options = " ".join(f"--cluster.{name} {_listed(getattr(_DEFAULT.cluster, name))}" for name in _started(config))
    also = "; to use a replay service that runs already, add --launcher.replay false" if "replay" in elsewhere else ""
    if inference := config.cluster.inference:  # refused here only: by itself it may be meant
        options += " --cluster.inference ''"
        also += f"; cluster.inference is {' '.join(inference)!r}, and without it each actor runs the network itself"
    raise ConfigError(
        f"{' and '.join(elsewhere.values())}, but this command starts these services on this machine: add {options}, "
        f"or set the address that each listens at as well, such as --paramserver.server.address{also}"
    )


def _listed(addresses: str | tuple[str, ...]) -> str:
    return addresses if isinstance(addresses, str) else " ".join(addresses)


def check_simulators(config: RunConfig) -> None:
    """Raise a `ConfigError` unless one inference service with an address serves the simulators, if there are any."""
    settings, started = config.inference, config.launcher.inference
    by_clients = config.evaluator.source == "simulators"
    if config.env.spaces:
        only = f"env.spaces is set, so that only simulators have env.id {config.env.id!r}"
        refuse(
            f"{name} is {value!r}, but {only}: set it to {allowed!r}"
            for name, value, allowed in (
                ("launcher.actors", config.launcher.actors, 0),
                ("evaluator.source", config.evaluator.source, "simulators"),
            )
            if value != allowed
        )
    if not settings.simulators:
        if by_clients:
            raise ConfigError(
                "evaluator.source is 'simulators', but inference.simulators is 0: set it to the number of clients, or "
                "evaluator.source to 'env'"
            )
        return
    if started != 1:
        raise ConfigError(
            f"inference.simulators is {settings.simulators}, but launcher.inference is {started}: set it to 1, for the "
            "one service that they all reach"
        )
    if settings.server.address.endswith(":0"):
        raise ConfigError(
            f"inference.server.address is {settings.server.address!r}, but simulators must know it: give it a port"
        )


def _check_metrics_addresses(config: RunConfig) -> None:
    """Raise a `ConfigError` if a single address is set for the metrics of several actors or inference services."""
    launcher = config.launcher
    refuse(
        f"{name}.server.metrics_address is {value!r} and launcher.{setting} is {count}: they cannot share it. Leave it "
        "out or set port 0, and each takes a free port"
        for name, setting, value, count in (
            ("actor", "actors", config.actor.server.metrics_address, launcher.actors),
            ("inference", "inference", config.inference.server.metrics_address, launcher.inference),
        )
        if count > 1 and value and not value.endswith(":0")
    )


def check_shards(config: RunConfig) -> None:
    """Raise a `ConfigError` if a single address is set on purpose for several replay shards, or two counts differ."""
    cluster, started = config.cluster, config.replay.shards
    of_one_server = len(cluster.replay) == 1 and not cluster.replay[0].startswith("dns:")
    if config.launcher.replay and of_one_server and cluster.replay_shards not in (0, started):
        raise ConfigError(
            f"cluster.replay_shards is {cluster.replay_shards}, but replay.shards is {started}: both count the shards; "
            "leave out cluster.replay_shards, and set replay.shards"
        )
    if started == 1:
        return
    for name in ("address", "metrics_address"):
        value: str = getattr(config.replay.server, name)
        if value and value != getattr(_DEFAULT.replay.server, name) and not value.endswith(":0"):
            raise ConfigError(
                f"replay.server.{name} is {value!r} and replay.shards is {config.replay.shards}: shards cannot share "
                "it. Leave it out, or start each shard by hand and list them all in cluster.replay"
            )
