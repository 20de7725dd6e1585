"""Several learners that train together: `python -m tidemill.services.learner.torchrun RANKS RESTARTS ...`.

RANKS is a number, or `gpu`: one for each GPU of the machine. On several machines torchrun's own options come first, as
in `python -m tidemill.services.learner.torchrun --nnodes=2 ... -m tidemill.services.learner ...`.

It does what `torchrun` does (for one machine with `--nproc-per-node=RANKS --max-restarts=RESTARTS`). Besides it ends
with its launcher, leaves as a learner without torchrun does, explains a failure in one line, listens on loopback alone
if there is one machine, and joins other machines again when the one where they meet was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import parse_args
from torch.distributed.run import run as run_ranks

from tidemill import gpus, linux
from tidemill.atomic_files import write_atomically
from tidemill.config.load import load
from tidemill.config.run import RANK_FAILURE
from tidemill.config.sections import LearnerConfig
from tidemill.errors import ConfigError, FatalError, GpuLost, GpuUnusable, Unavailable
from tidemill.params.run_end import HAS_DIVERGED, IS_OVER
from tidemill.parent import PARENT_VARIABLE
from tidemill.process import GPU_LOST, run, signal_event
from tidemill.programs.fork_client import ForkClient, ForkedPopen, given_client
from tidemill.programs.fork_server import Order
from tidemill.programs.idle import INTERRUPTED, exit_or_idle
from tidemill.services.learner.distributed.learner_group import LEAVE_S, RankInfo
from tidemill.services.learner.distributed.loopback_rendezvous import BACKEND, register
from tidemill.services.learner.ended import ENDED_LEARNER, marks

_LEARNER = "tidemill.services.learner"
_CHILD = "tidemill.programs.child"  # ranks are started through it, so that they end with torchrun from the start
_COMMAND = (sys.executable, "-u", "-m", _CHILD)
_REJOINS = "TIDEMILL_REJOINS"  # how often this process has rejoined the other machines
_PAUSE_S = 1.0  # before a rejoin
_UNASKED_S = 30  # for ranks to end whose other machines are lost
_REFUSED = 2  # exit code of a rank that refuses its settings or files

_signalled: list[SignalException] = []
"""Keeps, by its traceback, the rendezvous: torch's heartbeat would stop, and join, itself if it held it last."""

