"""The replay server's process: puts its objects together, serves, and stops on SIGTERM."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import secrets
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.ma  # np.unique would do so when first called, and every caller would wait for it
import structlog
from prometheus_client import REGISTRY

from tidemill import kernel, process
from tidemill.config.load import load
from tidemill.config.sections import ReplayConfig
from tidemill.config.services import ReplaySettings
from tidemill.rpc.server import RpcServer
from tidemill.services.replay.admission import AdmissionQueue
from tidemill.services.replay.chunks.logged_blocks import LoggedBlocks
from tidemill.services.replay.log.log import ReplayLog
from tidemill.services.replay.log.open import OpenedLog, open_replay_log
from tidemill.services.replay.memory import MemoryBudget, default_budget_bytes
from tidemill.services.replay.metrics import EXPECTED, ReplayCollector
from tidemill.services.replay.servicer import ReplayServicer
from tidemill.services.replay.state import ReplayState
from tidemill.services.replay.streams import EPOCH_RANDOM_BITS, first_epoch
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
    server = RpcServer(_SERVICE, settings.server)
    recovered = _recover(settings)
    replay = recovered.replay if recovered is not None else _empty(settings, _budget(settings))
    admission = AdmissionQueue(time.monotonic)
    log = ReplayLog(recovered, settings.storage, admission.changed) if recovered is not None else None
    EXPECTED.set(settings.shards)
    REGISTRY.register(ReplayCollector(replay, admission, log))
    servicer = ReplayServicer(
        replay,
        admission,
        settings.server.max_message_bytes,
        log,
        max_request_bytes=settings.server.request_limit_bytes,
    )
    servicer.add_to(server)
    if settings.storage.folder:
        watch_disk(Path(settings.storage.folder))
    metrics_address = serve_metrics(settings.server, server.health)
    stop = process.stop_requested()
    _logger.info("serving", address=await server.start(), metrics=metrics_address, uses_kernel=kernel.available)
    await server.set_serving(True)
    await _until_stopped(stop, log)
    await server.set_serving(False)
    servicer.close()  # or streams would use up the grace period
    await server.stop()
    if log is not None:
        await log.close()
    _logger.info("stopped")


def located(config: ReplayConfig) -> ReplaySettings:
    """Return the settings with the folder of the log that is meant for this run."""
    names = {"{run}": str(config.run.folder), "{shard}": str(config.replay.shard)}
    folder = config.replay.storage.folder
    for placeholder, name in names.items():
        folder = folder.replace(placeholder, name)
    return dataclasses.replace(config.replay, storage=dataclasses.replace(config.replay.storage, folder=folder))


async def _until_stopped(stop: asyncio.Task[bool], log: ReplayLog | None) -> None:
    """Wait for the signal to stop. FatalError: the log cannot be written any more."""
    waited: set[asyncio.Future[Any]] = {stop} if log is None else {stop, log.failed}
    done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()


def _budget(settings: ReplaySettings) -> MemoryBudget:
    whole = settings.max_memory_mib * 2**20 or default_budget_bytes(settings.shards)
    return MemoryBudget(whole // 2)


def _empty(settings: ReplaySettings, budget: MemoryBudget) -> ReplayState:
    return ReplayState(
        max_tables=settings.max_tables,
        max_streams=settings.max_streams,
        first_epoch=first_epoch(time.time_ns() // 1_000_000, secrets.randbits(EPOCH_RANDOM_BITS)),
        rng=np.random.default_rng(),
        budget=budget,
        make_blocks=partial(LoggedBlocks, budget=budget) if settings.storage.folder else None,
    )


def _recover(settings: ReplaySettings) -> OpenedLog | None:
    """Restore the tables of the previous run; None if they are kept in memory only."""
    storage = settings.storage
    if not storage.folder:
        return None
    recovered = open_replay_log(Path(storage.folder), _budget(settings), partial(_empty, settings))
    corruption = recovered.corruption
    is_whole = not (corruption.is_any or recovered.dropped)
    report = _logger.info if is_whole else _logger.warning
    report(
        "restored" if recovered.segment_sizes else "new log",
        folder=storage.folder,
        tables=len(recovered.replay.tables),
        items=recovered.items,
        env_steps=recovered.replay.env_steps,
        took_s=round(recovered.took_s, 3),
        torn_bytes=corruption.torn_bytes,
        corrupt_records=corruption.records,
        missing_records=corruption.missing_records,
        missing_segments=len(corruption.missing_segments),
        dropped_items=recovered.dropped,
        **({} if is_whole else {"details": f"stop this service and run: tidemill replay inspect {storage.folder}"}),
    )
    return recovered


if __name__ == "__main__":
    sys.exit(main())
