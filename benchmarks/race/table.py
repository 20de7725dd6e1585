"""docs/race.md, made from the rows of the race."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.learn.atomic import write_text
from benchmarks.race.contenders import CONTENDERS, ROOT
from benchmarks.race.results import Row
from benchmarks.race.tasks import DQN, EVALUATION_EPISODES, EVALUATIONS, PPO, SEEDS, TASKS, TEST_EPISODES, Task

PAGE = ROOT / "docs" / "race.md"
_NONE = "not measured"

_HEAD = f"""\
# The race

Compare whole trainings by Tidemill and by the programs that people would pick instead, and repeat them:

```bash
make race                                         # hours; may be continued
make race ARGS="--task cartpole_ppo --peer sb3"   # one task and one peer
make race ARGS=--table                            # only write this page
```

Each peer is installed into `build/race/`. `benchmarks/results/race.json` has every training, its curve and its
versions. Machine, task, network, batch, updates per decision and number of decisions are the same for all contenders of
a task. The processor is named below the task's table. Time counts from the start of a contender's first process to the
end of its last, imports and evaluations included. Everything runs in turns on two cores of a quiet machine, with
{len(SEEDS)} seeds that were declared in advance.

## Wall time

Seconds, median of the seeds (lowest to highest); the fastest is bold.
"""
_NOTES = f"""
## Reading it

- **Score**: mean return of the last policy on {TEST_EPISODES} fresh episodes, without exploration; mean of the seeds
  (lowest to highest).
- **To target**: seconds to the first evaluation whose mean reached the target. A training has {EVALUATIONS} evaluations
  of {EVALUATION_EPISODES} episodes, unless a line below its table says otherwise: an evaluation that takes longer than
  the way to the next is not caught up on, and Sample Factory is evaluated at the end alone. "2 of 3" counts the seeds
  that reached it, of those with a published time.
