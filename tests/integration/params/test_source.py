"""The evaluator's source of parameters, at a real parameter server."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.params_service import METADATA, LocalServer, local_server
from tests.support.waiting import WAIT_S
from tidemill.errors import TidemillError
from tidemill.params.client import ParamsClient
from tidemill.params.version import VERDICT, Precision
from tidemill.services.evaluator.params_source import ParamsSource


def test_first_version_after_so_many_decisions(client: ParamsClient, server: LocalServer) -> None:
    """The server keeps the newest three of five, and so cannot say that the third is the first after a multiple."""
    token = client.acquire_fencing_token("learner").fencing_token
    for number in range(1, 6):
        metadata = dataclasses.replace(METADATA, env_steps=100 * number)
        client.publish({Precision.FULL: b"%d" % number}, metadata, fencing_token=token, base_version=number - 1)
    with closing(ParamsSource(server.address, threading.Event(), connect_timeout_s=10.0)) as source:
        found = [source.first_after(*asked) for asked in ((100, 100), (200, 200), (350, 50), (400, 400), (600, 100))]
    assert [params and params.number for params in found] == [4, 4, 4, 4, None]


def _away(folder: Path) -> str:
    """Return the address of a server that has ended, and whose folder holds one version."""
    with local_server(folder) as server, ParamsClient(server.address) as client:
        token = client.acquire_fencing_token("learner").fencing_token
        client.publish({Precision.FULL: b"1"}, METADATA, fencing_token=token, base_version=0)
        return server.address


def _refused(monkeypatch: pytest.MonkeyPatch, method: str) -> threading.Event:
    """Return an event that is set once a call of clients has failed."""
    call, refused = getattr(ParamsClient, method), threading.Event()

    def noted(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - what the method returns
        try:
            return call(*arguments, **options)
        except TidemillError:
            refused.set()
            raise

    monkeypatch.setattr(ParamsClient, method, noted)
    return refused


def test_newest_version_is_waited_for_where_the_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while it starts again; one that has no version is not waited for."""
    address = _away(tmp_path)
    with closing(ParamsSource(address, threading.Event(), connect_timeout_s=10.0)) as source:
        assert source.newest() is None
        with ThreadPoolExecutor() as threads:
            refused = _refused(monkeypatch, "fetch")
            asked = threads.submit(source.newest, WAIT_S)
            assert refused.wait(WAIT_S)
            with local_server(tmp_path, address=address):
                newest = asked.result(WAIT_S)
    assert newest is not None
    assert newest.number == 1


def test_tag_is_tried_again_until_the_server_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it may take to start again; a version that it does not have is told at once."""
    address = _away(tmp_path)
    with closing(ParamsSource(address, threading.Event(), connect_timeout_s=10.0)) as source:
        assert source.tag(VERDICT, 1) is None
        with ThreadPoolExecutor() as threads:
            refused = _refused(monkeypatch, "set_tag")
            asked = threads.submit(source.tag, VERDICT, 1, WAIT_S)
            assert refused.wait(WAIT_S)
            with local_server(tmp_path, address=address), ParamsClient(address) as client:
                assert asked.result(WAIT_S)
                assert client.list_versions().tags[VERDICT] == 1
                began_s = time.monotonic()
                assert source.tag(VERDICT, 2, 10 * WAIT_S) is False
                assert time.monotonic() - began_s < WAIT_S


def test_server_without_a_version_is_not_waited_for(server: LocalServer) -> None:
    """It has said all that there is to say."""
    with closing(ParamsSource(server.address, threading.Event(), connect_timeout_s=10.0)) as source:
        began_s = time.monotonic()
        assert source.newest(10 * WAIT_S) is None
        assert time.monotonic() - began_s < WAIT_S
