"""Real processes on pretended GPUs: `make gpu-rehearsal`, into benchmarks/results/gpu_rehearsal_processes.json.

Runs of CartPole and Pong train with four learners and four inference services on four GPUs, the mirror on the devices,
updates as CUDA graphs, CartPole with half of each batch from another server's table. A rank is killed and comes back,
the run is ended and resumed on two GPUs, and then on none. A deterministic run ends with the parameters that it ends
with on the CPU, on one GPU and on eight, eager and as graphs.
docs of `benchmarks.pretended_gpus` say what is pretended, and what cannot be.

    python -m benchmarks.gpu_rehearsal_processes [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pretended_gpus import build, environment
from tidemill.atomic_files import replacing
from tidemill.errors import TidemillError
from tidemill.params.blob import unpack
from tidemill.params.stored import read_params
from tidemill.replay import (
    ItemWindow,
    ReplayClient,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    Server,
    TableConfig,
)
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.types import EnvSpec, signature_of

_ROOT = Path(__file__).parent.parent
RESULTS = _ROOT / "benchmarks" / "results" / "gpu_rehearsal_processes.json"
_BOUND_S = 300.0
_POLL_S = 0.1
TOLERANCE = 1e-5
"""Between parameters after the updates of a deterministic run on a GPU and on the CPU."""

_GRAPHS = ("--agent.compile", "cuda-graphs")
_ON_DEVICE = (*_GRAPHS, "--learner.mirror-device", "device")
_PLAIN = ("--launcher.view", "plain")
_NO_BOUND = ("--run.max-wall-s", "0")
"""A busy machine needs minutes to start; `until` has its own bound."""
_LOCK_STEP = (
    *(
        "--run.deterministic",
        "true",
        "--run.max-wall-s",
        "0",
        "--run.max-learner-steps",
        "256",
        "--run.round-steps",
        "16",
    ),
    *("--env.num-envs", "2", "--agent.batch-size", "16", "--table.min-size", "200", "--learner.updates-per-env-step"),
    *("0.25", "--agent.hidden-sizes", "16", "--run.target-return", "null", *_PLAIN),
)
_CARTPOLE = ("--config", "configs/cartpole_dqn.yaml", "--run.target-return", "null")
_PONG = (
    *("--config", "configs/pong_dqn.yaml", "--run.target-return", "null", "--agent.batch-size", "16"),
    *("--agent.hidden-sizes", "32", "--table.min-size", "300", "--table.max-items", "20000", "--env.num-envs", "4"),
    *("--evaluator.episodes", "1", "--evaluator.num-envs", "1", "--evaluator.confirm-episodes", "1"),
    *("--learner.updates-per-env-step", "0.25"),
)

_SOURCE, _SOURCE_STEPS = "demonstrations", 40

Found = dict[str, Any]


class Run:
    """A `tidemill` command whose processes find pretended GPUs.

    Attributes:
        folder: Of the run.
    """

    def __init__(self, folder: Path, words: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start it."""
        self.folder = folder
        self._output = folder.parent / f"{folder.name}.output"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.services.launcher", *words],
                cwd=_ROOT,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something holds.

        Raises:
            TidemillError: It does not in time, or the command ended before.
        """
        deadline = time.monotonic() + _BOUND_S
        while not holds():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise TidemillError(f"never came to {what}:\n{self.said()}")
            time.sleep(_POLL_S)

    def ended(self, ask: signal.Signals | None = None) -> None:
        """Wait for its end, for which a signal asks if one is given; raises TidemillError if it is a bad one."""
        if ask is not None:
            self._process.send_signal(ask)
        try:
            code = self._process.wait(_BOUND_S)
        except subprocess.TimeoutExpired as error:
            raise TidemillError(f"not ended after {_BOUND_S:g} s:\n{self.said()}") from error
        if code not in (0, 128 + signal.SIGINT):
            raise TidemillError(f"ended with {code}:\n{self.said()}")

    def close(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_BOUND_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def said(self) -> str:
        """The last 3,000 characters of the run's output, and of its learner's log."""
        logged = self.log()[-3000:]
        return f"{self._output.read_text(errors='replace')[-3000:]}\n{logged}"

    def log(self, service: str = "learner") -> str:
        """The log of one of the run's services; empty if it has none."""
        path = self.folder / "logs" / f"{service}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def updates(self) -> int:
        """Return the updates behind the newest parameters."""
        try:
            return int(read_params(self.folder / "params").version.metadata.learner_steps)
        except (TidemillError, OSError):
            return 0

    def ranks(self) -> dict[int, int]:
        """Return the process ids of its learners, by rank."""
        found: dict[int, int] = {}
        for process in _descendants(self._process.pid):
            try:
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            found |= {int(each[5:]): process for each in variables if each.startswith(b"RANK=")}
        return found


def _descendants(process: int) -> list[int]:
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [each for child in map(int, children) for each in (child, *_descendants(child))]


def parameters(folder: Path) -> dict[str, np.ndarray]:
    """Return the newest parameters of a run."""
    return {name: np.asarray(array) for name, array in unpack(read_params(folder / "params").blob).items()}


