"""A setting's former name is an error that gives the present one."""

from __future__ import annotations

import pytest

from tidemill.config.load import from_document, load
from tidemill.config.overlay import RENAMED, to_document
from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.agents.registry import algorithms


@pytest.mark.parametrize("former", sorted(RENAMED))
def test_former_name_in_a_file_is_answered_with_the_present_one(former: str) -> None:
    """Wherever it stands in the document, and whatever its value."""
    document: dict[str, object] = {}
    here = document
    *sections, name = former.split(".")
    for section in sections:
        here = here.setdefault(section, {})  # type: ignore[assignment]
    here[name] = 1
    algorithm = "ddpg" if ".noise." in former else None
    with pytest.raises(ConfigError, match=f"setting '{former}' is called '{RENAMED[former]}' now"):
        from_document(RunConfig, document, algorithm)


def test_former_name_on_the_command_line_is_answered_with_the_present_option() -> None:
    """With a value apart or after an equals sign."""
    for arguments in (["--agent.target-every", "5"], ["--agent.target-every=5"], ["--agent.target_every=5"]):
        with pytest.raises(ConfigError, match=r"is called --agent\.target-update-period now"):
            load(RunConfig, arguments, prog="tidemill train", description="")


def test_every_present_name_is_a_setting() -> None:
    """Of one algorithm at least, so that no one is sent to a name that is none either."""
    known: set[str] = set()

    def collect(document: object, path: str) -> None:
        if isinstance(document, dict):
            for key, value in document.items():
                known.add(f"{path}{key}")
                collect(value, f"{path}{key}.")

    for algorithm in algorithms():
        collect(to_document(from_document(RunConfig, {}, algorithm)), "")
    assert set(RENAMED.values()) <= known
    assert not known & set(RENAMED)
