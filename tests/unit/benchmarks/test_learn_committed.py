"""A result that grows by a seed is the one that all its runs together would have made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.learn.__main__ import _make, parser
from benchmarks.learn.committed import read_committed
from benchmarks.learn.report import write_report
from tests.support.naming import naming
from tests.unit.benchmarks.run_folders import add_test, make_run
from tidemill.errors import ConfigError

CONFIG = "# as run\nrun: {target_return: 50}\n"


@pytest.fixture(name="roots")
def fixture_roots(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of runs and results: of three seeds one was solved, one did not end, two were tested."""
    runs, results = tmp_path / "runs", tmp_path / "results"
    root = runs / "task"
    make_run(root / "seed-1", 1, [(1000, 10.0), (2000, 60.0)], confirmed=52.0)
    make_run(root / "seed-2", 2, [(1000, 90.0)], ended=False)
    make_run(root / "seed-3", 3, [(1000, 20.0), (4000, 40.0)])
    add_test(root / "seed-1", 2, 51.0)
    add_test(root / "seed-3", 2, 33.0)
    (root / "seed-3.json").write_text(json.dumps({"commit": "another", "machine": {"cores": 8}}))
    (root / "config.yaml").write_text(CONFIG)
    return runs, results


def files_of(results: Path) -> dict[str, bytes]:
    """Return the files of a result."""
    return {file.name: file.read_bytes() for file in (results / "task").iterdir()}


def test_extended_result_is_the_whole_one_to_the_byte(roots: tuple[Path, Path]) -> None:
    """Means, interval, curve, picture and each seed's commit: nothing is lost on the way through the files."""
    runs, results = roots
    write_report("task", runs_root=runs, results_root=results)
    whole = files_of(results)
    write_report("task", [1, 2], runs_root=runs, results_root=results)
    assert files_of(results) != whole
    for seed in (1, 2):
        shutil.rmtree(runs / "task" / f"seed-{seed}")
    committed = read_committed(results / "task", CONFIG, [1, 2, 3])
    assert [ran.seed for ran in committed] == [1, 2]
    write_report("task", [3], committed, runs_root=runs, results_root=results)
    assert files_of(results) == whole


def test_only_the_named_seeds_are_kept(roots: tuple[Path, Path]) -> None:
    """A seed of the result that nobody asks for is left out of the new one."""
    write_report("task", runs_root=roots[0], results_root=roots[1])
    assert [ran.seed for ran in read_committed(roots[1] / "task", CONFIG, [3, 4])] == [3]
    assert read_committed(roots[1] / "other", CONFIG, [3]) == []


@pytest.mark.parametrize("config", ["run: {target_return: 60}\n", "run: {target_return: 50, max_wall_s: 9}\n"])
def test_seeds_of_other_settings_are_refused(roots: tuple[Path, Path], config: str) -> None:
    """They would not be one result; comments may differ."""
    write_report("task", runs_root=roots[0], results_root=roots[1])
    assert read_committed(roots[1] / "task", CONFIG.replace("as run", "said again"), [1])
    with pytest.raises(ConfigError, match=naming("settings")):
        read_committed(roots[1] / "task", config, [1])


def test_result_with_a_peer_is_refused(roots: tuple[Path, Path]) -> None:
    """Its peer's runs would be lost without a word."""
    make_run(roots[0] / "task" / "sb3-seed-1", 1, [(1000, 5.0)])
    write_report("task", runs_root=roots[0], results_root=roots[1])
    with pytest.raises(ConfigError, match="peer"):
        read_committed(roots[1] / "task", CONFIG, [1])


def test_peer_of_the_new_seeds_alone_is_refused() -> None:
    """It would stand beside a mean over other seeds."""
    arguments = parser().parse_args(["configs/cartpole_dqn.yaml", "--extend", "--sb3", "folder"])
    with pytest.raises(ConfigError, match=naming("--extend")):
        _make(arguments)
