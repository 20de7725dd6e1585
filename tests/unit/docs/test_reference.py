"""The generated pages: docs/reference is what dataclasses and protos say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scripts.docs import configuration, wire
from scripts.docs.generated import FOLDER, write_or_check
from tidemill.config.documented import settings
from tidemill.config.sections import RunConfig
from tidemill.learner.v1 import learner_pb2
from tidemill.params.v1 import params_pb2
from tidemill.replay.v1 import replay_pb2
from tidemill.rl.settings.registry import algorithms, config_class


def test_configuration_page_is_what_the_dataclasses_say() -> None:
    """`make check` holds this too."""
    assert configuration.PAGE.read_text() == configuration.page()


def test_configuration_page_documents_every_setting() -> None:
    """Each of every section and algorithm has a default, a type and a meaning."""
    page = configuration.page()
    run = RunConfig()
    for section in dataclasses.fields(run):
        configs = [config_class(name)() for name in algorithms()] if section.name == "agent" else []
        for config in configs or [getattr(run, section.name)]:
            for name, *_, text in settings(section.name, config):
                assert text, f"{name} has no docstring"
                assert f"| `{name}` | " in page
    assert "| `learner.publish_every` | `100` | integer | " in page
    assert "| `replay.server` | address `127.0.0.1:7401`, max_request_bytes `20_971_520` | [server]" in page
    assert "| `run.target_return` | none | number, or none | " in page
    assert "| `agent.noise.std` | " in page


def test_wire_page_is_what_the_protos_say() -> None:
    """`make check` holds this too."""
    assert wire.PAGE.read_text() == wire.page()


def test_wire_page_has_every_call_message_and_field() -> None:
    """By the descriptors of the stubs."""
    page = wire.page()
    for module in (replay_pb2, params_pb2, learner_pb2):
        file = module.DESCRIPTOR
        assert f"\n## {file.package}\n" in page
        for service in file.services_by_name.values():
            assert all(f"\n#### {service.name}.{method.name}\n" in page for method in service.methods)
        for message in file.message_types_by_name.values():
            assert f"\n### {message.name}\n" in page
            assert all(f"| {field.number} | `{field.name}` | " in page for field in message.fields)


def test_page_that_is_old_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It says what to run; without `--check` the page is written."""
    page = FOLDER / "nothing.md"
    assert write_or_check(page, "new", "python -m it", ["--check"]) == 1
    assert capsys.readouterr().err == "docs/reference/nothing.md is out of date: run python -m it\n"
    written = tmp_path / "reference" / "page.md"
    assert write_or_check(written, "new", "python -m it", []) == 0
    assert write_or_check(written, "new", "python -m it", ["--check"]) == 0
