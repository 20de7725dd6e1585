"""A process that behaves as a service does toward its launcher, and as badly as a test asks for."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from tidemill import process
from tidemill.rpc.background import BackgroundServer
from tidemill.rpc.settings import ServerSettings


def main() -> int:
    """Serve health at an address until SIGTERM, or end as the options say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--journal", type=Path, required=True, help="every start and end is appended here")
    parser.add_argument("--name", required=True)
    parser.add_argument("--exit-code", type=int, help="end with this code instead of serving")
    parser.add_argument("--last-code", type=int, default=0, help="end with this code after SIGTERM; -N: by signal N")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--unready", action="store_true", help="never serve, and let calls in progress hold up its end")
    parser.add_argument("--result", type=Path, help="write this file and end on SIGUSR1, as the evaluator does")
    options = parser.parse_args()
    stop, finish = process.stop_event(), process.signal_event(signal.SIGUSR1)
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(options, "start")
    if options.exit_code is not None:
        sys.stderr.write(f"{options.name}: the last words\n")
        return int(options.exit_code)
    grace_s = 600.0 if options.unready else 0.5
    with BackgroundServer(options.name, ServerSettings(address=options.address, grace_s=grace_s)) as server:
        server.start()
        server.set_serving(not options.unready)
        while not (stop.wait(0.05) or finish.is_set()):
            pass
    if finish.is_set() and options.result:
        options.result.write_text("{}")
    _note(options, "end")
    if options.last_code:
        sys.stderr.write(f"{options.name}: the last words\n")
    if options.last_code < 0:
        sys.stderr.flush()
        os.kill(os.getpid(), -options.last_code)
    return int(options.last_code)


def _note(options: argparse.Namespace, what: str) -> None:
    with options.journal.open("a") as journal:
        journal.write(f"{options.name} {what}\n")


if __name__ == "__main__":
    sys.exit(process.run("stand-in", main))
