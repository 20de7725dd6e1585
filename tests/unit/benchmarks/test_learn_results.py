"""Each committed result can be made again: its commit is in the history and its settings are known."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learn.plan import RESULTS
from benchmarks.learn.ran import read_json
from tidemill.config.load import load_config

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = sorted(file.parent for file in (ROOT / RESULTS).glob("*/result.json"))


def commits_of(document: dict[str, Any]) -> set[str]:
    """Return the commits that the runs of a result were made with; a run without one counts as an empty text."""
    commits = document["commit"]
    return {commit or "" for commit in (commits if isinstance(commits, list) else [commits])}


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of git in this checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60.0, check=False)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_runs_of_a_result_were_made_from_committed_files(folder: Path) -> None:
    """A run of changed files, or of none that are known, cannot be made again."""
    commits = commits_of(read_json(folder / "result.json"))
    assert not {commit for commit in commits if not commit or commit.endswith("-dirty")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_commits_of_a_result_are_in_the_history(folder: Path) -> None:
    """Whoever wants to repeat a result can check its commit out."""
    if (is_shallow := git("rev-parse", "--is-shallow-repository")).returncode or is_shallow.stdout.strip() == "true":
        pytest.skip("needs the history: this is an exported folder or a shallow clone")
    commits = commits_of(read_json(folder / "result.json"))
    assert not {commit for commit in commits if git("merge-base", "--is-ancestor", commit, "HEAD").returncode}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_config_of_a_result_can_be_run_today(folder: Path) -> None:
    """A setting that was renamed has its present name there, one whose default has changed its former value."""
    config = load_config(folder / "config.yaml")
    over = read_json(folder / "result.json")["over_seeds"]
    if ratio := config.learner.updates_per_env_step:
        due = ratio * (over["env_steps"] - config.table.min_size)
        assert 0.5 * due <= over["learner_steps"] <= 1.05 * ratio * over["env_steps"]
