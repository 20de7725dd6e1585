"""Priorities on their way to the shards: split by shard, never waited for, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.naming import naming
from tests.support.replay_streams import make_config
from tidemill.errors import FailedPrecondition, InvalidArgument
from tidemill.replay.sampling.priority_calls import PriorityCalls
from tidemill.replay.table_config import SelectorConfig, SelectorKind
from tidemill.replay.v1 import replay_pb2 as pb

_TABLE = make_config(sampler=SelectorConfig(SelectorKind.PRIORITIZED))


class _Answer:
    """An answer that the test gives."""

    def __init__(self) -> None:
        self._told: list[Callable[[Any], None]] = []
        self._outcome: object = None

    def add_done_callback(self, told: Callable[[Any], None]) -> None:
        """Remember whom to tell."""
        self._told.append(told)

    def result(self) -> object:
        """Return or raise the outcome."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def give(self, outcome: object) -> None:
        """Answer."""
        self._outcome = outcome
        for told in self._told:
            told(self)


class _Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "because"

    def trailing_metadata(self) -> tuple[Any, ...]:
        return ()


class _Shard:
    """A client that notes what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[int], list[float]]] = []
        self.answers: list[_Answer] = []

    def begin_update_priorities(
        self, table: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64], fencing_token: int
    ) -> _Answer:
        """Take priorities."""
        assert (table, fencing_token) == ("t", 0)
        self.sent.append((keys.tolist(), priorities.tolist()))
        self.answers.append(_Answer())
        return self.answers[-1]


def keys(*pairs: tuple[int, int]) -> NDArray[np.uint64]:
    """Return keys as they are sampled, each with the number of its shard."""
    return np.array(pairs, dtype=np.uint64)


def made(*shards: _Shard | None) -> PriorityCalls:
    """Return the senders to these shards, by number."""
    return PriorityCalls(_TABLE, lambda incarnation: shards[incarnation])  # type: ignore[arg-type, return-value]


def test_priorities_go_to_the_shard_that_the_key_names() -> None:
    """In one message each, in their order; a large key is not rounded."""
    first, second = _Shard(), _Shard()
    large = 2**64 - 1
    made(first, second).send(keys((large, 0), (5, 1), (6, 0)), np.array([1.0, 2.0, 3.0]))
    assert first.sent == [([large, 6], [1.0, 3.0])]
    assert second.sent == [([5], [2.0])]


def test_lists_do_as_well_and_another_length_is_refused() -> None:
    """As with one server; keys that are not whole numbers are refused rather than rounded."""
    shard = _Shard()
    calls: Any = made(shard)
    calls.send([(1, 0), (2, 0)], [1, 2.5])
    assert shard.sent == [([1, 2], [1.0, 2.5])]
    with pytest.raises(InvalidArgument, match=naming("priorities (3,) (2,)")):
        calls.send(keys((1, 0), (2, 0)), [1.0, 2.0, 3.0])
    with pytest.raises(InvalidArgument, match=naming("keys float64")):
        calls.send([(1.5, 0.0)], [1.0])
    assert len(shard.sent) == 1


def test_shard_that_is_away_costs_its_own_priorities_only() -> None:
    """They are counted as dropped."""
    second = _Shard()
    priorities = made(None, second)
    priorities.send(keys((1, 0), (2, 1), (3, 0)), np.ones(3))
    assert (priorities.dropped, second.sent) == (2, [([2], [1.0])])


def test_shard_that_does_not_answer_gets_no_more_after_four_messages() -> None:
    """`send` returns each time; an answer makes room again."""
    shard = _Shard()
    priorities = made(shard)
    for _ in range(6):
        priorities.send(keys((1, 0)), np.ones(1))
    assert (len(shard.sent), priorities.dropped) == (4, 2)
    shard.answers[0].give(pb.UpdatePrioritiesResponse(updated=1))
    priorities.send(keys((1, 0)), np.ones(1))
    assert len(shard.sent) == 5


def test_unknown_keys_and_failed_messages_are_counted() -> None:
    """An item that has left is unknown; a shard that broke off dropped what it was sent."""
    shard = _Shard()
    priorities = made(shard)
    for _ in range(3):
        priorities.send(keys((1, 0), (2, 0)), np.ones(2))
    shard.answers[0].give(pb.UpdatePrioritiesResponse(updated=1, unknown=1))
    shard.answers[1].give(_Failure(grpc.StatusCode.UNAVAILABLE))
    shard.answers[2].give(grpc.FutureCancelledError())
    assert (priorities.unknown_keys, priorities.dropped) == (1, 4)
    priorities.close(0.0)
    priorities.send(keys((1, 0)), np.ones(1))


def test_refusal_is_raised_by_the_next_send() -> None:
    """What a retry cannot cure reaches the owner."""
    shard = _Shard()
    priorities = made(shard)
    priorities.send(keys((1, 0)), np.ones(1))
    shard.answers[0].give(_Failure(grpc.StatusCode.FAILED_PRECONDITION))
    with pytest.raises(FailedPrecondition, match="because"):
        priorities.send(keys((1, 0)), np.ones(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.5])
def test_priority_that_is_none_is_refused_by_place_and_value(value: float) -> None:
    """No shard gets any of the message."""
    first, second = _Shard(), _Shard()
    with pytest.raises(InvalidArgument, match=naming("priorities[1]", value)):
        made(first, second).send(keys((1, 0), (2, 1)), np.array([1.0, value]))
    assert not first.sent
    assert not second.sent
