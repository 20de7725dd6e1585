"""The replay server's process: puts its objects together, serves, and stops on SIGTERM."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import REGISTRY

from tidemill import kernel, process
from tidemill.config.load import load
from tidemill.config.sections import ReplayConfig
from tidemill.config.services import ReplaySettings
from tidemill.services.replay.metrics import EXPECTED, ReplayCollector
from tidemill.services.replay.server import ReplayServer
from tidemill.telemetry import configure_logging, serve_metrics, watch_disk

_SERVICE = "replay"
_SHORT = {  # for replay on its own
    "--folder": "--replay.storage.folder",
    "--listen": "--replay.server.address",
    "--ack": "--replay.storage.ack",
}
_COMMANDS = {  # by module and function: a server needs none of them, nor what they import
    "inspect": ("tidemill.services.replay.log.inspect", "main"),
    "tables": ("tidemill.services.replay.commands.administration", "tables"),
    "update": ("tidemill.services.replay.commands.administration", "update"),
    "delete": ("tidemill.services.replay.commands.administration", "delete"),
    "export": ("tidemill.services.replay.commands.transfer", "export"),
    "import": ("tidemill.services.replay.commands.transfer", "import_"),
    "copy": ("tidemill.services.replay.commands.transfer", "copy"),
    "to-minari": ("tidemill.services.replay.commands.transfer", "to_minari"),
    "from-minari": ("tidemill.services.replay.commands.transfer", "from_minari"),
}
_logger = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the replay server until it is asked to stop, inspect its log, or change its tables; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if (name := "".join(arguments[:1])) in _COMMANDS:
        module, function = _COMMANDS[name]
        command = getattr(importlib.import_module(module), function)
        return process.run(f"tidemill replay {name}", partial(command, arguments[1:]))
    return process.run(_SERVICE, partial(_start, arguments))


def _start(arguments: Sequence[str]) -> int:
    description = (
        "Stores the streams of actors and hands samples of them to learners. For replay on its own, `tidemill replay "
        "--folder data --listen 127.0.0.1:7401 --ack fsync` is short for --replay.storage.folder, "
        "--replay.server.address and --replay.storage.ack (docs/replay.md). "
        "`tidemill replay inspect FOLDER` says what is in the log of one that is stopped; of one that runs, "
        "`tidemill replay tables ADDRESS` lists the tables, `update` changes one, `delete` deletes items, "
        "`export` and `import` move tables to and from files, `to-minari` and `from-minari` to and from Minari, "
        "and `copy` to another server."
    )
    config = load(ReplayConfig, _long(arguments), prog=f"tidemill {_SERVICE}", description=description)
    configure_logging(_SERVICE, level=config.log.level, json=config.log.json)
    asyncio.run(_serve(config))
    return 0


def _long(arguments: Sequence[str]) -> list[str]:
    """Return the command line with its short options in full."""
    words = (word.partition("=") for word in arguments)
    return [_SHORT.get(name, name) + equals + value for name, equals, value in words]


async def _serve(config: ReplayConfig) -> None:
    settings = located(config)
    server = ReplayServer(settings)
    EXPECTED.set(settings.shards)
    REGISTRY.register(ReplayCollector(server.replay, server.admission, server.log))
    if settings.storage.folder:
        watch_disk(Path(settings.storage.folder))
    metrics_address = serve_metrics(settings.server, server.rpc.health)
    stop = process.stop_requested()
    _logger.info("serving", address=await server.start(), metrics=metrics_address, uses_kernel=kernel.available)
    await server.serve_until(stop)
    await server.stop()
    _logger.info("stopped")


def located(config: ReplayConfig) -> ReplaySettings:
    """Return the settings with the folder of the log that is meant for this run."""
    names = {"{run}": str(config.run.folder), "{shard}": str(config.replay.shard)}
    folder = config.replay.storage.folder
    for placeholder, name in names.items():
        folder = folder.replace(placeholder, name)
    return dataclasses.replace(config.replay, storage=dataclasses.replace(config.replay.storage, folder=folder))


if __name__ == "__main__":
    sys.exit(main())
