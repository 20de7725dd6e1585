"""`tidemill train` and `tidemill resume`: settings, folder, addresses; then the cluster runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

from tidemill import formats, linux
from tidemill.config.addresses import check_addresses, check_shards
from tidemill.config.fixed import check_fixed, fixed_settings
from tidemill.config.given import given_by
from tidemill.config.load import load, read_document, read_settings
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError, TidemillError, described
from tidemill.installation import command_name
from tidemill.learner.status import LearnerState, LearnerStatus
from tidemill.loggers.interface import check_logger
from tidemill.params.run_end import read_divergence
from tidemill.process import survive_without_output
from tidemill.programs.fork_client import ForkClient
from tidemill.scores import read_scores
from tidemill.services.launcher.commands.summary import describe_restored, summarise
from tidemill.services.launcher.page.run_document import with_status_page
from tidemill.services.launcher.run.continuation import check_limits, trained_settings
from tidemill.services.launcher.run.env_check import check_environment
from tidemill.services.launcher.run.folder import (
    RunFolder,
    check_free,
    check_has_begun,
    check_names_run,
    is_running,
    with_run_paths,
)
from tidemill.services.launcher.run.free_ports import check_free_ports
from tidemill.services.launcher.run.loggers import LoggerProcesses
from tidemill.services.launcher.run.paths import (
    check_finds_log,
    check_keeps_shards,
    check_new_log,
    check_owns_log,
    make_socket_folder,
    remove_socket_folder,
    socket_folder_of,
    with_absolute_log,
    with_addresses,
    with_beginning,
    with_storage,
)
from tidemill.services.launcher.run.shared_table import check_new_table, create_alone
from tidemill.services.launcher.supervise.child import DEFAULTS
from tidemill.services.launcher.supervise.runner import ClusterRunner
from tidemill.services.launcher.supervise.service_spec import cluster_specs
from tidemill.services.launcher.supervise.supervisor import Outcome, Supervisor
from tidemill.services.launcher.view.curves import ClusterCurves
from tidemill.services.launcher.view.poller import StatusPoller
from tidemill.services.launcher.view.processes import SupervisedProcesses
from tidemill.services.launcher.view.terminal import View, make_view

_TRAIN = """Run a whole cluster on this machine until run.target_return, a limit (run.max_*) or Ctrl-C. ROOT/NAME then
holds scores, curve, video, parameters and logs. --fresh moves an earlier run of this name to NAME-1."""

_RESUME = """Continue the run in folder RUN, e.g. runs/quickstart, from where it stopped. Its config.yaml is read;
options change settings from here on."""

_WHAT = """tidemill train: nothing to train given. Try one of these:
  {command} train --config quickstart
      a preset; `{command} configs` lists all
  {command} train --env.id CartPole-v1 --agent.algorithm dqn
      an environment of gymnasium, or `module:Id` of your own
  {command} train --config mine.yaml
      a file of settings; `{command} configs quickstart > mine.yaml` starts one"""


def train(argv: Sequence[str]) -> int:
    """Start a new run; return the exit code."""
    if not argv:
        print(_WHAT.format(command=command_name()), file=sys.stderr)
        return 2
    arguments = list(argv)
    fresh = "--fresh" in arguments
    if fresh:
        arguments.remove("--fresh")
    config = with_absolute_log(load(RunConfig, arguments, prog="tidemill train", description=_TRAIN))
    check_addresses(config, given_by(arguments))
    check_free(config.run.folder, fresh=fresh)
    check_new_log(config, fresh=fresh)
    check_free_ports(config)
    for notice in filter(None, (check_new_table(config), describe_uncounted(config))):
        print(f"note: {notice}", file=sys.stderr, flush=True)
    with _fork_client(config) as forks, LoggerProcesses() as loggers:
        check_settings(config, forks)
        with create_alone(config, fresh=fresh) as folder:
            code = run(config, folder, loggers, forks)
        return _ended(code, loggers)


def describe_uncounted(config: RunConfig) -> str:
    """Return the settings that let evaluations wait for decisions that a run does not make; empty if there are none."""
    settings = config.evaluator
    counts = {"start_env_steps": settings.start_env_steps, "every_env_steps": settings.every_env_steps}
    named = " and ".join(f"evaluator.{name} is {value}" for name, value in counts.items() if value)
    if not named or config.launcher.actors or config.inference.simulators:
        return ""
    return (
        f"{named}, and this run starts no actors. Imported steps do not count as decisions: unless actors elsewhere "
        "make some, the run is evaluated only at its end, and run.target_return cannot end it; 0 evaluates "
        "it from the start"
    )


def resume(argv: Sequence[str]) -> int:
    """Continue the run whose folder is the first argument; return the exit code."""
    if not argv or argv[0].startswith("-"):
        load(RunConfig, list(argv), prog="tidemill resume RUN", description=_RESUME)  # --help ends here
        raise ConfigError("which run? tidemill resume RUN, for example: tidemill resume runs/quickstart")
    path = Path(argv[0])
    check_has_begun(path)
    file = path / "config.yaml"
    config = load(RunConfig, argv[1:], prog=f"tidemill resume {path}", description=_RESUME, file=file)
    check_addresses(config, given_by(argv[1:]))
    before = read_settings(RunConfig, file)
    check_names_run(before, config, path)
    check_finds_log(before, with_run_paths(config, path))
    config = with_run_paths(with_absolute_log(config), path)
    check_keeps_shards(before, config)
    check_owns_log(before, config)
    check_fixed(fixed_settings(before), config)
    check_limits(before, config, path)
    with _fork_client(config) as forks, LoggerProcesses() as loggers:
        check_settings(config, forks, trained_settings(before, path))
        with RunFolder.open(path) as folder:
            check_free_ports(config)  # now that it is known not to run, and so not to listen itself
            remove_leftover_sockets(folder)
            folder.write_config(config)
            folder.set_end_aside()
            if config.launcher.view not in ("json", "quiet"):
                print("\n".join(describe_restored(folder.path, config, before)), flush=True)
            code = run(config, folder, loggers, forks)
        return _ended(code, loggers)


def run(config: RunConfig, folder: RunFolder, loggers: LoggerProcesses, forks: ForkClient | None = None) -> int:
    """Run the cluster of a locked folder until its end; return the exit code."""
    survive_without_output()  # nothing that a person looks at may end the run
    scores = read_scores(folder.path / "scores.csv")
    view = make_view(config, earlier=len(scores))
    sockets = make_socket_folder()
    try:
        loggers.start(config.launcher.loggers, folder)
        # services may run code that changes the working directory, as an environment can
        config = with_beginning(with_run_paths(with_storage(with_addresses(config, sockets)), folder.path))
        folder.write_cluster(config)
        specs = cluster_specs(config, folder.cluster_file, sockets)
        if config.inference.simulators:
            view.event(f"simulators: {config.inference.server.address} (docs/tutorials/simulators.md)")
        with with_status_page(config, folder.path, view) as reported:
            outcome, learner = _run_cluster(config, Supervisor(specs, config.launcher), folder, reported, forks)
    finally:
        view.close()
        remove_socket_folder(sockets)
    result = formats.read_json(folder.path / "result.json", formats.RESULT)
    view.end(folder.path, outcome.exit_code, result, summarise(folder.path, outcome, learner))
    return outcome.exit_code


def _ended(code: int, loggers: LoggerProcesses) -> int:
    """Wait for the loggers, now that the folder is unlocked; return the run's exit code, which they do not change."""
    for line in loggers.wait():
        print(line, file=sys.stderr, flush=True)
    return code


