"""The replay server's process: puts its objects together, serves, and stops on SIGTERM."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import structlog
from prometheus_client import REGISTRY

from services.replay.gate import Gate
from services.replay.metrics import ReplayCollector
from services.replay.replay import Replay
from services.replay.servicer import ReplayServicer
from tidemill import process
from tidemill.config.load import load
from tidemill.config.sections import ReplayConfig
from tidemill.rpc.server import RpcServer
from tidemill.telemetry import configure_logging, serve_metrics, watch_disk

_SERVICE = "replay"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the replay server until it is asked to stop; return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return process.run(_SERVICE, partial(_start, arguments))


def _start(arguments: Sequence[str]) -> int:
    description = "Stores the streams of actors and hands samples of them to learners."
    config = load(ReplayConfig, arguments, prog=f"tidemill {_SERVICE}", description=description)
    configure_logging(_SERVICE, level=config.log.level, json=config.log.json)
    asyncio.run(_serve(config))
    return 0


async def _serve(config: ReplayConfig) -> None:
    settings = config.replay
    server = RpcServer(_SERVICE, settings.server)
    replay = Replay(
        max_tables=settings.max_tables,
        max_streams=settings.max_streams,
        first_epoch=time.time_ns() // 1_000_000,  # above every epoch of an earlier life, which is forgotten
        rng=np.random.default_rng(),
    )
    gate = Gate(time.monotonic)
    REGISTRY.register(ReplayCollector(replay, gate))
    servicer = ReplayServicer(replay, gate, settings.server.max_message_bytes)
    servicer.add_to(server)
    watch_disk(config.run.folder)
    metrics_address = serve_metrics(settings.server)
    log = structlog.get_logger()
    log.info("serving", address=await server.start(), metrics=metrics_address)
    await server.set_serving(True)
    await process.stop_requested()
    await server.set_serving(False)
    servicer.close()  # or streams would use up the grace period
    await server.stop()
    log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
