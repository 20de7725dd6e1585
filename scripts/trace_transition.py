"""Count the source files that one transition of CartPole DQN runs through, from env.step to gradient and back.

    python -m scripts.trace_transition [--steady-s S] [--record-s S]

Starts a replay server with a prioritized table and its log on disk, a parameter server, a learner and an actor as
separate processes, lets them train until all is in steady state, and then records for a few seconds which files
of the project have a function called, in any thread. What only starts or ends a process is not counted, if the first
period is long enough for all to have started.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_END_S = 90.0
_MEANWHILE = {
    "what watches and keeps a run": (
        *("metrics.py", "telemetry.py", "curves.py", "tensorboard_writer.py", "callbacks.py"),
        *("services/learner/status/", "checkpoint/"),
    ),
    "settings and RPC plumbing": ("config/", "settings/", "rpc/", "process.py"),
    "the replay log": ("services/replay/log/", "atomic_files.py"),
    "the parameters' way back": ("tidemill/params/", "services/paramserver/", "services/learner/publishing.py"),
}
"""What a recording sees besides the way of a step, by a part of the files' names; the first that fits counts."""
_SETTINGS = (
    *("--run.name", "traced", "--env.id", "CartPole-v1", "--env.num-envs", "4", "--agent.algorithm", "dqn"),
    *("--agent.network", "mlp", "--agent.hidden-sizes", "32", "--agent.batch-size", "32"),
    *("--table.sampler", "prioritized", "--table.min-size", "200"),
)


class Recorder:
    """Notes the project's files whose functions are called while it is switched on."""

    def __init__(self, out: Path) -> None:
        self._out, self._files, self._is_on = out, set[str](), False

    def install(self) -> None:
        """Watch every thread started from now on; SIGUSR1 switches on, SIGUSR2 writes what was seen."""
        signal.signal(signal.SIGUSR1, self._switch_on)
        signal.signal(signal.SIGUSR2, self._write)
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - as sys.setprofile has it
        if self._is_on and event == "call":
            self._files.add(frame.f_code.co_filename)

    def _switch_on(self, *_: object) -> None:
        self._is_on = True

    def _write(self, *_: object) -> None:
        self._is_on = False
        self._out.write_text("\n".join(sorted(self._files)))


def run_traced(out: str, module: str, arguments: list[str]) -> None:
    """Run a module as `python -m` would, with a recorder."""
    sys.argv = [module, *arguments]
    Recorder(Path(out)).install()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def trace(folder: Path, steady_s: float, record_s: float) -> dict[str, list[str]]:
    """Return the files that each process ran through, relative to the project.

    Args:
        folder: For sockets, logs and the run.
        steady_s: Seconds until recording begins, in which the processes start; more on a busy machine.
        record_s: Seconds for which is recorded.
    """
    prefix = "tidemill.services" if (ROOT / "tidemill" / "services").exists() else "services"
    addresses = {name: f"unix://{folder}/{name}.sock" for name in ("replay", "params", "learner")}
    cluster = [word for name, address in addresses.items() for word in (f"--cluster.{name}", address)]
    run = [*_SETTINGS, "--run.root", str(folder / "runs")]
    words = {
        "replay": ["--replay.server.address", addresses["replay"], "--replay.storage.folder", str(folder / "log")],
        "paramserver": ["--paramserver.server.address", addresses["params"], "--run.root", str(folder / "runs")],
        "learner": [*run, *cluster, "--learner.publish-every", "50", "--learner.server.address", addresses["learner"]],
        "actor": [*run, *cluster[:4]],
    }
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "scripts.trace_transition", "--out", str(folder / name), f"{prefix}.{name}", *rest],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"{name}.log").open("w"),
        )
        for name, rest in words.items()
    }
    try:
        for number, pause_s in ((signal.SIGUSR1, steady_s), (signal.SIGUSR2, record_s)):
            time.sleep(pause_s)
            for name, process in processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended early:\n{(folder / f'{name}.log').read_text()[-2000:]}")
                process.send_signal(number)
        _wait_for([folder / name for name in processes])
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
    return {name: sorted({f for f in map(_relative, (folder / name).read_text().split("\n")) if f}) for name in words}


def _wait_for(files: list[Path]) -> None:
    until = time.monotonic() + _END_S
    while not all(file.exists() for file in files) and time.monotonic() < until:
        time.sleep(0.1)


def _relative(name: str) -> str:
    """Return a file's path within the project; nothing for others, generated ones and empty packages."""
    path = Path(os.path.realpath(name))
    if not path.is_relative_to(ROOT) or ".venv" in path.parts or path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
        return ""
    relative = path.relative_to(ROOT)
    return str(relative) if relative.parts[0] in ("tidemill", "services") else ""


def main() -> None:
    """Print the files by process and how many there are in all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steady-s", type=float, default=30.0, help="seconds until all is in steady state")
    parser.add_argument("--record-s", type=float, default=6.0, help="seconds that are recorded")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("module", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        run_traced(options.out, options.module, options.rest)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = trace(Path(folder), options.steady_s, options.record_s)
    everything = sorted({file for files in found.values() for file in files})
    for name, files in found.items():
        print(f"{name}: {len(files)} files\n  " + "\n  ".join(files))
    print(f"all: {len(everything)} files, of which")
    for group, files in by_group(everything).items():
        print(f"  {len(files):3} {group}")


def by_group(files: list[str]) -> dict[str, list[str]]:
    """Return files by what they are for."""
    step = "the way of a step: environment, rows, table, sample, batch, update, new priority"
    groups: dict[str, list[str]] = {step: [], **{group: [] for group in _MEANWHILE}}
    for file in files:
        fitting = (group for group, parts in _MEANWHILE.items() if any(part in file for part in parts))
        groups[next(fitting, step)].append(file)
    return groups


if __name__ == "__main__":
    main()
