"""The race measures all processes of a training, takes turns, and publishes times of a quiet machine alone."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.race.__main__ import trainings_of
from benchmarks.race.contenders import CONTENDERS
from benchmarks.race.evaluation import play
from benchmarks.race.measured import Measured
from benchmarks.race.results import Results, to_target
from benchmarks.race.table import PAGE, write_page
from benchmarks.race.tasks import EVALUATION_SEED, SEEDS, TASKS
from benchmarks.race.tidemill_run import config_of
from tidemill.config.load import from_document
from tidemill.config.sections import RunConfig

ROOT = Path(__file__).resolve().parents[3]
# The race is a program; measured within this one, it would wait for the children of other tests.
_MEASURE = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
from benchmarks.race.measured import measure
_, program, log, limit_s = sys.argv
print(json.dumps(asdict(measure([sys.executable, "-c", program], Path(log), float(limit_s), os.environ))))
"""
_SPIN = "import time\nwhile time.process_time() < 0.5: pass\n"


def measured(tmp_path: Path, program: str, limit_s: float = 60.0) -> Measured:
    """Return the measurements that another process makes of a Python program."""
    command = [sys.executable, "-c", _MEASURE, program, str(tmp_path / "log.txt"), str(limit_s)]
    return Measured(**json.loads(subprocess.check_output(command, text=True, cwd=ROOT, timeout=120)))


def row_of(contender: str, seed: int, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - values of any kind
    """Return a row of CartPole's PPO."""
    row = {"task": "cartpole_ppo", "contender": contender, "seed": seed, "quiet": True, "wall_s": 30.0}
    row |= {"processor_s": 50.0, "peak_mib": 700.0, "decisions_per_s": 3_333.0, "updates": 7_580, "score": 500.0}
    row |= {"to_target_s": 12.5, "versions": {"torch": "2.13.0"}, "cpu": "a processor"}
    return row | changes


@pytest.mark.requires_linux
def test_measurement_counts_a_process_that_its_parent_left_behind(tmp_path: Path) -> None:
    """Half a second of a grandchild whose parent has ended is in the processor time, and its memory in the peak."""
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_SPIN!r}])"
    found = measured(tmp_path, orphan)
    assert found.code == 0
    assert found.processor_s > 0.5


@pytest.mark.requires_linux
def test_command_that_is_late_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    """At its limit a command is killed, and so is what it leaves behind."""
    sleeper = "import subprocess, time; subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)"
    found = measured(tmp_path, sleeper, limit_s=3.0)
    assert found.is_late
    assert found.code < 0
    assert found.peak_mib > 1.0


def test_contenders_take_turns_in_the_other_order_for_every_other_seed() -> None:
    """A B, B A, A B; the seeds are those that were declared."""
    arguments = argparse.Namespace(task=["cartpole_ppo"], peer=["tidemill", "sb3"], seeds=list(SEEDS), decisions=0)
    found = [(peer.name, seed) for _, peer, seed in trainings_of(arguments)]
    a, b = "tidemill", "sb3"
    first, second, third = SEEDS
    assert found == [(a, first), (b, first), (b, second), (a, second), (a, third), (b, third)]


@pytest.mark.parametrize("name", TASKS)
def test_settings_of_a_task_are_a_run_of_tidemill(name: str) -> None:
    """Every task's settings make a config that `tidemill train` takes."""
    config = from_document(RunConfig, config_of(TASKS[name]))
    assert config.run.max_env_steps == TASKS[name].decisions
    assert config.run.target_return is None


def test_evaluation_plays_each_seed_once() -> None:
    """A policy that always pushes left drops the pole in some ten steps, from the same starts each time."""
    import numpy as np

    seeds = range(EVALUATION_SEED, EVALUATION_SEED + 3)
    returns = play("CartPole-v1", lambda seen: np.zeros(len(seen), np.int64), seeds)
    assert returns == play("CartPole-v1", lambda seen: np.zeros(len(seen), np.int64), seeds)
    assert all(8 <= each <= 11 for each in returns)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.is_atari])
