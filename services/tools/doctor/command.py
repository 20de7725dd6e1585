"""`tidemill doctor`: checks whether this machine can run Tidemill, or a network can train on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidemill.services.tools.doctor import gpu, machine, network, software
from tidemill.services.tools.doctor.finding import Finding
from tidemill.settings.argument_parser import ArgumentParser

_ABOUT = "Check what a run needs from this machine, and print what to do about anything missing."


def doctor(argv: Sequence[str]) -> int:
    """Print every finding; return 0, or 1 if a run would fail."""
    parser = ArgumentParser(prog="tidemill doctor", description=_ABOUT)
    parser.add_argument("--root", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")
    parser.add_argument("--certs", type=Path, help="folder of `tidemill certs`, if there is one (default: certs)")
    network.add_options(parser)
    arguments = parser.parse_args(list(argv))
    if arguments.network:
        return _told(network.rehearsed(network.question(parser, arguments)), " with it on a GPU")
    findings = [
        *software.python(),
        *software.command(),
        *software.packages(),
        *software.compiled_kernel(),
        *gpu.gpus(),
        *software.roms(),
        *software.docker(),
        *gpu.containers(),
        *machine.memory(),
        *machine.open_files(),
        *machine.forking(),
        *machine.clock(),
        *machine.ports(),
        *machine.sockets(),
        *machine.disk(arguments.root),
        *machine.certificates(arguments.certs),
    ]
    return _told(findings)


def _told(findings: Sequence[Finding], on: str = "") -> int:
    """Print every finding; return 0, or 1 if a run would fail."""
    for finding in findings:
        print(f"{finding.mark:4}  {finding.text}")
        if finding.advice:
            print(f"      -> {finding.advice}")
    failures = sum(finding.mark == "FAIL" for finding in findings)
    print("\n" + (f"{failures} to fix before training{on}" if failures else f"ready to train{on}"))
    return 1 if failures else 0
