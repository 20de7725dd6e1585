"""Seeds of reports are named before they are run, run once, and seen by nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.learn import __main__ as command
from benchmarks.learn import plan as plans
from benchmarks.learn.__main__ import _make, parser
from benchmarks.learn.plan import Plan
from benchmarks.learn.seeds import RESERVED, Declared, is_reported, read_declared
from tests.support.naming import naming
from tests.unit.benchmarks.run_folders import add_test, make_run
from tidemill.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
CONFIG = "run: {target_return: 50}\n"
SEEDS = {"quickstart_of_twenty": 20, "pong_apex_on_a_gpu": 1} | {
    f"rainbow_100k_{game}": 2 for game in ("road_runner", "krull", "freeway")
}
"""Where others than three or five are declared."""
ROW = Declared("task", "task.yaml", (1001, 1002), ())


def reported(results: Path, seeds: list[int], config: str = CONFIG, *, declared: bool = True) -> Path:
    """Make the committed result of some seeds, as far as it is asked."""
    results.mkdir(parents=True)
    (results / "config.yaml").write_text(config)
    document = {"declared_seeds": declared, "seeds": seeds[:1], "unfinished_seeds": seeds[1:]}
    (results / "result.json").write_text(json.dumps(document))
    return results


def test_shipped_declarations_belong_to_configs_and_can_be_planned() -> None:
    """Every continuous row of the table is there, with five seeds, the quickstart with twenty, others with three."""
    rows = {row.name: row for row in read_declared()}
    pendulum = {path.stem for path in (ROOT / "configs").glob("pendulum_*.yaml") if "positions" not in path.stem}
    continuous = pendulum | {name for name in rows if name.startswith("lunarlander_continuous_")}
    five = {*continuous, "cartpole_ppo", "pendulum_ppo_beside_sb3"}
    assert five <= rows.keys()
    for row in rows.values():
        arguments = parser().parse_args([str(ROOT / row.config), "--seeds", *map(str, row.seeds), *row.options])
        plan = plans.make_plan(arguments, declared=True)
        assert row.name.startswith(plan.config.run.name)
        assert len(plan.seeds) == SEEDS.get(row.name, 5 if row.name in five else 3)


def test_run_on_a_gpu_is_documented_with_its_settings() -> None:
    """The command of the table is the one that made the result: a limit of time decides which version is evaluated."""
    (declared,) = read_declared(["pong_apex_on_a_gpu"])
    (row,) = re.findall(r"^\| `--config pong_apex.*$", (ROOT / "docs/performance.md").read_text(), re.MULTILINE)
    settings = [word.split("=") for word in declared.options if "=" in word and not word.startswith("run.name")]
    assert len(settings) == 3
    for name, value in settings:
        assert f"--{name.replace('_', '-')} {value}" in row


@pytest.mark.parametrize(
    "entry", ["{config: c, seeds: [1, 2]}", "{config: c, seeds: []}", "{config: c, seeds: [1001, 1001]}", "[1001]"]
)
def test_declaration_of_seeds_that_are_not_reserved_is_refused(entry: str, tmp_path: Path) -> None:
    """A seed that a trial may have had, none at all, one twice, and anything but a declaration."""
    file = tmp_path / "declared.yaml"
    file.write_text(f"task: {entry}\n")
    with pytest.raises(ConfigError, match="task"):
        read_declared(file=file)


def test_undeclared_name_is_refused_with_those_there_are(tmp_path: Path) -> None:
    """Nothing is made up for it."""
    with pytest.raises(ConfigError, match=naming("other pendulum_sac")):
        read_declared(["other"])


def test_report_is_made_once(tmp_path: Path) -> None:
    """What has none is run, what has been reported is left alone, seeds that did not finish included."""
    assert not is_reported(ROW, tmp_path / "none", CONFIG)
    assert not is_reported(ROW, reported(tmp_path / "seen", [1, 2, 3], declared=False), CONFIG)
    assert is_reported(ROW, reported(tmp_path / "task", [1001, 1002]), CONFIG)


@pytest.mark.parametrize("seeds", [[1001], [1001, 1002, 1003], [1001, 1003]])
def test_report_cannot_be_extended_afterwards(seeds: list[int], tmp_path: Path) -> None:
    """Whatever else is declared for the same settings later."""
    with pytest.raises(ConfigError, match=naming("seeds")):
        is_reported(ROW, reported(tmp_path / "task", seeds), CONFIG)


def test_changed_settings_want_other_seeds(tmp_path: Path) -> None:
    """Those that were reported with earlier settings have been seen; new ones are run."""
    with pytest.raises(ConfigError, match=naming("seeds")):
        is_reported(ROW, reported(tmp_path / "task", [1001, 1002]), "run: {target_return: 60}")
    assert not is_reported(ROW, reported(tmp_path / "before", [1003, 1004]), "run: {target_return: 60}")


@pytest.fixture(name="ran")
def fixture_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Stand in an empty folder with two declared rows whose runs end at once; return what is run, as (name, seed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "benchmarks.learn.carry_out.commit", lambda _root=ROOT: "0123456789ab"
    )  # whatever is checked out
    declared = tmp_path / "declared.yaml"
    declared.write_text(
        "first: {config: task.yaml, seeds: [1001, 1002]}\n"
        "second: {config: task.yaml, seeds: [1001], options: [--full]}\n"
    )
    (tmp_path / "task.yaml").write_text("run: {target_return: 50}\nenv: {id: CartPole-v1}\nagent: {algorithm: dqn}\n")
    monkeypatch.setattr(command, "read_declared", lambda names: read_declared(names, declared))
    ran: list[tuple[str, int]] = []

    def carry_out(plan: Plan, seeds: tuple[int, ...], **_: object) -> None:
        plan.write()
        for seed in seeds:
            if not plan.run_folder(seed).exists():
                ran.append((plan.name, seed))
                make_run(plan.run_folder(seed), seed, [(1000, 10.0), (3000, 60.0)], confirmed=52.0)
                add_test(plan.run_folder(seed), 2, 55.0)

    monkeypatch.setattr(command, "carry_out", carry_out)
    return ran


def _run(*words: str) -> int:
    return _make(parser().parse_args(words))


def test_report_goes_on_where_it_was_stopped(ran: list[tuple[str, int]]) -> None:
    """One row after the other; a row that is there is not run again, and the table has all of them."""
    assert _run("--report", "second") == 0
    assert ran == [("second", 1001)]
    assert _run("--report") == 0
    assert ran == [("second", 1001), ("first", 1001), ("first", 1002)]
    table = (plans.RESULTS / "README.md").read_text()
    assert table.count("unseen, fixed before") == 2
    assert "`python -m benchmarks.learn --report first`" in table


@pytest.mark.parametrize(
    "words, said",
    [
        (["task.yaml", "--seeds", "1", str(RESERVED[0])], "kept for reports"),
        (["task.yaml", "--name", "first"], "is a report on declared seeds"),
        (["task.yaml", "--name", "first", "--seeds", "1001", "1002", "1003", "--extend"], "kept for reports"),
        (["task.yaml", "--name", "first", "--report-only"], "is a report on declared seeds"),
        (["--report", "first", "--again"], "all else is declared"),
        (["--report", "first", "--seeds", "1003"], "all else is declared"),
        (["task.yaml", "--report"], "all else is declared"),
    ],
)
def test_nothing_else_sees_or_changes_a_report(ran: list[tuple[str, int]], words: list[str], said: str) -> None:
    """No other command runs reserved seeds, writes over a report, or makes one with other words."""
    assert _run("--report", "first") == 0
    before = len(ran)
    with pytest.raises(ConfigError, match=said):
        _run(*words)
    assert len(ran) == before
