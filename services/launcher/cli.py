"""The `tidemill` command: finds the subcommand and passes it the rest of the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill import process
from tidemill.config.check import nearest

Command = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Entry:
    """One line of `tidemill --help`.

    Attributes:
        summary: What it does, one line.
        load: Imports the command; called only when it is the one that was asked for.
    """

    summary: str
    load: Callable[[], Command]


def _train() -> Command:
    from tidemill.services.launcher.commands.train import train

    return train


def _resume() -> Command:
    from tidemill.services.launcher.commands.train import resume

    return resume


def _check() -> Command:
    from tidemill.services.launcher.commands.check import check

    return check


def _status() -> Command:
    from tidemill.services.launcher.commands.control import status

    return status


def _ctl() -> Command:
    from tidemill.services.launcher.commands.control import ctl

    return ctl


def _page() -> Command:
    from tidemill.services.launcher.commands.page import page

    return page


def _export() -> Command:
    from tidemill.services.launcher.commands.export import export

    return export


def _plot() -> Command:
    from tidemill.services.launcher.commands.plot import plot

    return plot


def _sweep() -> Command:
    from tidemill.services.launcher.commands.sweep import sweep

    return sweep


def _log() -> Command:
    from tidemill.services.launcher.commands.log import log

    return log


def _configs() -> Command:
    from tidemill.services.launcher.commands.configs import configs

    return configs


def _completion() -> Command:
    from tidemill.services.launcher.commands.completion import completion

    return completion


def _certs() -> Command:
    from tidemill.services.launcher.commands.certs import certs

    return certs


def _doctor() -> Command:
    from tidemill.services.launcher.commands.doctor import doctor

    return doctor


def _plan() -> Command:
    from tidemill.services.launcher.commands.plan import plan

    return plan


def _module(name: str) -> Callable[[], Command]:
    """Return the loader of a command that another service's module runs in place of this process."""
    return lambda: exec_module(name)


def exec_module(module: str) -> Command:
    """Return a command that becomes `python -P -m MODULE ARGUMENTS`.

    The module is started by its name because no service imports another; the process id, the terminal and the
    signals stay the same, so `tidemill actor` behaves as `python -m tidemill.services.actor`.
    """

    def command(arguments: Sequence[str]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])

    return command


COMMANDS: dict[str, Entry] = {
    "train": Entry("run a whole cluster on this machine", _train),
    "resume": Entry("continue a run from where it stopped", _resume),
    "evaluate": Entry(
        "evaluate the trained policy of a run or of an exported folder", _module("tidemill.services.evaluator.offline")
    ),
    "plot": Entry("draw the learning curves of runs, and compare them", _plot),
    "export": Entry("write the trained policy of a run into a folder to pass on", _export),
    "sweep": Entry("train a config with other settings, many times, and say which do best", _sweep),
    "log": Entry("send a run's curves to Weights & Biases, MLflow or a logger of your own", _log),
    "check": Entry("check the settings of a cluster before an engine starts it", _check),
    "status": Entry("show the status of a running cluster", _status),
    "ctl": Entry("pause, resume, checkpoint or stop a running cluster", _ctl),
    "page": Entry("serve the status page of a running cluster", _page),
    "replay": Entry(
        "start one replay service; look at, change or check its tables", _module("tidemill.services.replay")
    ),
    "paramserver": Entry("start one parameter server", _module("tidemill.services.paramserver")),
    "learner": Entry("start one learner", _module("tidemill.services.learner")),
    "inference": Entry(
        "start one inference service, which passes through the network for actors",
        _module("tidemill.services.inference"),
    ),
    "actor": Entry("start one actor; it joins a running cluster", _module("tidemill.services.actor")),
    "evaluator": Entry("start one evaluator", _module("tidemill.services.evaluator")),
    "configs": Entry("list the presets that --config takes by name", _configs),
    "certs": Entry("make certificates and tokens for a cluster of several machines", _certs),
    "plan": Entry("compute how many processes of each kind fill a machine", _plan),
    "completion": Entry("print what completes this command in bash, zsh or fish", _completion),
    "doctor": Entry("check the installation and report what to fix", _doctor),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code: 0 finished or stopped as asked, 1 failed, 2 bad usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return process.end_with_reader(lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        print(usage(), file=sys.stderr)
        return 2
    name, rest = arguments[0], arguments[1:]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        return _print_version()
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS) or f"; known: {', '.join(COMMANDS)}"
        print(f"tidemill: unknown command {name!r}{hint}", file=sys.stderr)
        return 2
    return _run(name, rest)


def usage() -> str:
    """Return the text of `tidemill --help`."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {entry.summary}" for name, entry in COMMANDS.items()]
    return "\n".join(
        [
            "usage: tidemill COMMAND [...]",
            "",
            "Trains deep reinforcement learning agents with a cluster of small services.",
            "",
            "commands:",
            *lines,
            "",
            "`tidemill COMMAND --help` explains a command and documents each of its settings.",
        ]
    )


def _run(name: str, rest: Sequence[str]) -> int:
    try:
        return process.run(f"tidemill {name}", lambda: COMMANDS[name].load()(rest))
    except SystemExit as ended:  # --help, or a command line that the parser refused and explained
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except KeyboardInterrupt:
        return 130


def _print_version() -> int:
    from tidemill.services.launcher.installation import versions

    print("\n".join(f"{name} {version}" for name, version in versions().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
