"""Measurements for an hour with a GPU, the most valuable first, each written when it is done: `make gpu-report`.

Each step is a separate command with a time limit; what it found is in benchmarks/results/gpu-NAME.json and
gpu-NAME.md before the next begins, so that a machine that goes away takes only the step under way. A step that fails or
runs out of time is reported with the end of its output. Without a GPU every step runs in a tiny size and nothing is
published: the command itself is known to work when the machine is there.

    python -m benchmarks.gpu_report NAME [--minutes 40] [--only STEP ...] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.rows import FOLDER_VARIABLE, Row, machine
from tidemill.atomic_files import replacing

_TAIL_LINES = 15
_END_S = 10.0
_UPDATES = (
    *("nature_dueling_dqn_32", "nature_dueling_dqn_256", "nature_dueling_dqn_512"),
    *("sac_256_256_256", "r2d2_64_64", "r2d2_nature_32", "dqn_256_256_256", "td3_256", "ddpg_256", "d4pg_256"),
)
_PONG = "configs/pong_dqn.yaml"


@dataclass(frozen=True)
class Step:
    """One command of the report.

    Attributes:
        name: Of the step.
        what: What it is to show.
        command: The command, after the interpreter.
        tiny: What replaces the end of the command where there is no GPU, to see that it runs.
        limit_s: Longest it may take, in seconds.
        results: Names of the benchmarks' files that it writes.
    """

    name: str
    what: str
    command: tuple[str, ...]
    tiny: tuple[str, ...]
    limit_s: float
    results: tuple[str, ...] = ()


@dataclass
class Finding:
    """What became of a step.

    Attributes:
        name: Of the step.
        what: What it was to show.
        command: As it was run.
        seconds: How long it took.
        outcome: `passed`, `failed (exit code)` or `out of time`.
        rows: What it measured.
        said: The end of its output.
        details: Other files that it left: the result of a run.
    """

    name: str
    what: str
    command: str
    seconds: float
    outcome: str
    rows: list[Row] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def _python(*words: str) -> tuple[str, ...]:
    return ("-m", *words)


_ONE = ("--rounds", "1", "--seconds", "1")
STEPS = (
    Step(
        "cuda-tests",
        "what only a GPU can show: CUDA graphs equal eager updates, copies run beside computing, nothing waits",
        _python("pytest", "-m", "requires_cuda", "-q", "-p", "no:cacheprovider", "tests/unit"),
        (),
        300,
    ),
    Step(
        "ranks",
        "two ranks on one GPU average a learner's gradients over NCCL, or why NCCL will not",
        _python("benchmarks.rank_averages"),
        ("--bytes", "1000000", "--rounds", "2"),
        120,
        ("rank_averages",),
    ),
    Step(
        "updates",
        "updates per second from memory: eager, compiled, CUDA graphs; float32 and bfloat16",
        _python("benchmarks.update", "--rounds", "5", "--cases", *_UPDATES),
        ("--rounds", "1", "--cases", "dqn_256_256_32", "td3_256"),
        480,
        ("update",),
    ),
    Step(
        "learner",
        "updates per second of a learner fed by a replay service, beside its updates from memory",
        _python("benchmarks.learner", "--rounds", "2", "--seconds", "8"),
        ("--cases", "sac_256_256_256", "--configs", "--env-steps", "2000", *_ONE),
        480,
        ("learner",),
    ),
    Step(
        "feed",
        "items per second from the replay service to an update that does nothing, the mirror on the GPU and not",
        _python("benchmarks.feed", "--rounds", "2", "--seconds", "3", "--threads", "1", "2"),
        ("--env-steps", "4000", "--threads", "1", *_ONE),
        240,
        ("feed",),
    ),
    Step(
        "actors",
        "env steps per second with 1, 2, 4 and 8 actors",
        _python("benchmarks.cluster", "--rounds", "1", "--seconds", "15"),
        ("--config", "configs/quickstart.yaml", "--actors", "1", *_ONE),
        240,
        ("cluster",),
    ),
    Step(
        "plan",
        "whether `tidemill plan` foretells this machine's runs",
        _python("benchmarks.plan_check", "--rounds", "1", "--seconds", "20"),
        _ONE,
        240,
        ("plan_check",),
    ),
    Step(
        "pong",
        "Pong to 18 from nothing, every service, and the time it takes",
        _python("tidemill.services.launcher", "train", "--config", _PONG, "--launcher.view", "plain"),
        ("--run.max-env-steps", "2000", "--table.min-size", "500", "--evaluator.episodes", "1"),
        1500,
    ),
)


def main() -> int:
    """Run the steps and write the report; return 1 if one of them failed."""
    arguments = _arguments()
    tiny = arguments.tiny or not torch.cuda.is_available()
    if tiny:
        print("no GPU, or --tiny: every step in a tiny size, to see that it runs", flush=True)
    document: dict[str, Any] = {"machine": machine(), "tiny": tiny, "steps": []}
    ends_s = time.monotonic() + 60 * arguments.minutes
    failed = False
    with tempfile.TemporaryDirectory(prefix="tm-gpu-") as scratch:
        for step in [each for each in STEPS if each.name in arguments.only]:
            left_s = ends_s - time.monotonic()
            finding = run_step(step, tiny, min(step.limit_s, left_s), Path(scratch) / step.name)
            print(f"{finding.name}: {finding.outcome}, {finding.seconds:.0f} s", flush=True)
            failed = failed or finding.outcome != "passed"
            document["steps"].append(asdict(finding))
            _write(arguments.folder / f"gpu-{arguments.name}", document)
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [step.name for step in STEPS]
    parser.add_argument("name", help="of the machine: the results are gpu-NAME.json and gpu-NAME.md")
    parser.add_argument("--minutes", type=float, default=40.0, help="for all steps together")
    parser.add_argument("--only", nargs="+", default=names, choices=names, help="steps to run; default: all")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on a GPU, too")
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/results"), help="where the report goes")
    return parser.parse_args()


def run_step(step: Step, tiny: bool, limit_s: float, folder: Path) -> Finding:
    """Run one step in its own process group, so that nothing of it outlives its limit.

    Args:
        step: The step.
        tiny: Whether to run it in its tiny size.
        limit_s: Longest it may take, in seconds; none is left at 0 and below.
        folder: For what it writes; must not exist.
    """
    folder.mkdir(parents=True)
    words = [*step.command, *(step.tiny if tiny else ())]
    if step.name == "pong":
        words += ["--run.root", str(folder), "--run.name", "run"]
        words += ["--run.max-wall-s", str(max(int(limit_s) - 60, 1))] if not tiny else []
    finding = Finding(step.name, step.what, shlex.join(["python", *words]), 0.0, "no time was left")
    if limit_s <= 0:
        return finding
    started = time.monotonic()
    with (folder / "output").open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | {FOLDER_VARIABLE: str(folder)},
            start_new_session=True,
        )
        try:
            code = child.wait(limit_s)
            no_tests = step.name == "cuda-tests" and tiny and code == 5  # pytest's code for none chosen
            finding.outcome = "passed" if code == 0 or no_tests else f"failed ({code})"
        except subprocess.TimeoutExpired:
            finding.outcome = "out of time"
        finally:
            _end(child)
    finding.seconds = round(time.monotonic() - started, 1)
    finding.said = _tail(folder / "output")
    finding.rows = [row for name in step.results for row in _rows(folder / f"{name}.json")]
    if (result := folder / "run" / "result.json").exists():
        finding.details = {"result": json.loads(result.read_text(encoding="utf-8"))}
    return finding


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of a step's process group: by asking first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            child.poll()
            try:
                os.killpg(child.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)


def _tail(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [re.sub(r"\x1b\[[0-9;]*m", "", line)[:300] for line in lines[-_TAIL_LINES:]]


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return rows


def _write(stem: Path, document: dict[str, Any]) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(document, indent=1) + "\n"), (".md", _markdown(document))):
        with replacing(stem.with_name(stem.name + suffix)) as path:
            path.write_text(text, encoding="utf-8")


def _markdown(document: dict[str, Any]) -> str:
    found = document["machine"]
    lines = [f"# {found['gpu']}", "", f"{found['cpu']}, {found['cores']} cores, torch {found['torch']}."]
    lines += [
        "",
        "Tiny sizes: nothing here is a result." if document["tiny"] else "One run; the spread is in the JSON.",
    ]
    lines += ["", "| step | outcome | seconds |", "|---|---|---|"]
    lines += [f"| {step['name']} | {step['outcome']} | {step['seconds']} |" for step in document["steps"]]
    for step in document["steps"]:
        lines += ["", f"## {step['name']}", "", f"{step['what']}: `{step['command']}`", ""]
        lines += _table(step["rows"]) if step["rows"] else ["```text", *step["said"], "```"]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    lines = ["| what | unit | ours | beside | ratio |", "|---|---|---|---|---|"]
    return lines + [
        f"| {row['name']} | {row['unit']} | {row['ours']} | {row['peer']} | {row['ratio']} |" for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
