"""The table of each algorithm's defaults says what a run gets."""

from __future__ import annotations

from pathlib import Path

from tidemill.config.load import load
from tidemill.config.sections import RunConfig
from tidemill.rl.settings.registry import algorithms

_PAGE = Path(__file__).parents[3] / "docs" / "algorithms.md"


def test_table_of_defaults_is_what_naming_an_algorithm_gives() -> None:
    """A row for each algorithm, with the values that a run without other settings has."""
    section = _PAGE.read_text(encoding="utf-8").split("## Defaults")[1].split("## ")[0]
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")
    ]
    table = {row[0]: row[1:6] for row in rows if row[0] in algorithms()}
    assert set(table) == set(algorithms())
    for name, row in table.items():
        config = load(RunConfig, ["--agent.algorithm", name], prog="test", description="")
        learner = config.learner
        found = (
            config.env.num_envs,
            config.agent.batch_size,
            f"{learner.updates_per_env_step:g}",
            config.table.sampler,
        )
        assert row == [*map(str, found), str(learner.max_policy_lag)], name