_closed_with: dict[int, int | None] = {}
"""Exit codes of the ranks of this machine once torchrun has closed them, by rank; None: it could not."""


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks, start all of them again when one fails, and wait for their end; return the exit code."""

    def body() -> int:
        words, environ = sys.argv[1:] if argv is None else list(argv), dict(os.environ)
        one_machine = not (words and words[0].startswith("-"))
        if {"-h", "--help"} & set(words[:1]):
            print(__doc__)  # torch's own help follows
        options = parse_args([*_options_of_one_machine(words), *words[2:]] if one_machine else words)
        config, program = _config_of(options), (ENDED_LEARNER, *options.training_script_args)
        # Machines that have ended the run do not come to meet this one, whose GPUs may be gone by now.
        is_over, has_diverged = marks(config)
        if is_over:
            print(f"learner: {HAS_DIVERGED if has_diverged else IS_OVER}", file=sys.stderr)
            return exit_or_idle(program, config.run, is_over=True, has_diverged=has_diverged)
        with gpus.retried_if_lost(config.run.folder):
            options.nproc_per_node = rank_count(options.nproc_per_node, least=int(one_machine))
        if one_machine:
            RankInfo(0, int(options.nproc_per_node)).local_batch_size(config)
        options.training_script, options.training_script_args = _CHILD, [_LEARNER, *options.training_script_args]
        _prepare_environment(config, one_machine=one_machine)
        interrupted = INTERRUPTED if config.run.supervisor == "job" else 0
        if (forks := given_client()) is not None:
            fork_ranks(forks)
        _act_on_failures(config.run.folder / RANK_FAILURE if one_machine else None)
        for number in (signal.SIGTERM, signal.SIGINT):
            arguments = (signal_event(number), interrupted, forks)
            threading.Thread(target=_end_without_ranks, args=arguments, daemon=True).start()
        is_over = run_agent(options, words, environ, forks)
        if not is_over and config.run.supervisor != "engine":
            check_saved()
        has_diverged = is_over and marks(config)[1]
        return exit_or_idle(program, config.run, is_over=is_over, has_diverged=has_diverged)

    return run("learner", body)


def rank_count(wanted: str, *, least: int = 1) -> str:
    """Return the number of ranks to start on this machine: as given, or with `gpu` one per GPU, at least `least`.

    Raises:
        GpuUnusable: torch can use none of the GPUs: each rank would train on the CPU. Or there is none, with `least` 0.
    """
    if wanted != "gpu":
        return wanted
    what, instead = "one learner for each GPU is wanted", "give their number and --learner.device cpu"
    gpus.check_usable(what, instead)
    if (count := max(gpus.count(), least)) == 0:
        raise GpuUnusable(f"{what}, but torch finds no GPU here; {instead}")
    return str(count)


def _options_of_one_machine(words: Sequence[str]) -> list[str]:
    wanted, restarts = (*words, "", "")[:2]
    if not restarts.isdecimal() or not (wanted == "gpu" or (wanted.isdecimal() and int(wanted))):
        raise ConfigError(
            f"the command line begins with {' '.join(words[:2])!r}, allowed: the numbers of learners (or gpu) and "
            "restarts, as in `4 3 --config FILE`, or torchrun's own options"
        )
    ranks = (f"--nproc-per-node={wanted}", f"--max-restarts={restarts}")
    return [f"--rdzv-backend={BACKEND}", "--local-addr=127.0.0.1", *ranks, "-m", _LEARNER]


def _config_of(options: argparse.Namespace) -> LearnerConfig:
    """Return the settings that the ranks will read, so that a wrong one is found before they start."""
    if not options.module or options.training_script != _LEARNER:
        raise ConfigError(f"torchrun's options end with `-m {_LEARNER}`, not with {options.training_script!r}")
    return load(LearnerConfig, options.training_script_args, prog="tidemill learner", description="")


def _prepare_environment(config: LearnerConfig, *, one_machine: bool) -> None:
    """Set what the ranks inherit: they end with this process, and those of one machine use loopback only."""
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    os.environ["PYTHONSAFEPATH"] = "1"  # no file of the working directory shadows a module
    os.environ.setdefault("OMP_NUM_THREADS", str(max(config.learner.threads, 1)))
    # An agent that reuses its store does not announce it to machines that join later.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # Who asks the ranks to end bounds their time to save; torchrun would kill them after 30 s.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "3600")
    if one_machine:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, linux.LOOPBACK)


def run_agent(options: argparse.Namespace, words: list[str], environ: dict[str, str], forks: ForkClient | None) -> bool:
    """Run the ranks to their end; return whether they ended by themselves."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup has it; torch would hear it all the same
        options.signals_to_handle = "SIGTERM,SIGINT,SIGQUIT"
    register()
    _bound_failures()
    logging.getLogger(SimpleElasticAgent.__module__).addFilter(_is_news)
    try:
        try:
            run_ranks(options)
        except (DistError, RendezvousError) as error:
            if forks is not None:
                forks.close()  # it would outlast this program, unknown to the next
            _rejoin(error, options.max_restarts, words, environ)
    except SignalException as signalled:  # the ranks were signalled and have ended
        _signalled.append(signalled)
        return False
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        refused = [place for place, each in error.failures.items() if each.exitcode == _REFUSED]
        if refused:
            raise ConfigError(f"rank {min(refused)} refused its settings") from error
        if lost := [place for place, each in error.failures.items() if each.exitcode == GPU_LOST]:
            raise GpuLost(f"rank {min(lost)} has lost its GPU; see its log") from error
        raise FatalError(
            f"rank {rank} ended with exit code {failure.exitcode} and there are no restarts left; see its log"
        ) from error
    return True


def check_saved() -> None:
    """Raise FatalError if the first rank, which saves, failed or was killed when torchrun asked its ranks to end."""
    code = _closed_with.get(0, 0)
    if code not in (0, -signal.SIGTERM):  # a signal that comes before it trains
        raise FatalError(f"rank 0 was asked to end and ended with exit code {code}; see its log")


