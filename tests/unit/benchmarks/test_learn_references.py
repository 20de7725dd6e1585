"""What results are compared with is named, and complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.learn.plan import RESULTS
from benchmarks.learn.references import Reference, References, references_of
from tidemill.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / RESULTS / "references.yaml"
DECLARED = ROOT / "benchmarks" / "learn" / "declared_seeds.yaml"


@pytest.mark.parametrize("name", sorted(yaml.safe_load(FILE.read_text())))
def test_entry_belongs_to_a_config_and_has_its_sources(name: str) -> None:
    """A misspelt entry would compare nothing; a figure without a source would be hearsay.

    A result of a config with other settings has a separate name, which its declared seeds give it.
    """
    declared = yaml.safe_load(DECLARED.read_text())
    assert (ROOT / "configs" / f"{name}.yaml").exists() or f"run.name={name}" in declared[name]["options"]
    references = references_of(name, None, FILE)
    found = [each for each in (references.threshold, references.published) if each]
    assert found
    assert all(each.what and each.source for each in found)


def test_target_of_the_config_stands_in_for_a_threshold(tmp_path: Path) -> None:
    """A result without an entry is compared with what its run was after, if that is anything."""
    file = tmp_path / "references.yaml"
    target = Reference("target", 7.0, "run.target_return of the config")
    assert references_of("task", 7.0, file) == References(target)
    assert references_of("task", None, file) == References()
    file.write_text("task: {published: {what: somebody, value: 9, source: a table}}\n")
    assert references_of("task", 7.0, file) == References(target, Reference("somebody", 9.0, "a table"))


@pytest.mark.parametrize("entry", ["{goal: 1}", "{published: 9}", "{published: {what: somebody, value: 9}}"])
def test_entry_without_source_is_refused(entry: str, tmp_path: Path) -> None:
    """So is one of another form; the message names the result."""
    file = tmp_path / "references.yaml"
    file.write_text(f"task: {entry}\n")
    with pytest.raises(ConfigError, match="task"):
        references_of("task", None, file)
