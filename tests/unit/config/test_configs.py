"""The shipped configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.load import from_document, read_document
from tidemill.config.sections import RunConfig

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
    default = from_document(RunConfig, {}, document.get("agent", {}).get("algorithm"))
    for section, values in document.items():
        for name, value in values.items():
            if (section, name) not in (("agent", "algorithm"), ("env", "id")):
                expected = getattr(getattr(default, section), name)
                assert value != (list(expected) if isinstance(expected, tuple) else expected), f"{section}.{name}"