def _fork_client(config: RunConfig) -> AbstractContextManager[ForkClient | None]:
    """Start what services are forked from, while settings are checked; the environment is tried there, too."""
    forks = config.launcher.fork_services and linux.CAN_FORK
    return closing(ForkClient(DEFAULTS | os.environ)) if forks else nullcontext()


def check_settings(
    config: RunConfig, forks: ForkClient | None, before: RunConfig | None = None, *, any_learners: bool = False
) -> None:
    """Raise a `ConfigError` for what can be known to be wrong before anything is started or written.

    Args:
        config: Of the run.
        forks: What processes are forked from, if there is such a server.
        before: What a run that has trained was started with.
        any_learners: Whether something other than `launcher.learners` decides how many learners share a batch.
    """
    check_shards(config)
    if before is None or before.evaluator.seed != config.evaluator.seed:
        config.evaluator.check_seed()
    for name in config.launcher.loggers:
        check_logger("launcher.loggers", name)
    if notice := check_environment(config, forks, before, any_learners=any_learners):
        print(f"note: {notice}", file=sys.stderr, flush=True)


def _run_cluster(
    config: RunConfig, supervisor: Supervisor, folder: RunFolder, view: View, forks: ForkClient | None
) -> tuple[Outcome, LearnerStatus | None]:
    """Return the outcome of the run and the last status of its learner."""
    runner = ClusterRunner(supervisor, folder, view, forks)
    poller = StatusPoller(config, folder.path, SupervisedProcesses(supervisor, runner.pid_of))
    every_s = config.learner.tensorboard_every_s
    with (
        closing(poller),
        closing(ClusterCurves(folder.path, config.table.name, every_s)) as curves,
    ):
        outcome = asyncio.run(run_with_view(runner, poller, view, curves, folder, config.launcher.view_every_s))
        result = formats.read_json(folder.path / "result.json", formats.RESULT)
        solved = result.get("solved")  # decided before it diverged
        said = read_divergence(folder.path) or describe_failed_learner(
            supervisor, poller.learner, result, folder.read_rank_failure()
        )
        if said and not outcome.exit_code and not solved:
            outcome = Outcome(1, said)
        return outcome, poller.learner