- Contenders of a task were measured in one sitting on one machine, with three exceptions. In Hopper, one seed of
  Tidemill was measured apart, and in Pong with DQN one of Stable-Baselines3, an hour before. In Pong with PPO,
  Tidemill was measured again an hour later with [images channels last](performance.md#settings-of-the-step) and two
  threads in the actor. Before, it took 52.2 s.
- Tidemill's learner takes denormal numbers for zero ([why](performance.md#denormal-numbers)); the others do not. Its
  rows of Pendulum and HalfCheetah are older than that.
- The trainings of Pong are too short to learn anything, so their rows compare rates. Each has one evaluation of 5 games
  and a test of 10 fresh games.
- LunarLander with PPO: Stable-Baselines3 slows to a third of its speed during training. In a repeated training, 11 of
  12 samples of its stack halfway through were in the environment's physics, presumably because of how its policy flies.
  That row does not compare the programs.
- **Processor**: user and system time of all processes. **Memory**: largest sum of the proportional memory (PSS) of all
  processes, sampled every two seconds.
- A time is published only if other programs used at most a tenth of a core meanwhile. A score needs no quiet machine.

## What one process does better

A program of one process has no serialisation, no RPC and no second Python to start, and it uses less memory. Its order
of steps is fixed, so a seed repeats its result without [lock-step](lock-step.md). Tidemill acts, learns and evaluates
at the same time, so it uses the second core. It keeps training when a process is killed, and its services can run on
several machines.
"""
_SETTINGS = """
## Settings

All contenders use Adam, the settings below, layers of the same sizes, and float32 on the CPU. Tidemill's PPO uses one
extra step of each rollout only to bootstrap, so the numbers of rollouts and updates differ slightly.

| Task | Decisions | Environments | Network | Settings | From |
|---|---|---|---|---|---|
"""


def write_page(rows: Sequence[Row], page: Path = PAGE) -> str:
    """Write the page and return it."""
    text = _HEAD + _wall(rows) + "".join(_details(task, rows) for task in TASKS.values()) + _NOTES
    text += _SETTINGS + "".join(_settings(task) for task in TASKS.values())
    text += "\n| Contender | Processes and threads | Versions |\n|---|---|---|\n" + "".join(_who(rows))
    write_text(page, text)
    return text


def _wall(rows: Sequence[Row]) -> str:
    """Return a row for each task, a column for each contender."""
    head = f"\n| Task | {' | '.join(each.title for each in CONTENDERS.values())} |\n"
    lines = [head, "|---" * (len(CONTENDERS) + 1) + "|\n"]
    for task in TASKS.values():
        times = {name: _times(rows, task, name, "wall_s") for name in CONTENDERS}
        medians = [statistics.median(found) for found in times.values() if found]
        cells = [
            _no_algorithm(name, task) or _failure(rows, task, name) or _spread(found, best=min(medians, default=0.0))
            for name, found in times.items()
        ]
        lines.append(f"| {task.title}, {task.decisions:,} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _details(task: Task, rows: Sequence[Row]) -> str:
    """Return the table of a task that was measured; empty if it was not."""
    measured = [name for name in CONTENDERS if _of(rows, task, name)]
    if not measured:
        return ""
    lines = [f"\n## {task.title}, {task.decisions:,} decisions\n\n"]
    head = ["", "Wall s", "Processor s", "Memory MiB", "Decisions/s", "Updates", "Score"]
    head += [] if task.target is None else [f"To {task.target:g}, s"]
    lines.append(f"| {' | '.join(head).lstrip()} |\n|{'---|' * len(head)}\n")
    for name in measured:
        own = _of(rows, task, name)
        cells = [
            CONTENDERS[name].title,
            _failure(rows, task, name) or _spread(_times(rows, task, name, "wall_s")),
            _spread(_times(rows, task, name, "processor_s")),
            _spread(_times(rows, task, name, "peak_mib"), digits=0),
            _spread(_times(rows, task, name, "decisions_per_s"), digits=0),
            _spread([row["updates"] for row in own], digits=0),
            _spread([row["score"] for row in own if row.get("score") is not None], middle=statistics.fmean),
        ]
        cells += [] if task.target is None else [_to_target(rows, task, name)]
        lines.append(f"| {' | '.join(cells)} |\n")
    lines += _evaluations(rows, task, measured)
    processors = {row["cpu"] for name in measured for row in _of(rows, task, name) if row["quiet"]}
    return "".join([*lines, "\n", "; ".join(sorted(processors)), "\n"] if processors else lines)


def _evaluations(rows: Sequence[Row], task: Task, contenders: Sequence[str]) -> list[str]:
    """Return a line that says who was evaluated how often while it trained, if that was not as planned."""
    curves = {name: [row["curve"] for row in _of(rows, task, name) if "curve" in row] for name in contenders}
    counts = {name: sorted(set(map(len, found))) for name, found in curves.items() if found}
    planned = task.decisions // task.every
    others = [
        f"{CONTENDERS[name].title} {' or '.join(map(str, found))}"
        for name, found in counts.items()
        if found != [planned]
    ]
    return [f"\nEvaluations during a training: {planned}; {', '.join(others)}.\n"] if others else []


def _of(rows: Sequence[Row], task: Task, contender: str) -> list[Row]:
    """Return the trainings of a contender that ended by themselves."""
    return [row for row in rows if (row["task"], row["contender"]) == (task.name, contender) and "failed" not in row]


def _times(rows: Sequence[Row], task: Task, contender: str, name: str) -> list[float]:
    """Return a figure of each training on a quiet machine."""
    return [row[name] for row in _of(rows, task, contender) if row["quiet"]]


def _failure(rows: Sequence[Row], task: Task, contender: str) -> str:
    """Return how a contender's trainings failed, if all of them did."""
    own = [row for row in rows if (row["task"], row["contender"]) == (task.name, contender)]
    return str(own[0]["failed"]) if own and all("failed" in row for row in own) else ""


def _no_algorithm(contender: str, task: Task) -> str:
    return "" if task.algorithm in CONTENDERS[contender].algorithms else f"has no {task.algorithm.upper()}"


def _spread(
    found: Sequence[float],
    *,
    best: float | None = None,
    middle: Callable[[Sequence[float]], float] = statistics.median,
    digits: int = 1,
) -> str:
    """Return the middle of some figures and their range."""
    if not found:
        return _NONE
    value = f"{middle(found):,.{digits}f}"
    if best is not None and middle(found) == best:
        value = f"**{value}**"
    ends = (
        f" ({min(found):,.{digits}f} to {max(found):,.{digits}f})" if len(found) > 1 and min(found) < max(found) else ""
    )
    return value + ends


def _to_target(rows: Sequence[Row], task: Task, contender: str) -> str:
    quiet = [row for row in _of(rows, task, contender) if row["quiet"]]
    found = [row["to_target_s"] for row in quiet if row["to_target_s"] is not None]
    if not quiet:
        return _NONE
    return f"{_spread(found)}, {len(found)} of {len(quiet)}" if found else f"0 of {len(quiet)}"


def _settings(task: Task) -> str:
    settings = task.settings
    layers = ", ".join([*(["Nature convolutions"] if task.is_atari else []), *map(str, settings.hidden)])
    if isinstance(settings, PPO):
        words = f"PPO: rollouts of {settings.rollout}, {settings.epochs} epochs, {settings.minibatches} minibatches"
    else:
        kind = "DQN" if isinstance(settings, DQN) else "SAC"
        words = f"{kind}: batch {settings.batch_size}, {settings.updates_per_decision:g} updates per decision"
    return f"| {task.title} | {task.decisions:,} | {task.num_envs} | {layers} | {words} | {task.source} |\n"


def _who(rows: Sequence[Row]) -> Iterator[str]:
    for name, contender in CONTENDERS.items():
        own = (row["versions"] for row in reversed(rows) if row["contender"] == name and "versions" in row)
        found: dict[str, str] = next(own, {})
        said = ", ".join(f"{package} {number}" for package, number in found.items()) or _NONE
        yield f"| {contender.title} | {contender.shape} | {said} |\n"
