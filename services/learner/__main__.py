"""One learner process: `python -m tidemill.services.learner --config FILE`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import structlog

from tidemill import kernel
from tidemill.config.load import load
from tidemill.config.sections import LearnerConfig
from tidemill.parent import die_with_parent
from tidemill.process import keep_freed_memory, leave, run, stop_event
from tidemill.programs.idle import exit_or_idle
from tidemill.programs.traces import start_traces
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.telemetry import configure_logging, identify, serve_metrics, watch_disk
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.services.learner.ended import ENDED_LEARNER, marks
from tidemill.services.learner.learner import Learner
from tidemill.services.learner.status.metrics import unregister_rank_0_metrics

_log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a learner until SIGTERM, `Stop` or one of the run's limits; return its exit code.

    Under torchrun it is one of several that train together.
    """

    def body() -> int:
        arguments = sys.argv[1:] if argv is None else argv
        about = "Train on sampled transitions and publish parameters."
        config = load(LearnerConfig, arguments, prog="tidemill learner", description=about)
        rank = RankInfo.from_env()
        if rank.machines > 1:
            die_with_parent()
        keep_freed_memory()
        name = "learner" if rank.is_first else f"learner-{rank.index}"
        configure_logging(name, level=config.log.level, json=config.log.json)
        identify(config.run.name, name)
        start_traces(config.log, config.run, name)
        watch_disk(config.run.folder)
        stop = stop_event()
        learner = Learner(config, stop, rank)
        if not rank.is_first:  # no one calls it: the first rank decides what it does
            unregister_rank_0_metrics()
            _log.info("listening", metrics=serve_metrics(config.learner.server, place=rank.local_index))
            learner.run(lambda _serving: None)
            return 0
        with BackgroundServer("learner", config.learner.server) as server:
            learner.add_to(server.server)
            address, metrics = server.start(), serve_metrics(config.learner.server, server.health)
            _log.info("listening", address=address, metrics=metrics, uses_kernel=kernel.available)
            learner.run(server.set_serving)
        if "WORLD_SIZE" in os.environ:  # under torchrun, which is then the process that ends or rests
            return 0
        is_over = not stop.is_set()
        has_diverged = is_over and marks(config)[1]
        return exit_or_idle((ENDED_LEARNER, *arguments), config.run, is_over=is_over, has_diverged=has_diverged)

    return run("learner", body)


if __name__ == "__main__":
    leave(main())
