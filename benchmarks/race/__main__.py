"""Race of whole trainings between Tidemill and its peers, in turns, on two cores: seconds, memory and score of each.

Without arguments every training that benchmarks/results/race.json lacks is run, the most telling ones first. The file
is written after each. Each contender trains as many decisions with the same settings and is evaluated at the same
places. Afterwards each policy plays fresh episodes. `--table` makes docs/race.md.

    make race ARGS="--task cartpole_ppo --peer tidemill sb3 --seeds 1 2 3"
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.learn.carry_out import commit
from benchmarks.race.contenders import CONTENDERS, ENVIRONMENTS, ROOT, Peer
from benchmarks.race.measured import measure
from benchmarks.race.peers.course import STARTED_VARIABLE
from benchmarks.race.results import QUIET_CORES, Results, Row, default_file, to_target
from benchmarks.race.table import write_page
from benchmarks.race.tasks import SEEDS, TASKS, Task

_FIRST = ("tidemill", "sb3", "cleanrl")
_FIRST_TASKS = ("cartpole_ppo", "pendulum_sac", "cartpole_dqn")
_TEST_LIMIT_S = 600.0


def main() -> None:
    """Race, test, and write the results."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("race: stopped by SIGTERM"))
    results = Results(arguments.output)
    if arguments.table:
        write_page(results.rows)
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    deadline_s = time.monotonic() + arguments.within_s
    left_out = {task.name for task in TASKS.values() if not _has_environment(task)}
    trainings = [each for each in trainings_of(arguments) if each[0].name not in left_out]
    for name in {peer.name: None for _, peer, _ in trainings}:
        CONTENDERS[name].install()
        if not arguments.test:
            subprocess.run(
                CONTENDERS[name].warm_up_command(), env=_environment(), stdout=subprocess.DEVNULL, check=False
            )
    for task, peer, seed in trainings if not arguments.test else ():
        if not arguments.again and results.find(task.name, peer.name, seed):
            continue
        limit_s = min(arguments.limit_s, deadline_s - time.monotonic())
        if limit_s <= 0 or not _train(task, peer, seed, limit_s, arguments, results):
            print("race: the time is over")
            return
    for task, peer, seed in trainings:
        _test(task, peer, seed, arguments, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=[], help="tasks; none: all")
    parser.add_argument("--peer", nargs="+", choices=list(CONTENDERS), default=[], help="contenders; none: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="seeds; those declared by default")
    parser.add_argument(
        "--decisions", type=int, default=0, help="decisions of each training, for a trial; 0: the task's"
    )
    parser.add_argument("--limit-s", type=float, default=600.0, help="longest training, in seconds")
    parser.add_argument("--within-s", type=float, default=1e9, help="seconds after which no training is run any more")
    parser.add_argument("--again", action="store_true", help="replace rows that are there")
    parser.add_argument("--test", action="store_true", help="train nothing, only play the fresh episodes that lack")
    parser.add_argument("--table", action="store_true", help="only write docs/race.md")
    parser.add_argument("--output", type=Path, default=default_file(), help="file of the rows")
    parser.add_argument("--runs", type=Path, default=ENVIRONMENTS / "runs", help="folder of the trainings")
    return parser.parse_args()


def trainings_of(arguments: argparse.Namespace) -> Iterator[tuple[Task, Peer, int]]:
    """Yield what to train, the most telling first; contenders take turns, in the reverse order for every other seed."""
    tasks = arguments.task or list(TASKS)
    peers = arguments.peer or list(CONTENDERS)
    first = [task for task in _FIRST_TASKS if task in tasks]
    rest = [task for task in tasks if task not in first]
    main_peers = [peer for peer in peers if peer in _FIRST]
    others = [peer for peer in peers if peer not in _FIRST]
    for names, group in ((first, main_peers), (first, others), (rest, main_peers), (rest, others)):
        for name in names:
            task = TASKS[name]
            if arguments.decisions:
                task = dataclasses.replace(task, decisions=arguments.decisions)
            able = [CONTENDERS[peer] for peer in group if CONTENDERS[peer].takes(task)]
            for turn, seed in enumerate(arguments.seeds):
                yield from ((task, peer, seed) for peer in (able if turn % 2 == 0 else reversed(able)))


def _has_environment(task: Task) -> bool:
    """True if the package of a task's environment is installed; otherwise print how to install it."""
    if task.package and importlib.util.find_spec(task.package) is None:
        target = {"ale_py": "atari"}.get(task.package, task.package.lower())
        print(f"race: {task.name} is left out, {task.package} is not installed: make {target}")
        return False
    return True


def _train(task: Task, peer: Peer, seed: int, limit_s: float, arguments: argparse.Namespace, results: Results) -> bool:
    """Train once and add its row; return whether there was time for it."""
    folder = _folder(task, peer, seed, arguments)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = peer.train_command(task, seed, folder)
    row: Row = {"task": task.name, "contender": peer.name, "seed": seed, "commit": commit()}
    started_s = time.monotonic()
    found = measure(command, folder / "log.txt", limit_s, _environment() | {STARTED_VARIABLE: str(started_s)})
    if found.is_late and limit_s < arguments.limit_s:
        return False
    row |= {"others_cores": round(found.others_cores, 3), "quiet": found.others_cores <= QUIET_CORES}
    row |= {"wall_s": round(found.wall_s, 2), "processor_s": round(found.processor_s, 2)}
    row |= {"peak_mib": round(found.peak_mib, 1)}
    if found.code:
        row["failed"] = f"stopped after {limit_s:g} s" if found.is_late else f"exit code {found.code}"
    else:
        row |= peer.read(task, folder, started_s)
        row |= {"decisions_per_s": round(row["decisions"] / found.wall_s, 1)} | to_target(row["curve"], task.target)
    results.put(row)
    shown = {name: value for name, value in row.items() if name not in ("curve", "versions", "commit")}
    print(json.dumps(shown), flush=True)
    return True


def _environment() -> dict[str, str]:
    """Return the variables of every contender: byte code is kept, as it is by default."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONWARNINGS": "ignore"}


def _test(task: Task, peer: Peer, seed: int, arguments: argparse.Namespace, results: Results) -> None:
    """Play the fresh episodes with what a training has left, once, and add the score to its row."""
    row, folder = results.find(task.name, peer.name, seed), _folder(task, peer, seed, arguments)
    if row is None or "failed" in row or row.get("score") is not None or not folder.exists():
        return
    with (folder / "log.txt").open("ab") as log:
        command = peer.test_command(task, seed, folder)
        code = subprocess.run(command, stdout=log, stderr=log, timeout=_TEST_LIMIT_S, check=False).returncode
    if code:
        print(f"race: the test of {folder.name} ended with exit code {code}, see {folder / 'log.txt'}")
        return
    returns = json.loads((folder / "test.json").read_text(encoding="utf-8"))["returns"]
    score = statistics.fmean(returns)
    results.put(
        row | {"score": round(score, 2), "score_std": round(statistics.pstdev(returns), 2), "episodes": len(returns)}
    )
    print(f"{folder.name}: {score:.1f}", flush=True)


def _folder(task: Task, peer: Peer, seed: int, arguments: argparse.Namespace) -> Path:
    folder: Path = arguments.runs.resolve() / f"{task.name}-{peer.name}-{seed}"
    return folder


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
