"""The parameter server's process: puts its objects together, serves, and stops on SIGTERM."""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Sequence
from functools import partial

import structlog

from tidemill import process
from tidemill.config.load import load
from tidemill.config.sections import ParamServerConfig
from tidemill.errors import FatalError
from tidemill.rpc.server import RpcServer
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics, watch_disk
from tidemill.services.paramserver.metrics import Metrics
from tidemill.services.paramserver.servicer import ParamServicer
from tidemill.services.paramserver.version_notifier import VersionNotifier
from tidemill.services.paramserver.version_store import VersionStore
from tidemill.services.paramserver.writer import StoreWriter, lost_folder

_SERVICE = "paramserver"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parameter server until it is asked to stop; return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return process.run(_SERVICE, partial(_start, arguments))


def _start(arguments: Sequence[str]) -> int:
    description = "Store every published version of the parameters, and serve them to actors and evaluators."
    config = load(ParamServerConfig, arguments, prog=f"tidemill {_SERVICE}", description=description)
    configure_logging(_SERVICE, level=config.log.level, json=config.log.json)
    identify(config.run.name, _SERVICE)
    asyncio.run(_serve(config))
    return 0


async def _serve(config: ParamServerConfig) -> None:
    settings = config.paramserver
    server = RpcServer(_SERVICE, settings.server)
    store = VersionStore(
        config.run.params_folder,
        keep_versions=settings.keep_versions,
        max_blob_bytes=settings.max_blob_bytes,
        max_tags=settings.max_tags,
        max_fetch_bytes=settings.max_fetch_bytes,
    )
    notifier = VersionNotifier()
    writer = StoreWriter(store, notifier, clock=partial(datetime.datetime.now, datetime.UTC))
    metrics = Metrics(lambda: store.catalog)
    metrics.corrupt_versions.inc(store.corrupt_versions)
    servicer = ParamServicer(store, writer, notifier, metrics, max_fetch_bytes=settings.max_fetch_bytes)
    servicer.add_to(server)
    watch_disk(config.run.folder)
    metrics_address = serve_metrics(settings.server, server.health)
    log = structlog.get_logger()
    stop = process.stop_requested()
    log.info("serving", address=await server.start(), metrics=metrics_address)
    await server.set_serving(True)
    lost = asyncio.create_task(writer.lost.wait())
    await asyncio.wait((stop, lost), return_when=asyncio.FIRST_COMPLETED)
    await server.set_serving(False)
    notifier.close()  # or waiting calls would use up the grace period
    await server.stop()
    writer.close()
    store.close()
    if lost.done():
        raise FatalError(lost_folder(store.folder))
    log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