def equal(built: Path, folder: Path) -> Found:
    """Return how far the parameters of a deterministic run on GPUs are from those of the same run on a CPU."""
    cases: dict[str, tuple[int, tuple[str, ...]]] = {
        "cpu": (0, ()),
        "1 GPU": (1, ()),
        "1 GPU, graphs, mirror on it": (1, _ON_DEVICE),
        "8 GPUs, cuda:7, graphs": (8, ("--agent.compile", "cuda-graphs", "--learner.device", "cuda:7")),
    }
    ends, found = {}, {}
    for number, (name, (gpus, words)) in enumerate(cases.items()):
        run = folder / str(number)
        place = ("--run.root", str(folder), "--run.name", run.name)
        started = Run(run, ("train", *_CARTPOLE, *_LOCK_STEP, *words, *place), variables(built, gpus))
        try:
            started.ended()
        finally:
            started.close()
        ends[name] = parameters(run)
        found[name] = max(float(np.abs(array - ends["cpu"][key]).max()) for key, array in ends[name].items())
        if not found[name] <= TOLERANCE:
            raise TidemillError(f"{name}: parameters are {found[name]:g} from the CPU's, {TOLERANCE:g} is allowed")
    return {"largest difference of a parameter": found, "tolerance": TOLERANCE}


def variables(built: Path, gpus: int) -> dict[str, str]:
    """Return the environment of processes that find so many GPUs; of a machine without any where there are none."""
    return environment(built, gpus) if gpus else dict(os.environ)


def _are_new(ranks: Mapping[int, int], before: Mapping[int, int]) -> bool:
    """True if all ranks run, by process id, and the third has a new process."""
    return set(ranks) == set(before) and ranks[2] != before[2]


def several(built: Path, folder: Path, words: Sequence[str], updates: int) -> Found:
    """Train on four GPUs, lose a rank, resume on two and on none; return the updates behind the parameters of each.

    Args:
        built: The library.
        folder: For the run.
        words: Its settings.
        updates: How many each part makes.
    """
    run = folder / "run"
    place = ("--run.root", str(folder), "--run.name", run.name)
    four = ("--launcher.learners", "4", "--launcher.inference", "4", *_NO_BOUND)
    found: Found = {}
    first = Run(run, ("train", *words, *_PLAIN, *_GRAPHS, *four, *place), variables(built, 4))
    try:
        first.until(f"{updates} updates on 4 GPUs", lambda: first.updates() >= updates)
        found["4 GPUs"] = first.updates()
        found["mirrors on"] = sorted(set(re.findall(r"in device memory device=(\S+)", first.log())))
        found["inference on"] = sorted({_device_of(first.log(f"inference-{index}")) for index in range(4)})
        before = first.ranks()
        os.kill(before[2], signal.SIGKILL)
        first.until("four new ranks", lambda: _are_new(first.ranks(), before))
        at = first.updates()
        first.until(f"{updates} more updates", lambda: first.updates() >= at + updates)
        found["after a rank was killed"] = first.updates()
        first.ended(signal.SIGINT)
    finally:
        first.close()
    for name, gpus, more in (
        ("2 GPUs", 2, ("--launcher.learners", "2", "--launcher.inference", "2")),
        ("no GPU", 0, ("--launcher.learners", "1", "--launcher.inference", "0", "--agent.compile", "none")),
    ):
        at = read_params(run / "params").version.metadata.learner_steps
        part = Run(
            run, ("resume", str(run), *more, "--run.max-learner-steps", str(at + updates)), variables(built, gpus)
        )
        try:
            part.ended()
        finally:
            part.close()
        found[f"resumed on {name}"] = part.updates()
        if part.updates() < at + updates:
            raise TidemillError(f"{name}: only {part.updates()} updates after {at}:\n{part.said()}")
    return found


def with_source(built: Path, folder: Path, words: Sequence[str], updates: int) -> Found:
    """Do as `several` in CartPole, with half of each batch from a table of another server: `learner.sources`."""
    with Server() as server:
        _fill(server.address)
        source = f"{{fraction: 0.5, replay: '{server.address}'}}"
        found = several(built, folder, (*words, "--learner.sources", _SOURCE, source), updates)
        with ReplayClient(server.address) as client:
            return found | {"drawn from the source": client.describe_table(_SOURCE).samples}


def _fill(address: str) -> None:
    """Write an episode of random steps of CartPole's shapes."""
    signature, rng = signature_of(EnvSpec((4,), "float32", num_actions=2)), np.random.default_rng(0)
    steps = DQNConfig().n_step + 1
    table = TableConfig(
        _SOURCE, signature, SelectorConfig(SelectorKind.UNIFORM), max_items=_SOURCE_STEPS, max_item_steps=steps
    )
    with ReplayWriter(address, table, windows=ItemWindow(steps)) as writer:
        for number in range(_SOURCE_STEPS):
            step = {
                "observation": rng.standard_normal(4),
                "action": int(rng.integers(2)),
                "reward": 1.0,
                "terminated": False,
                "truncated": number == _SOURCE_STEPS - 2,
                "is_first": number == 0,
            }
            writer.append({column.name: step.get(column.name, 0) for column in signature})


def _device_of(log: str) -> str:
    found = re.findall(r"device=(\S+)", log)
    return found[-1] if found else "unknown"


PARTS: dict[str, Callable[[Path, Path], Found]] = {
    "equal": equal,
    "cartpole": lambda built, folder: with_source(built, folder, _CARTPOLE, 400),
    "pong": lambda built, folder: several(built, folder, _PONG, 60),
}


def main() -> int:
    """Rehearse, and write what was seen; return 1 if a part failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS), help="parts; default: all")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file that is written")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing that was started is left
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="tm-gpus-") as scratch:
        built = build(Path(scratch))
        for name in arguments.only:
            folder, started = Path(scratch) / name, time.monotonic()
            folder.mkdir()
            try:
                found[name] = {"passed": True, **PARTS[name](built, folder)}
            except TidemillError as error:
                found[name] = {"passed": False, "said": str(error).splitlines()}
            print(f"{name}: {found[name]} ({time.monotonic() - started:.0f} s)", flush=True)
            with replacing(arguments.results) as path:
                path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(not all(part["passed"] for part in found.values()))


if __name__ == "__main__":
    sys.exit(main())