def describe_failed_learner(
    supervisor: Supervisor, learner: LearnerStatus | None, result: Mapping[str, Any], rank_failure: str = ""
) -> str:
    """Return the failure of a learner that never made an update, or was down when time was up; empty without one.

    A run that was stopped is not asked: its user may have stopped it for that.

    Args:
        supervisor: Of the run, which has ended.
        learner: The last status of its learner.
        result: The content of its result.json; empty without one.
        rank_failure: How one of several learners failed, whose restarts the supervisor does not see.
    """
    failed = supervisor.failed_learner
    why = failed.reason if failed is not None else rank_failure
    if not why or supervisor.stop_was_requested:
        return ""
    if supervisor.learner_was_down:  # at another limit it may have been killed once it had published all
        is_early = "max_wall_s" in result.get("reason", "")
        return f"the learner {why}, and the run ended before it was back" if is_early else ""
    updates = [result["learner_steps"]] if "learner_steps" in result else []  # also those that no status told
    if learner is not None and learner.state is not LearnerState.STARTING:  # which has not restored its updates
        updates.append(learner.learner_steps)
    return f"the learner {why}, and never made an update" if updates and not any(updates) else ""


async def run_with_view(
    runner: ClusterRunner, poller: StatusPoller, view: View, curves: ClusterCurves, folder: RunFolder, every_s: float
) -> Outcome:
    """Run the cluster to its end with the view updated every `every_s` seconds; return how it ended."""
    has_failed, reached = False, 0

    async def show() -> None:
        nonlocal has_failed
        try:
            await look()
        except Exception as error:  # a run does not depend on being watched
            if not has_failed:
                has_failed = True
                view.event(f"the view failed, the run continues: {described(error)}")

    async def look() -> None:
        nonlocal reached
        view.show(status := await asyncio.to_thread(poller.poll))
        await asyncio.to_thread(curves.add, status)
        show_starts(folder, view)
        if (learner := status.counting) is not None:
            if learner.learner_steps < reached and not learner.restored:
                view.event("learner starts from scratch: it had not written a checkpoint (learner.checkpoint_every_s)")
            reached = learner.learner_steps

    async def update() -> None:
        while True:
            await show()
            await asyncio.sleep(every_s)

    updates = asyncio.create_task(update())
    try:
        return await runner.run()
    finally:
        updates.cancel()
        await asyncio.gather(updates, return_exceptions=True)
        await show()


def show_starts(folder: RunFolder, view: View) -> None:
    """Show the learner's failures and restored states from the folder: it may be gone before it could be asked."""
    if failure := folder.take_rank_failure():
        view.event(f"learner {failure}")
    if restored := folder.take_restored():
        view.event(f"learner restored {restored}")


def remove_leftover_sockets(folder: RunFolder) -> None:
    """Remove what a launcher left that was killed before it could."""
    with contextlib.suppress(TidemillError):  # it is not there, or empty after a loss of power
        document = read_document(folder.cluster_file)
        left, run = _sockets_of(document), document.get("run", {})
        # Another path is that of the run that this one was copied from, or this run's own before it was renamed.
        original = Path(run.get("root", ""), run.get("name", ""))
        may_be_copy = original != folder.path.resolve() and is_running(original)
        if may_be_copy and _sockets_of(read_document(original / folder.cluster_file.name)) == left:
            return
        if left:
            remove_socket_folder(left)


def _sockets_of(cluster: Mapping[str, Any]) -> Path | None:
    return socket_folder_of(str(cluster.get("evaluator", {}).get("server", {}).get("address", "")))
