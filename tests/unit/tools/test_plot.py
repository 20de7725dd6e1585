"""Runs are grouped by what they share, drawn, and summed up."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib import rc_context
from matplotlib.image import imread

from tests.support.naming import naming
from tidemill.errors import ConfigError
from tidemill.scores import COLUMNS, Score
from tidemill.services.tools.plot.command import plot, table
from tidemill.services.tools.plot.draw import draw
from tidemill.services.tools.plot.groups import find_groups


def _run(folder: Path, seed: int, means: list[float], **agent: Any) -> Path:  # noqa: ANN401 - settings
    """Write a run's settings and scores, an evaluation every 1,000 decisions."""
    folder.mkdir(parents=True)
    settings = {
        "run": {"name": folder.name, "root": str(folder.parent), "seed": seed},
        "env": {"id": "Pendulum-v1"},
        "agent": {"algorithm": "sac"} | agent,
        "learner": {"server": {"address": f"127.0.0.1:{7000 + seed}"}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    with (folder / "scores.csv").open("w") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for index, mean in enumerate(means, start=1):
            rows.writerow(
                dataclasses.asdict(
                    Score(10.0 * index, 500 * index, 1_000 * index, index, 5, mean, 1.0, 0.0, 9.0, mean, 7.0)
                )
            )
    return folder


def _add_settings(folder: Path, sections: dict[str, Any]) -> None:
    """Put sections into a run's config.yaml."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | sections))


def test_runs_that_differ_by_their_seed_are_one_curve(tmp_path: Path) -> None:
    """Another setting makes another curve; names, folders and addresses do not."""
    for seed in (1, 2, 3):
        _run(tmp_path / f"plain-seed-{seed}", seed, [1.0, 2.0])
    _run(tmp_path / "wide", 1, [5.0], hidden_sizes=[64])
    groups = find_groups([str(tmp_path)])
    assert [(group.label, len(group.curves)) for group in groups] == [("plain-seed", 3), ("wide", 1)]
    assert groups[0].env_id == "Pendulum-v1"


@pytest.mark.parametrize(
    "section, name, values",
    [("launcher", "actors", (1, 8)), ("launcher", "learners", (1, 2)), ("replay", "max_streams", (16, 32))],
)
def test_runs_with_other_processes_are_other_curves(
    tmp_path: Path, section: str, name: str, values: tuple[int, int]
) -> None:
    """Actors have other parts of the range of epsilon; trials of a sweep are named by them."""
    for number, value in enumerate(values):
        folder = _run(tmp_path / f"trial-{number:04d}" / "seed-1", 1, [1.0])
        _add_settings(folder, {section: {name: value}})
    groups = find_groups([str(tmp_path)])
    assert [(group.label, len(group.curves)) for group in groups] == [(f"{name} {value}", 1) for value in values]


def test_runs_that_were_watched_otherwise_are_one_curve(tmp_path: Path) -> None:
    """Nor do addresses, folders and loggers of their machines part them."""
    for seed, view in ((1, "live"), (2, "quiet")):
        folder = _run(tmp_path / f"seed-{seed}", seed, [1.0])
        source = {"replay": [f"10.0.0.{seed}:7401"], "fraction": 0.2}
        storage = {"folder": f"/disk{seed}"}
        settings = {
            "log": {"level": view},
            "launcher": {"view": view, "actors": 2, "loggers": [view]},
            "cluster": {"replay": [f"10.0.0.{seed}:7401"]},
            "replay": {"server": {"address": view}, "storage": storage},
            "learner": {"sources": {"walks": source, "walks.v2": source}},
        }
        _add_settings(folder, settings)
    (group,) = find_groups([str(tmp_path)])
    assert len(group.curves) == 2


def test_runs_of_two_releases_are_one_curve(tmp_path: Path) -> None:
    """The settings of the earlier one lack what the later one added; another value than the default counts."""
    for seed, settings in enumerate(({}, {"tau": 0.005}, {"tau": 0.01}), start=1):
        _run(tmp_path / f"lander-{seed}", seed, [1.0], **settings)
    assert [len(group.curves) for group in find_groups([str(tmp_path)])] == [2, 1]


def test_runs_of_an_algorithm_that_is_not_here_are_compared_by_what_their_settings_say(tmp_path: Path) -> None:
    """Its defaults are unknown."""
    for seed in (1, 2):
        _run(tmp_path / f"own-{seed}", seed, [1.0], algorithm="not_installed_here")
    _run(tmp_path / "other", 1, [1.0], algorithm="not_installed_here", gamma=0.9)
    assert sorted(len(group.curves) for group in find_groups([str(tmp_path)])) == [1, 2]


def test_runs_of_an_algorithm_that_raises_when_imported_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one that is being edited."""
    package = tmp_path / "half_written" / "agent"
    package.mkdir(parents=True)
    (package / "config.py").write_text("raise RuntimeError('no GPU')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for seed in (1, 2):
        _run(tmp_path / "runs" / f"own-{seed}", seed, [1.0], algorithm="half_written.agent")
    assert [len(group.curves) for group in find_groups([str(tmp_path / "runs")])] == [2]


def test_folder_of_seeds_names_its_curve(tmp_path: Path) -> None:
    """`seed-1`, `seed-2` say nothing: the folder above does."""
    for seed in (1, 2):
        _run(tmp_path / "lander" / f"seed-{seed}", seed, [1.0])
    assert [group.label for group in find_groups([str(tmp_path / "lander")])] == ["lander"]


def test_label_puts_runs_together(tmp_path: Path) -> None:
    """Runs of several settings under one label are one curve, and a run that is named twice counts once."""
    first, second = _run(tmp_path / "a", 1, [1.0]), _run(tmp_path / "b", 2, [2.0], hidden_sizes=[8])
    (group,) = find_groups([f"ours={first}", f"ours={second}", f"ours={first}"])
    assert (group.label, [curve.folder.name for curve in group.curves]) == ("ours", ["a", "b"])


def test_folder_whose_name_has_an_equals_sign_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before the sign is a label only if there is no such folder."""
    monkeypatch.chdir(tmp_path)
    run = _run(Path("sweeps", "lr=3", "a"), 1, [1.0])
    _run(tmp_path / "b", 1, [2.0])
    groups = find_groups(["sweeps/lr=3", "ours=b", f"ours={run}"])
    names = [(group.label, [curve.folder.name for curve in group.curves]) for group in groups]
    assert names == [("a", ["a"]), ("ours", ["b", "a"])]


@pytest.mark.parametrize(
    "names, label",
    [
        (["q1", "q2"], "q"),
        (["seed-1", "seed-2"], "lander"),
        (["1", "2"], "lander"),
        (["first", "second"], "first + second"),
        (["a" * 30, "b" * 30], "lander"),
    ],
)
def test_label_of_a_curve_says_which_runs_it_is_of(tmp_path: Path, names: list[str], label: str) -> None:
    """What their names have in common, or all of them; the folder above where they say nothing or too much."""
    folders = [_run(tmp_path / "lander" / name, seed, [1.0]) for seed, name in enumerate(names)]
    (group,) = find_groups([str(folder) for folder in folders])
    assert group.label == label


def test_trials_of_a_sweep_are_named_by_what_they_differ_in(tmp_path: Path) -> None:
    """Its folder is enough; a trial's seeds make one curve."""
    for number, rate in enumerate((0.001, 0.01)):
        for seed in (1, 2):
            _run(tmp_path / f"trial-{number:04d}" / f"seed-{seed}", seed, [1.0], learning_rate=rate, gamma=0.9)
    groups = find_groups([str(tmp_path)])
    assert [group.label for group in groups] == ["learning_rate 0.001", "learning_rate 0.01"]
    assert [len(group.curves) for group in groups] == [2, 2]
    (alone,) = find_groups([str(tmp_path / "trial-0001")])
    assert alone.label == "trial-0001"


def test_runs_of_one_name_with_other_settings_are_named_by_these(tmp_path: Path) -> None:
    """As after `--fresh`, which numbers the earlier runs, or `pong-1`, `pong-2` beside `pong-3`, `pong-4`."""
    for number, rate in enumerate((0.001, 0.001, 0.01, 0.01), start=1):
        _run(tmp_path / f"pong-{number}", number % 2, [1.0], learning_rate=rate)
    _run(tmp_path / "wide", 1, [1.0], hidden_sizes=[64])
    groups = find_groups([str(tmp_path)])
    labels = ["pong, learning_rate 0.001", "pong, learning_rate 0.01", "wide"]
    assert [(group.label, len(group.curves)) for group in groups] == list(zip(labels, (2, 2, 1), strict=True))


def test_runs_of_one_name_and_other_algorithms_are_named_by_few_settings(tmp_path: Path) -> None:
    """They differ in dozens; those that tell them apart are enough."""
    agents: list[dict[str, Any]] = [{}, {"algorithm": "td3"}, {"algorithm": "td3", "gamma": 0.5}]
    for number, agent in enumerate(agents):
        _run(tmp_path / str(number) / "pong", 1, [1.0], **agent)
    groups = find_groups([str(tmp_path / str(number)) for number in range(3)])
    labels = ["algorithm sac, gamma 0.99", "algorithm td3, gamma 0.99", "algorithm td3, gamma 0.5"]
    assert [group.label for group in groups] == [f"pong, {label}" for label in labels]


def test_run_that_is_given_from_within_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its label was that of the folder above."""
    run, other = _run(tmp_path / "pong", 1, [1.0]), _run(tmp_path / "wide", 1, [2.0], hidden_sizes=[64])
    monkeypatch.chdir(run)
    assert [group.label for group in find_groups([".", str(other)])] == ["pong", "wide"]


def test_folder_without_runs_is_explained(tmp_path: Path) -> None:
    """What has no evaluation yet cannot be drawn."""
    _run(tmp_path / "young", 1, [])
    with pytest.raises(ConfigError, match=naming(tmp_path)):
        find_groups([str(tmp_path)])


def test_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    """As by the other commands, with the runs beside it."""
    run = _run(tmp_path / "a", 1, [1.0])
    words = f"{tmp_path / 'none'} is not a run: it has no config.yaml; runs: {run}"
    with pytest.raises(ConfigError, match=naming(words)):
        find_groups([str(tmp_path / "none")])


def test_run_whose_services_were_started_by_hand_is_told_what_it_lacks(tmp_path: Path) -> None:
    """Nothing but `tidemill check` writes its settings, and it has evaluations."""
    run = _run(tmp_path / "a", 1, [1.0])
    (run / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=naming(f"{run} is not a run: it has no config.yaml, `tidemill check`")):
        find_groups([str(run)])


def test_exported_policy_is_not_taken_for_a_run(tmp_path: Path) -> None:
    """It has the scores of its run, which would count twice."""
    run, policy = _run(tmp_path / "a", 1, [1.0]), _run(tmp_path / "a-policy", 1, [1.0])
    (policy / "bundle.json").touch()
    (group,) = find_groups([str(tmp_path)])
    assert [curve.folder for curve in group.curves] == [run]
    with pytest.raises(ConfigError, match=naming(f"{policy} is an exported policy, not a run")):
        find_groups([str(policy)])


def test_points_follow_the_chosen_axis(tmp_path: Path) -> None:
    """Decisions, seconds or updates, each with the mean return there."""
    _run(tmp_path / "a", 1, [1.0, 4.0])
    (group,) = find_groups([str(tmp_path / "a")])
    (curve,) = group.curves
    assert curve.points("env_steps") == ([1_000.0, 2_000.0], [1.0, 4.0])
    assert curve.points("wall_s") == ([10.0, 20.0], [1.0, 4.0])
    assert curve.points("learner_steps") == ([500.0, 1_000.0], [1.0, 4.0])


def test_table_sums_the_last_evaluations_up(tmp_path: Path) -> None:
    """Of 2, 4, 6, 8 the mean is 5, as is the interquartile mean; the interval lies between the extremes."""
    for seed, last in enumerate((2.0, 4.0, 6.0, 8.0)):
        _run(tmp_path / f"a-{seed}", seed, [0.0, last])
    _run(tmp_path / "other", 1, [7.5], hidden_sizes=[8])
    first, second = table(find_groups([str(tmp_path)]))
    assert first.startswith("a      4 seeds, 2,000 env steps: last evaluations 5.0 [")
    assert first.endswith("], interquartile mean 5.0")
    assert second == "other  1 seed, 1,000 env steps: last evaluation 7.5 over 5 episodes"


@pytest.mark.parametrize("x", ["env_steps", "wall_s", "learner_steps"])
def test_picture_shows_every_group(tmp_path: Path, x: str) -> None:
    """The picture is there whole, in its size, and more than one colour is on it."""
    for seed in (1, 2):
        _run(tmp_path / f"a-{seed}", seed, [1.0, 2.0, 3.0])
    _run(tmp_path / "b", 1, [5.0, 4.0], hidden_sizes=[8])
    draw(find_groups([str(tmp_path)]), x, tmp_path / "plot.png")
    picture = imread(tmp_path / "plot.png")[..., :3]
    assert picture.shape[:2] == (600, 1080)
    blue, orange = np.array((31, 119, 180)) / 255, np.array((255, 127, 14)) / 255
    for colour in (blue, orange):
        assert (np.abs(picture - colour).max(axis=-1) < 0.02).sum() > 100


@pytest.mark.parametrize("count, label", [(60, "rate {}"), (2, "learning_rate {}, " + "hidden_sizes [64, 64]")])
def test_legend_is_whole_and_leaves_room_for_the_curves(tmp_path: Path, count: int, label: str) -> None:
    """The picture of many curves is higher, and long names have a line each. Matplotlib warns where no room is left."""
    for seed in (1, 2):
        _run(tmp_path / f"seed-{seed}", seed, [1.0, 2.0])
    (group,) = find_groups([str(tmp_path)])
    named = [dataclasses.replace(group, label=label.format(number)) for number in range(count)]
    draw(named, "env_steps", tmp_path / "plot.png")
    picture = imread(tmp_path / "plot.png")[..., :3]
    assert (picture[:, [0, -1]] == 1).all(), "cut off at an edge"


def test_seeds_without_a_common_range_are_in_the_legend(tmp_path: Path) -> None:
    """One that ended after its first evaluation leaves no range for a mean; the thin lines are named, once."""
    for seed, means in ((1, [1.0, 2.0, 3.0]), (2, [2.0])):
        _run(tmp_path / f"seed-{seed}", seed, means)
    with rc_context({"svg.fonttype": "none"}):
        draw(find_groups([str(tmp_path)]), "env_steps", tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().count("2 seeds, without a common range for a mean") == 1


def test_runs_that_share_a_seed_are_not_called_seeds(tmp_path: Path) -> None:
    """As where the seed was forgotten, or another path names the same run."""
    for number, seed in enumerate((1, 1, 2)):
        _run(tmp_path / f"a-{number}", seed, [1.0, 2.0])
    (tmp_path / "b-0").symlink_to(tmp_path / "a-0")
    groups = find_groups([str(tmp_path)])
    (line,) = table(groups)
    assert line.startswith("a  3 runs of 2 seeds, 2,000 env steps: ")
    with rc_context({"svg.fonttype": "none"}):
        draw(groups, "env_steps", tmp_path / "plot.svg")
    assert "a: mean of 3 runs of 2 seeds, 95 % bootstrap interval" in (tmp_path / "plot.svg").read_text()


def test_command_refuses_an_unknown_format_before_it_reads(tmp_path: Path) -> None:
    """The name says the format."""
    with pytest.raises(ConfigError, match=naming(".png .pdf .svg")):
        plot([str(tmp_path), "--out", "plot.bmp"])


def test_picture_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """With the file and the reason."""
    run = _run(tmp_path / "a", 1, [1.0])
    for file in (run / "scores.csv/plot.png", run / "scores.csv/plots/plot.png"):
        with pytest.raises(ConfigError, match=naming(f"--out cannot be written to {file}")):
            plot([str(run), "--out", str(file)])


def test_command_draws_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table, and where the picture is."""
    _run(tmp_path / "a", 1, [1.0, 2.0])
    assert plot([str(tmp_path / "a"), "--out", str(tmp_path / "pictures/a.svg"), "--x", "wall_s"]) == 0
    assert (tmp_path / "pictures/a.svg").read_text().startswith("<?xml")
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "pictures/a.svg")


def test_run_that_has_not_ended_is_drawn_and_not_averaged(tmp_path: Path) -> None:
    """It would end the mean where it ends; of runs that all continue every one counts."""
    for seed, means in ((1, [1.0, 2.0, 3.0]), (2, [3.0, 4.0, 5.0])):
        (_run(tmp_path / f"seed-{seed}", seed, means) / "result.json").write_text("{}")
    _run(tmp_path / "seed-3", 3, [100.0])
    (group,) = find_groups([str(tmp_path)])
    assert [curve.folder.name for curve in group.curves] == ["seed-1", "seed-2", "seed-3"]
    assert [curve.folder.name for curve in group.averaged] == ["seed-1", "seed-2"]
    (line,) = table([group])
    assert "2 seeds, 3,000 env steps: last evaluations 4.0 [" in line
    assert line.endswith("interquartile mean 4.0 (1 more not ended)")
    for seed in (1, 2):
        (tmp_path / f"seed-{seed}" / "result.json").unlink()
    assert len(find_groups([str(tmp_path)])[0].averaged) == 3


def test_trials_that_share_a_replay_service_are_grouped_by_their_settings(tmp_path: Path) -> None:
    """Each run has its own table and actor there, which are not settings of the trial."""
    for number, rate in enumerate((0.001, 0.01)):
        for seed in (1, 2):
            folder = _run(tmp_path / f"trial-{number:04d}" / f"seed-{seed}", seed, [1.0], learning_rate=rate)
            name = f"trial_{number}_seed_{seed}"
            _add_settings(folder, {"table": {"name": name}, "actor": {"id": name}})
    groups = find_groups([str(tmp_path)])
    assert [(group.label, len(group.curves)) for group in groups] == [
        ("learning_rate 0.001", 2),
        ("learning_rate 0.01", 2),
    ]


def test_trials_of_two_sweeps_keep_their_own_names(tmp_path: Path) -> None:
    """Both have a first trial."""
    for sweep, rate in (("a", 0.001), ("b", 0.01)):
        _run(tmp_path / sweep / "trial-0000" / "seed-1", 1, [1.0], learning_rate=rate)
    groups = find_groups([str(tmp_path / "a"), str(tmp_path / "b")])
    assert [group.label for group in groups] == ["learning_rate 0.001", "learning_rate 0.01"]
