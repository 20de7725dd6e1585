"""A check, before any service of a run starts, that each can listen where it is told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tidemill.config.sections import RunConfig
from tidemill.rpc.addresses import can_listen
from tidemill.rpc.server import why_not_bound
from tidemill.services.launcher.run.paths import with_addresses
from tidemill.settings.check import refuse

_ANYWHERE = Path(os.devnull)  # of sockets that the launcher will choose: below a file nothing listens


def check_free_ports(config: RunConfig) -> None:
    """Raise a `ConfigError`, with a line for each setting, if services that the launcher starts could not listen.

    Left out are ports that the system chooses, and sockets that the launcher does.
    """
    refuse(
        f"{setting} is {address!r}: {why_not_bound(address, setting, takes_any_port=takes_any_port)}"
        for setting, address, takes_any_port in fixed_addresses(config)
        if not can_listen(address)
    )


def fixed_addresses(config: RunConfig) -> Iterator[tuple[str, str, bool]]:
    """Yield the name, the value, and whether it may have port 0, of each address that is set on purpose."""
    for setting, address, takes_any_port in _addresses(with_addresses(config, _ANYWHERE)):
        if address and not address.startswith(f"unix://{_ANYWHERE}/") and not address.endswith(":0"):
            yield setting, address, takes_any_port


def _addresses(config: RunConfig) -> Iterator[tuple[str, str, bool]]:
    """Yield the name, the value, and whether it may have port 0, of each address that a started service listens at."""
    launcher, has_simulators = config.launcher, config.inference.simulators > 0
    started = {
        "replay": launcher.replay,
        "paramserver": True,
        "learner": True,
        "evaluator": True,
        "inference": launcher.inference,
        "actor": launcher.actors,
    }
    for section in (name for name, count in started.items() if count):
        server = getattr(config, section).server
        if section != "actor" and (section != "inference" or has_simulators):  # others have a socket each
            yield f"{section}.server.address", server.address, section != "inference"
        yield f"{section}.server.metrics_address", server.metrics_address, True
    if launcher.status_page:
        yield "launcher.status_page_port", f"127.0.0.1:{launcher.status_page_port}", True
