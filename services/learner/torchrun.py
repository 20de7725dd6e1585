"""Several learners of one machine that train together: `python -m services.learner.torchrun RANKS RESTARTS ...`.

RANKS is a number, or `gpu`: one for each GPU of the machine.

It does what `torchrun --standalone --nproc-per-node=RANKS --max-restarts=RESTARTS -m services.learner ...` does, and
besides listens on loopback alone, ends with its launcher, leaves as a learner without torchrun does, and explains a
failure in one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args
from torch.distributed.run import run as run_ranks

from services.learner.one_box import BACKEND, register
from services.learner.ranks import Place
from tidemill.config.load import load
from tidemill.config.sections import LearnerConfig
from tidemill.errors import ConfigError, FatalError
from tidemill.process import PARENT_VARIABLE, run
from tidemill.rest import leave

_LOOPBACK = "lo"


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks, start all of them again when one fails, and wait for their end; return the exit code."""

    def body() -> int:
        wanted, restarts, *arguments = sys.argv[1:] if argv is None else argv
        ranks = rank_count(wanted)
        config = load(LearnerConfig, arguments, prog="tidemill learner", description="")
        Place(0, ranks).share_of(config.agent.batch_size)
        _prepare_environment(config)
        options = [f"--rdzv-backend={BACKEND}", "--local-addr=127.0.0.1"]
        options += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        is_over = _run([*options, "-m", "services.learner", *arguments])
        return leave("learner", config.run, config.learner.server, is_over=is_over)

    return run("learner", body)


def rank_count(wanted: str) -> int:
    """Return how many ranks to start: a number, or with `gpu` as many as there are GPUs, at least 1."""
    return max(torch.cuda.device_count(), 1) if wanted == "gpu" else int(wanted)


def _prepare_environment(config: LearnerConfig) -> None:
    """Set what the ranks inherit: they end with this process, and talk over the loopback interface alone."""
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(config.learner.threads, 1)))
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, _LOOPBACK)


def _run(arguments: list[str]) -> bool:
    """Run the ranks to their end; return whether they came to it by themselves."""
    register()
    try:
        run_ranks(parse_args(arguments))
    except SignalException:  # the ranks were told, and have ended
        return False
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == 2:
            raise ConfigError(f"rank {rank} refused its settings") from error
        raise FatalError(f"rank {rank} ended with {failure.exitcode} and there are no restarts left") from error
    return True


if __name__ == "__main__":
    sys.exit(main())