def _bound_failures() -> None:
    """Have torchrun kill ranks `LEAVE_S` after another one failed; it would wait 30 s for those that are stuck.

    Ranks that nobody has asked to end, whose other machines are lost, have those 30 s: they save nothing. It also keeps
    their exit codes.
    """
    close: Any = SubprocessContext._close

    def close_soon(ranks: SubprocessContext, death_sig: signal.Signals, timeout: int = 30) -> None:
        is_asked = isinstance(sys.exception(), SignalException)
        limit_s = timeout if is_asked else min(timeout, _UNASKED_S)
        close(ranks, death_sig=death_sig, timeout=LEAVE_S if ranks._failures else limit_s)
        _closed_with.clear()  # the machine may have had other ranks
        for place, each in ranks.subprocess_handlers.items():
            _closed_with[int(ranks.envs[place]["RANK"])] = each.proc.poll()

    SubprocessContext._close = close_soon  # type: ignore[assignment, method-assign] # torch has no setting for it


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for the traceback that the store of several machines leaves when it ends before all heard of it.

    The ranks have ended by then, and it changes nothing.
    """
    return not str(record.msg).startswith("Error waiting on exit barrier")


def _act_on_failures(file: Path | None) -> None:
    """Have torchrun end, whatever restarts are left, when a rank refuses its settings: it would refuse them again.

    So it does when a rank has lost its GPU, which may be back later, or on another machine, but not at once.

    It also writes how a rank failed to `file`, if given, for a launcher, which sees one process that continues.
    """
    monitor: Any = LocalElasticAgent._monitor_workers

    def monitor_and_act(agent: LocalElasticAgent, ranks: WorkerGroup) -> RunResult:
        result: RunResult = monitor(agent, ranks)
        if any(failure.exitcode in (_REFUSED, GPU_LOST) for failure in result.failures.values()):
            agent._remaining_restarts = 0
        if file is not None and result.failures:
            rank, failure = min(result.failures.items(), key=lambda item: item[1].timestamp)
            with contextlib.suppress(OSError):  # training does not depend on being told of
                write_atomically(file, f"lost rank {rank}, which ended with exit code {failure.exitcode}\n", sync=False)
        return result

    LocalElasticAgent._monitor_workers = monitor_and_act  # type: ignore[method-assign] # torch has no setting for it


def _end_without_ranks(asked: threading.Event, exit_code: int, forks: ForkClient | None) -> None:
    """End on a signal while no rank runs: torch ignores signals while it waits for other machines."""
    asked.wait()
    if forks is not None:
        forks.close()  # the only child that is not a rank
    if not linux.has_children():
        os._exit(exit_code)


def _rejoin(error: Exception, limit: int, words: list[str], environ: dict[str, str]) -> None:
    """Replace this process by one without the state of the last rendezvous; raises Unavailable after `limit` times."""
    times = int(environ.get(_REJOINS, "0")) + 1
    why = str(error.__cause__ or error).partition("\n")[0]
    if times > limit:
        raise Unavailable(f"the other machines are lost, and there are no restarts left: {why}") from error
    print(f"learner: lost the other machines, rejoining ({times} of {limit}): {why}", file=sys.stderr)
    time.sleep(_PAUSE_S)
    command = [sys.executable, "-P", "-m", "tidemill.services.learner.torchrun", *words]
    os.execve(sys.executable, command, environ | {_REJOINS: str(times)})


def fork_ranks(forks: ForkClient) -> None:
    """Fork what torchrun would start as `python -u -m tidemill.programs.child MODULE ...`, if it can (ADR 0050).

    A rank whose output torchrun keeps apart, or that it binds to a processor, is started as a program.
    """
    start: Any = SubprocessHandler._popen

    def popen(
        handler: SubprocessHandler, args: Sequence[str], env: dict[str, str]
    ) -> subprocess.Popen[bytes] | ForkedPopen:
        count, is_apart = len(_COMMAND), handler._stdout is not None or handler._stderr is not None
        if tuple(args[:count]) != _COMMAND or is_apart:
            started: subprocess.Popen[bytes] = start(handler, args, env)
            return started
        with os.fdopen(os.dup(2), "wb") as output:
            forked = forks.fork(Order(args[count], args[count + 1 :], env), output)
        return forked or start(handler, args, env)

    SubprocessHandler._popen = popen  # type: ignore[assignment, method-assign] # torch has no other place for it


if __name__ == "__main__":
    sys.exit(main())
