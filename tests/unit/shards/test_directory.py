"""Which shards there are: a list, or a name whose answer changes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import closing

import pytest

from tests.support.naming import naming
from tests.support.waiting import WAIT_S, wait_until
from tidemill.errors import InvalidArgument
from tidemill.replay.shards.directory import ShardDirectory, resolve_now


class _Names:
    """A resolver whose next answers are set by the test; a `None` is a failure."""

    def __init__(self, *answers: Sequence[str] | None) -> None:
        self._answers, self.asked = list(answers), threading.Semaphore(0)

    def __call__(self, name: str) -> Sequence[str]:
        """Answer; the last answer stays."""
        assert name == "replay:7401"
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.asked.release()
        if answer is None:
            raise OSError("no such name")
        return answer


def test_listed_shards_are_named_by_their_place() -> None:
    """So that a name outlives a change of address; nobody is asked."""
    with closing(ShardDirectory(["unix:///a", "b:1"])) as directory:
        assert directory.current == {"0": "unix:///a", "1": "b:1"}


def test_shards_behind_a_name_come_and_go() -> None:
    """Each is named by its address; what is no longer answered leaves."""
    names = _Names(["10.0.0.1:7401"], ["10.0.0.1:7401", "10.0.0.2:7401"], ["10.0.0.2:7401"])
    with closing(ShardDirectory(["dns:///replay:7401"], every_s=0.01, resolve=names)) as directory:
        wait_until(lambda: list(directory.current) == ["10.0.0.2:7401"], "the last answer")
        assert dict(directory.current) == {"10.0.0.2:7401": "10.0.0.2:7401"}


def test_last_answer_holds_while_the_name_cannot_be_resolved() -> None:
    """A resolver that fails for a while takes no shard away."""
    names = _Names(None, ["10.0.0.1:7401"], None)
    with closing(ShardDirectory(["dns:///replay:7401"], every_s=0.01, resolve=names)) as directory:
        for _ in range(5):
            assert names.asked.acquire(timeout=WAIT_S)
        assert list(directory.current) == ["10.0.0.1:7401"]


def test_system_resolver_answers_with_every_address_once() -> None:
    """This machine's own name stands for itself, with the port put back."""
    assert "127.0.0.1:7401" in resolve_now("localhost:7401")
    assert resolve_now("127.0.0.1:1") == ["127.0.0.1:1"]


def test_server_with_addresses_of_both_families_is_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reached by IPv4; by IPv6 where the name has no other address."""
    ipv6 = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 7401, 0, 0))]
    ipv4 = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 7401))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*ipv6, *ipv4])
    assert resolve_now("replay:7401") == ["10.0.0.1:7401"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ipv6)
    assert resolve_now("replay:7401") == ["[fd00::1]:7401"]


@pytest.mark.parametrize("addresses", [[], [""], ["a:1", "a:1"], ["a:1", "dns:///b:1"]])
def test_addresses_that_cannot_be_meant_are_refused(addresses: list[str]) -> None:
    """The message has them."""
    with pytest.raises(InvalidArgument, match=naming("addresses")):
        ShardDirectory(addresses)


def test_one_plain_address_is_no_shard() -> None:
    """It is served as usual; a list or a name is not."""
    assert not ShardDirectory(["127.0.0.1:7401"]).is_sharded
    with closing(ShardDirectory(["dns:///replay:7401"], resolve=_Names(None))) as directory:
        assert directory.is_sharded
    assert ShardDirectory(["a:1", "b:1"]).is_sharded


def test_room_for_servers_that_are_replaced_is_for_those_of_a_name() -> None:
    """Listed ones stay as they are; behind a name each may have a successor before it is gone."""
    assert ShardDirectory(["a:1", "b:1"]).most_servers == 2
    with closing(ShardDirectory(["dns:///replay:7401"], count=2, resolve=_Names(None))) as directory:
        assert directory.most_servers == 4
