"""Writing and reading with TLS and tokens, as docs/replay.md says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.naming import naming
from tests.support.numbered_steps import numbered_step, steps_table
from tests.support.replay_service import server_process
from tests.support.security import become
from tests.support.waiting import WAIT_S
from tidemill.errors import PermissionDenied, Unauthenticated, Unavailable
from tidemill.replay import ItemWindow, ReplayClient, ReplayDataset, ReplayWriter, Server
from tidemill.rpc.client_security import channel_credentials
from tidemill.services.tools.certs import make


def test_server_of_the_program_is_reached_where_the_environment_names_a_ca(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the program and the processes that it starts; servers elsewhere are called by TLS, as before and after."""
    make(tmp_path)
    become(monkeypatch, ca=tmp_path / "ca.pem", token=tmp_path / "learner.token")
    monkeypatch.setenv("TIDEMILL_TLS_EXCEPT", "127.0.0.1:9")
    code = "import sys; from tidemill.replay import ReplayClient; print(len(ReplayClient(sys.argv[1]).list_tables()))"
    with Server() as server, Server() as another:
        with ReplayWriter(server.address, steps_table(), windows=ItemWindow(1)) as writer:
            writer.append(numbered_step(7))
        command = [sys.executable, "-c", code, server.address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
        assert done.stdout == "1\n"
        with ReplayClient(another.address) as client:
            assert client.list_tables() == ()
        assert channel_credentials("127.0.0.1:10") is not None
    assert channel_credentials(server.address) is not None
    assert os.environ["TIDEMILL_TLS_EXCEPT"] == "127.0.0.1:9"


def test_each_brings_the_token_of_its_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner's creates the table and reads it, an actor's writes to it by name; without one nobody does anything."""
    make(tmp_path)
    files = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tokens", "tokens.txt")
    options = [word if word.startswith("--") else str(tmp_path / word) for word in files]
    table = steps_table()
    with server_process("127.0.0.1:0", *options) as server:
        become(monkeypatch, ca=tmp_path / "ca.pem", token=tmp_path / "learner.token")
        with ReplayClient(server.address) as client:
            client.create_table(table)
        become(monkeypatch, ca=tmp_path / "ca.pem", token=tmp_path / "actor.token")
        with ReplayWriter(server.address, "t", windows=ItemWindow(1)) as writer:
            writer.append(numbered_step(7))
        with pytest.raises(PermissionDenied, match="actor"):
            ReplayWriter(server.address, table)
        become(monkeypatch, ca=tmp_path / "ca.pem", token=tmp_path / "learner.token")
        with ReplayDataset(server.address, "t", 1, timeout_s=WAIT_S) as dataset:
            assert next(dataset)["number"][0, -1] == 7
        become(monkeypatch, ca=tmp_path / "ca.pem")
        with pytest.raises(Unauthenticated):
            ReplayDataset(server.address, "t", 1)
        become(monkeypatch)
        for tables in (table, "t"):
            with pytest.raises(Unavailable, match=naming("TLS TIDEMILL_TLS_CA")):
                ReplayWriter(server.address, tables, timeout_s=0.5)
