"""The shipped configuration files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig
from tidemill.rl.settings.registry import config_class
from tidemill.settings.overlay import to_document

FILES = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_config_is_valid_and_named_after_its_file(file: Path) -> None:
    """Every file under configs/ runs as it is, under its own name, and says where it comes from."""
    config = from_document(RunConfig, read_document(file))
    assert config.run.name == file.stem
    assert file.read_text().startswith("# ")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_config_states_only_what_differs_from_the_defaults(file: Path) -> None:
    """A setting in a file is there because it matters; the algorithm and the environment always are."""
    document = read_document(file)
    algorithm = document.get("agent", {}).get("algorithm")
    default = from_document(RunConfig, {}, algorithm)
    sections = dataclasses.replace(RunConfig(), agent=config_class(algorithm)())  # without what the algorithm changes
    for section, values in document.items():
        for name, value in values.items():
            if (section, name) not in (("agent", "algorithm"), ("env", "id")):
                usual = {to_document(getattr(getattr(each, section), name)) == value for each in (default, sections)}
                assert False in usual, f"{section}.{name}"
