"""A seed whose command was stopped continues where it was, unless something differs that its result would not say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.learn.carry_out import carry_out
from benchmarks.learn.plan import Plan
from benchmarks.learn.processes import Processes
from tests.unit.benchmarks.run_folders import COMMIT, config_of, make_run

NOW = {"commit": COMMIT, "machine": {"cores": 2}}


@pytest.mark.parametrize(
    "was, now, again, expected",
    [
        (NOW, NOW, False, "resume"),
        (NOW | {"jobs": 2}, NOW, False, "resume"),
        (NOW, NOW, True, "train"),
        (NOW, NOW | {"commit": "ba9876543210"}, False, "train"),
        (NOW, NOW | {"machine": {"cores": 4}}, False, "train"),
        (NOW | {"commit": f"{COMMIT}-dirty"}, NOW | {"commit": f"{COMMIT}-dirty"}, False, "train"),
    ],
)
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_stopped_seed_continues_on_the_same_commit_and_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    was: dict[str, object],
    now: dict[str, object],
    again: bool,
    expected: str,
    has_checkpoint: bool,
) -> None:
    """Changed files, or no checkpoint, begin it from the start, and only then is its provenance written."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/learn/task/seed-1")
    plan = Plan("task", tmp_path / "task.yaml", "", config_of(folder, 1), (1,), 100, ())
    assert plan.run_folder(1) == folder
    make_run(folder, 1, [(1000, 10.0)], ended=False)
    folder.with_suffix(".json").write_text(json.dumps(was))
    if has_checkpoint:
        (folder / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    commands: list[Sequence[str]] = []

    def note(_: Processes, command: Sequence[str], *__: object) -> int:
        commands.append(command)
        return 1

    monkeypatch.setattr(Processes, "run", note)
    monkeypatch.setattr("benchmarks.learn.carry_out.provenance", lambda: now)
    carry_out(plan, [1], jobs=1, again=again, limit_s=1.0)
    continues = expected == "resume" and has_checkpoint
    assert [command[3] for command in commands] == ["resume" if continues else "train"]
    assert continues or ("--fresh" in commands[0])
    assert json.loads(folder.with_suffix(".json").read_text()) == (was if continues else now | {"jobs": 1})
