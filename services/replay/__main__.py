"""The replay server's process: puts its objects together, serves, and stops on SIGTERM."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import REGISTRY

from tidemill import kernel, process
from tidemill.config.load import load
from tidemill.config.sections import ReplayConfig
from tidemill.config.services import ReplaySettings
from tidemill.errors import TidemillError, Unavailable
from tidemill.programs.traces import start_traces
from tidemill.rpc.client_security import never_connected
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics, watch_disk
from tidemill.services.replay.metrics import EXPECTED, ReplayCollector
from tidemill.services.replay.server import ReplayServer
from tidemill.settings.check import nearest

_SERVICE = "replay"
_SHORT = {  # for replay on its own: what each stands for, its value, and what it does
    "--folder": ("storage.folder", "FOLDER", "keep the tables on disk here; default: in memory only"),
    "--listen": ("server.address", "ADDRESS", "HOST:PORT or unix:///path; default 127.0.0.1:7401"),
    "--ack": ("storage.ack", "write|fsync", "acknowledge steps once the system or the disk has them"),
    "--max-memory-mib": ("max_memory_mib", "MIB", "limit; default: half of the memory (container: 3/4)"),
    "--tls-cert": ("server.tls_cert", "FILE", "certificate of the server, a PEM file"),
    "--tls-key": ("server.tls_key", "FILE", "its private key, a PEM file"),
    "--tokens": ("server.tokens", "FILE", "lines `ROLE TOKEN`: the tokens that are accepted"),
}
_COMMANDS = {  # by module and function: a server needs none of them, nor what they import
    "tables": ("commands.administration", "tables", "list the tables of a server"),
    "update": ("commands.administration", "update", "change a table in use"),
    "delete": ("commands.administration", "delete", "delete items by writer, age or time"),
    "drop": ("commands.administration", "drop", "drop a table and its contents"),
    "export": ("commands.transfer", "export", "write a table to files"),
    "import": ("commands.transfer", "import_", "read a table from files"),
    "copy": ("commands.transfer", "copy", "copy tables to another server"),
    "to-minari": ("commands.transfer", "to_minari", "write a table as a Minari dataset"),
    "from-minari": ("commands.transfer", "from_minari", "read a table from a Minari dataset"),
    "from-lerobot": ("commands.transfer", "from_lerobot", "read a table from a LeRobot dataset"),
    "inspect": ("log.inspect", "main", "report on the folder of a stopped server"),
}
_logger = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the replay server until it is asked to stop, inspect its log, or change its tables; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if (name := "".join(arguments[:1])) in _COMMANDS:
        module, function, _ = _COMMANDS[name]
        command = getattr(importlib.import_module(f"tidemill.services.replay.{module}"), function)
        return process.run(f"tidemill replay {name}", partial(_reaching, name, command, arguments[1:]))
    if list(arguments) in (["-h"], ["--help"]):
        print(_help())
        return 0
    if name and not name.startswith("-"):
        known = nearest(name, _COMMANDS) or f"; known: {', '.join(_COMMANDS)}"
        print(f"tidemill replay: unknown command {name!r}{known}", file=sys.stderr)
        return 2
    return process.run(_SERVICE, partial(_start, arguments))


def _help() -> str:
    """Return the help of a server on its own, on one screen."""
    options = [(f"{name} {value}", text) for name, (_, value, text) in _SHORT.items()]
    commands = [(name, text) for name, (_, _, text) in _COMMANDS.items()]
    lines = [
        "usage: tidemill replay [OPTIONS]",
        "       tidemill replay COMMAND --help",
        "",
        "Run a replay server until Ctrl-C or SIGTERM. Programs write steps to it and",
        "sample from it (docs/replay.md).",
        "",
        "options:",
        *(f"  {name:<22} {text}" for name, text in options),
        "",
        "commands:",
        *(f"  {name:<22} {text}" for name, text in commands),
        "",
        "All settings, given as options or by --config FILE.yaml:",
        "tidemill replay --help replay",
    ]
    return "\n".join(lines)


def _reaching(name: str, command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Return the exit code of a command that calls a server.

    Raises:
        Unavailable: The server does not answer.
    """
    try:
        return command(arguments)
    except Unavailable as error:
        asked = "is it running at this address?"
        if name != "tables" and not never_connected(str(error)):
            asked += " Is its disk full (`tidemill replay tables`)?"
        raise Unavailable(f"the replay service does not answer: {asked} ({error})") from error


def _start(arguments: Sequence[str]) -> int:
    """Run a server. If it was given short options, its errors name all settings that have one by it."""
    try:
        return _run(arguments)
    except TidemillError as error:
        message = _named_as_given(str(error), arguments)
        if message == str(error):
            raise
        raise type(error)(message, reason=error.reason) from error


def _run(arguments: Sequence[str]) -> int:
    description = "Store steps, and serve samples of them to learners. `tidemill replay --help` has the usual options."
    config = load(ReplayConfig, _long(arguments), prog=f"tidemill {_SERVICE}", description=description)
    configure_logging(_SERVICE, level=config.log.level, json=config.log.json)
    shard = f"-{config.replay.shard}" if config.replay.shards > 1 else ""
    identify(config.run.name, f"{_SERVICE}{shard}")
    start_traces(config.log, config.run, f"{_SERVICE}{shard}")
    asyncio.run(_serve(config))
    return 0


def _long(arguments: Sequence[str]) -> list[str]:
    """Return the command line with its short options in full."""
    words = (word.partition("=") for word in arguments)
    long = {name: f"--replay.{setting.replace('_', '-')}" for name, (setting, _, _) in _SHORT.items()}
    return [long.get(name, name) + equals + value for name, equals, value in words]


def _named_as_given(message: str, arguments: Sequence[str]) -> str:
    """Return a message with options in place of settings if the command line has a short one."""
    if not {word.partition("=")[0] for word in arguments} & _SHORT.keys():
        return message
    settings = {option: setting for option, (setting, _, _) in _SHORT.items()}
    for option, setting in (settings | {"--replay.server.insecure": "server.insecure"}).items():
        message = re.sub(rf"(?<![\w.-])(?:--)?(?:replay\.)?{re.escape(setting)}(?![\w.])", option, message)
    return message


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