def test_games_have_the_same_network(name: str) -> None:
    """Tidemill's and that of CleanRL's way have as many parameters, and the latter acts on frames."""
    import numpy as np
    import torch

    from benchmarks.race.peers import cleanrl
    from tidemill.envs.make import spec_of
    from tidemill.rl.agents.build import build_agent

    task = TASKS[name]
    config = from_document(RunConfig, config_of(task))
    theirs = cleanrl.network_of(task)
    ours = build_agent(config.agent, spec_of(config.env), seed=1).policy_state()
    assert sum(each.numel() for each in ours.values()) == sum(each.numel() for each in theirs.state_dict().values())
    policy = cleanrl.act_of(theirs, task)
    frames = np.random.default_rng(1).integers(0, 256, (3, 4, 84, 84), dtype=np.uint8)
    assert policy(frames).shape == (3,)
    assert torch.isfinite(next(theirs.parameters())).all()


def test_game_is_played_once_by_each_seed() -> None:
    """A paddle that never moves loses every ball, from whichever start; games that begin again do not count."""
    import numpy as np

    seeds = range(EVALUATION_SEED, EVALUATION_SEED + 2)
    assert play("ALE/Pong-v5", lambda seen: np.zeros(len(seen), np.int64), seeds) == [-21.0, -21.0]


def test_contender_without_games_is_left_out_of_them() -> None:
    """Only the contenders that were written for images train on them."""
    arguments = argparse.Namespace(task=["pong_ppo"], peer=[], seeds=[1], decisions=0)
    assert {peer.name for _, peer, _ in trainings_of(arguments)} == {"tidemill", "sb3", "cleanrl"}


def test_time_to_the_target_is_that_of_the_first_evaluation_there() -> None:
    """Later falls do not matter; without such an evaluation there is no time."""
    curve = [{"mean": mean, "seconds": 10.0 * at, "decisions": at} for at, mean in enumerate((20.0, 480.0, 90.0), 1)]
    assert to_target(curve, 475)["to_target_s"] == 20.0
    assert to_target(curve, 490)["to_target_s"] is None
    assert to_target(curve, None)["to_target_s"] is None


def test_row_of_the_same_training_is_replaced(tmp_path: Path) -> None:
    """A file has one row for each task, contender and seed, and is read again where a race continues."""
    results = Results(tmp_path / "race.json")
    results.put(row_of("sb3", 1))
    results.put(row_of("sb3", 1, wall_s=31.0))
    assert [row["wall_s"] for row in Results(tmp_path / "race.json").rows] == [31.0]


def test_time_of_a_loaded_machine_is_not_published(tmp_path: Path) -> None:
    """Its score is, and the cell of its time says that it was not measured."""
    page = write_page([row_of("tidemill", 1), row_of("sb3", 1, quiet=False, wall_s=99.0)], tmp_path / "race.md")
    line = next(line for line in page.splitlines() if line.startswith("| Stable-Baselines3 | not measured"))
    assert "500.0" in line
    assert "99.0" not in page
    assert "**30.0**" in page


def test_contenders_of_a_task_ran_on_one_kind_of_processor(tmp_path: Path) -> None:
    """Its name stands below their table; no times of two kinds are compared."""
    assert "a processor\n" in write_page([row_of("tidemill", 1), row_of("sb3", 1)], tmp_path / "race.md")
    found: dict[str, set[str]] = {}
    for row in Results(ROOT / "benchmarks" / "results" / "race.json").rows:
        found.setdefault(row["task"], set()).add(row["cpu"])
    assert all(len(processors) == 1 for processors in found.values())


def test_page_is_made_from_the_rows(tmp_path: Path) -> None:
    """docs/race.md is what `make race ARGS=--table` makes of the committed rows."""
    rows = Results(ROOT / "benchmarks" / "results" / "race.json").rows
    assert write_page(rows, tmp_path / "race.md") == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name not in ("tidemill", "cleanrl")])
def test_peer_has_its_pins(name: str) -> None:
    """The packages of each peer are pinned in a separate file."""
    assert CONTENDERS[name].requirements.exists()
