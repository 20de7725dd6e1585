"""Messages of the inference service: there and back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.support.inference_service import Played
from tests.support.naming import naming
from tidemill.errors import InvalidArgument
from tidemill.inference.v1 import inference_pb2 as pb
from tidemill.inference.wire import (
    Answer,
    Opening,
    pack_answer,
    pack_open,
    pack_step,
    unpack_answer,
    unpack_open,
    unpack_step,
)
from tidemill.services.inference.session import Session
from tidemill.types import EnvSpec

_STACKED = EnvSpec((4, 5), "uint8", frame_stack=3, num_actions=2)
_OPENING = Opening("r2d2", 2, _STACKED, recurrent_state_size=6, noise_seed=9)


def test_opening_comes_back_as_it_was() -> None:
    """All that actor and service must agree on, and the seed."""
    back = unpack_open(pack_open(_OPENING))
    assert (back.shape, back.num_envs, back.noise_seed) == (_OPENING.shape, 2, 9)


@pytest.mark.parametrize("name", ["observation_shape", "action_shape"])
def test_opening_whose_shape_is_too_long_is_refused(name: str) -> None:
    """Before anything is made of its entries."""
    request = pack_open(_OPENING)
    getattr(request.open, name).extend([1] * 65)
    with pytest.raises(InvalidArgument, match=naming(f"open.{name} 64")):
        unpack_open(request)


def test_service_sees_the_stacks_of_the_actor() -> None:
    """Whole at first, then rebuilt of the newest frames alone, across the starts of episodes, and whole in between."""
    played, session = Played(_STACKED, 2, 6), Session(_OPENING, torch.device("cpu"))
    for step in range(12):
        mine = played.next()
        whole = step in (0, 7)
        request = pack_step(mine, 3, whole=whole)
        assert (len(request.step.stacks), len(request.step.newest)) == ((120, 0) if whole else (0, 40))
        theirs = session.take(unpack_step(request, _OPENING))
        session.remember({"recurrent_state": np.full((2, 6), step, np.float32)})
        for name in ("observation", "is_first", "last_action", "last_reward"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), (step, name)
        assert np.all(theirs.recurrent_state == (0 if whole else step - 1))


def test_answer_comes_back_as_it_was() -> None:
    """With its counters, and arrays that torch may take."""
    arrays = {"q": np.arange(12, dtype=np.float32).reshape(2, 3, 2), "value": np.ones(2, np.float32)}
    back = unpack_answer(pack_answer(Answer(3, 40, 5, arrays)), 2)
    assert back[:3] == (3, 40, 5)
    assert all(np.array_equal(back.arrays[name], arrays[name]) for name in arrays)
    torch.from_numpy(back.arrays["q"]).add_(1.0)


def _change(field: str, value: bytes) -> Callable[[pb.ActRequest], None]:
    return lambda request: setattr(request.step, field, value)


@pytest.mark.parametrize(
    "change, reason",
    [
        (_change("stacks", b"x" * 119), "stacks 119 120 uint8 [2, 3, 4, 5]"),
        (_change("newest", b""), "0 40"),
        (_change("is_first", b"\x01"), "is_first 1 2"),
        (_change("last_action", b""), "last_action 0 16"),
        (_change("last_reward", b"x" * 12), "last_reward 12 8"),
        (_change("recurrent_state", b""), "recurrent_state 0 48"),
        (lambda request: request.open.SetInParent(), "steps open"),
    ],
)
def test_step_of_a_wrong_size_is_refused(change: Callable[[pb.ActRequest], None], reason: str) -> None:
    """The message names the field, its size and what it must be."""
    request = pack_step(Played(_STACKED, 2, 6).next(), 3, whole=True)
    change(request)
    with pytest.raises(InvalidArgument, match=naming(reason)):
        unpack_step(request, _OPENING)


def test_call_that_begins_with_a_step_is_refused() -> None:
    """Its sizes would be unknown."""
    with pytest.raises(InvalidArgument, match=naming("open")):
        unpack_open(pack_step(Played(_STACKED, 2, 6).next(), 3, whole=True))


def test_first_step_without_what_came_before_is_refused() -> None:
    """The service has no stacks yet."""
    request = pack_step(Played(_STACKED, 2, 6).next(), 3, whole=False)
    with pytest.raises(InvalidArgument, match=naming("stacks")):
        Session(_OPENING, torch.device("cpu")).take(unpack_step(request, _OPENING))


def test_recurrent_fields_of_an_actor_without_a_recurrent_state_are_refused() -> None:
    """Nothing is taken that is not looked at."""
    request = pack_step(Played(_STACKED, 2, 0).next(), 3, whole=True)
    request.step.last_reward = b"x" * 8
    with pytest.raises(InvalidArgument, match=naming("last_reward 8")):
        unpack_step(request, Opening("dqn", 2, _STACKED))


def test_answer_whose_bytes_do_not_fit_its_shape_is_refused() -> None:
    """Before an array is made of it."""
    response = pb.ActResponse(arrays=[pb.OutputArray(name="q", shape=[1000, 1000], data=b"x" * 8)])
    with pytest.raises(InvalidArgument, match=naming("q 8 8000000")):
        unpack_answer(response, 2)
