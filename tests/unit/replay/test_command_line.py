"""The command line of a replay server on its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.config.load import load
from tidemill.config.sections import ReplayConfig
from tidemill.errors import ConfigError
from tidemill.rpc.tls import check_server
from tidemill.services.replay.__main__ import _COMMANDS, _SHORT, _long, _named_as_given, main


def test_help_is_a_screen_of_what_belongs_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Every short option and command, and nothing of runs, within 80 columns and 32 lines."""
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 80
    shown = {line.split()[0] for line in lines if line.startswith("  ")}
    assert {*_SHORT, *_COMMANDS} <= shown
    assert not any("--run." in line for line in lines)


def test_short_options_are_settings() -> None:
    """Each with its value beside it or behind `=`."""
    words = ["--folder", "data", "--listen=127.0.0.1:0", "--ack", "fsync", "--max-memory-mib", "100"]
    files = ["--tls-cert", "c.pem", "--tls-key=k.pem", "--tokens", "tokens"]
    replay = load(ReplayConfig, _long(words + files), prog="tidemill replay", description="").replay
    assert (replay.storage.folder, replay.storage.ack, replay.max_memory_mib) == ("data", "fsync", 100)
    server = replay.server
    assert (server.address, server.tls_cert, server.tls_key, server.tokens) == (
        "127.0.0.1:0",
        *(str(Path.cwd() / name) for name in ("c.pem", "k.pem", "tokens")),
    )


@pytest.mark.parametrize(
    "options, said",
    [
        (["--listen", "0.0.0.0:0"], "--tls-cert --tls-key --tokens --replay.server.insecure"),
        (["--listen", "0.0.0.0:0", "--tls-cert", "c.pem"], "--tls-cert --tls-key"),
        (["--replay.server.address", "0.0.0.0:0"], "server.tls_cert server.tokens server.insecure"),
    ],
)
def test_refusal_names_options_as_they_are_typed(options: list[str], said: str) -> None:
    """Short ones also for settings that are missing, in full what has no short one; without any, settings."""
    with pytest.raises(ConfigError) as refused:
        check_server(load(ReplayConfig, _long(options), prog="tidemill replay", description="").replay.server)
    assert re.search(naming(said), _named_as_given(str(refused.value), options))
