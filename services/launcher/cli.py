"""The `tidemill` command: finds the subcommand and passes it the rest of the command line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tidemill import interrupts, process
from tidemill.settings.check import nearest

Command = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Entry:
    """One line of `tidemill --help`.

    Attributes:
        summary: What it does, one line.
        place: `module:function` below `tidemill.services`, imported when the command is called; or the module of
            another service, which takes the place of this process.
    """

    summary: str
    place: str

    def load(self) -> Command:
        """Import the command."""
        module, _, function = self.place.partition(":")
        if not function:
            return exec_module(f"tidemill.services.{module}")
        return cast(Command, getattr(importlib.import_module(f"tidemill.services.{module}"), function))


def exec_module(module: str) -> Command:
    """Return a command that becomes `python -P -m MODULE ARGUMENTS`, by `tidemill.interrupts`.

    The module is started by its name because no service imports another; the process id, the terminal and the
    signals stay the same, so `tidemill actor` behaves as `python -m tidemill.services.actor`.
    """

    def command(arguments: Sequence[str]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        interrupts.hold()
        os.execv(sys.executable, [sys.executable, "-P", "-m", "tidemill.interrupts", module, *arguments])

    return command


_ONE_SERVICE = "start one service"

COMMANDS = {
    "train": Entry("run a whole cluster on this machine", "launcher.commands.train:train"),
    "resume": Entry("continue a run from where it stopped", "launcher.commands.train:resume"),
    "evaluate": Entry("evaluate the trained policy of a run or of an exported folder", "evaluator.offline"),
    "plot": Entry("draw the learning curves of runs, and compare them", "tools.plot.command:plot"),
    "export": Entry("write the trained policy of a run into a folder to share", "tools.export:export"),
    "sweep": Entry("train a config with many settings and rank them by their scores", "tools.sweep.command:sweep"),
    "log": Entry("send a run's curves to Weights & Biases, MLflow or your logger", "tools.log:log"),
    "check": Entry("check the settings of a cluster before an engine starts it", "launcher.commands.check:check"),
    "status": Entry("show the status of a running cluster", "launcher.commands.control:status"),
    "ctl": Entry("pause, resume, checkpoint or stop a running cluster", "launcher.commands.control:ctl"),
    "page": Entry("serve the status page of a running cluster", "tools.page:page"),
    "replay": Entry("start one replay service; inspect, change or check its tables", "replay"),
    "paramserver": Entry(_ONE_SERVICE, "paramserver"),
    "learner": Entry(_ONE_SERVICE, "learner"),
    "inference": Entry(_ONE_SERVICE, "inference"),
    "actor": Entry(_ONE_SERVICE, "actor"),
    "evaluator": Entry(_ONE_SERVICE, "evaluator"),
    "configs": Entry("list the presets that --config takes by name", "tools.configs:configs"),
    "certs": Entry("make certificates and tokens for a cluster of several machines", "tools.certs:certs"),
    "plan": Entry("compute how many processes of each kind fill a machine", "tools.plan:plan"),
    "completion": Entry("print the completion script for bash, zsh or fish", "tools.completion:completion"),
    "doctor": Entry("check the installation and report what to fix", "tools.doctor.command:doctor"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code: 0 finished or stopped as asked, 1 failed, 2 bad usage."""
    if argv is None:
        _speak_utf8()
    arguments = list(sys.argv[1:] if argv is None else argv)
    return process.end_with_reader(lambda: _dispatch(arguments))


def _speak_utf8() -> None:
    """Start again in UTF-8 mode where the locale has another encoding for names of files and text, as LC_ALL=C may."""
    if sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"  # for its children; an option such as -I has Python ignore it
        interrupts.hold()
        os.execv(sys.executable, [sys.executable, "-X", "utf8=1", *sys.orig_argv[1:]])


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
    """Return the text of `tidemill --help`, which fits a terminal of 24 lines: services alone share one."""
    services = [name for name, entry in COMMANDS.items() if entry.summary.startswith(_ONE_SERVICE)]
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {entry.summary}" for name, entry in COMMANDS.items() if name not in services]
    return "\n".join(
        [
            "usage: tidemill COMMAND [...]; `tidemill COMMAND --help` explains a command",
            "",
            "Distributed deep reinforcement learning as a cluster of gRPC services.",
            "",
            *lines,
            f"  {', '.join(services)}: {_ONE_SERVICE}",
        ]
    )


def _run(name: str, rest: Sequence[str]) -> int:
    command = COMMANDS[name].load()
    try:
        interrupts.raise_again()
        return process.run(f"tidemill {name}", lambda: command(rest))
    except SystemExit as ended:  # --help, or a command line that the parser refused and explained
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except KeyboardInterrupt:  # between the steps of `process.run`
        return 130


def _print_version() -> int:
    from tidemill.installation import versions

    print("\n".join(f"{name} {version}" for name, version in versions().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
