"""What an actor in lock-step keeps, and what its policy puts out."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.support.naming import naming
from tests.support.publishing import METADATA, NOON, encoding
from tidemill.config.lock_step import LockStep
from tidemill.errors import FatalError
from tidemill.params.blob import pack
from tidemill.params.version import Params, Precision, Version
from tidemill.rl.policy_io import PolicyInput, PolicyOutput
from tidemill.services.actor.acting.loop import PolicyParams
from tidemill.services.actor.lock_step.history import History
from tidemill.services.actor.lock_step.policy import RoundPolicy
from tidemill.services.actor.lock_step.round_file import RoundEnd
from tidemill.services.actor.lock_step.rounds import RoundPacer, check_epoch

_ENVS = 2
_UNUSED: Any = None
_MESSAGES = (b"first", b"", b"third\n")


class _Writer:
    """Has no messages."""

    def take_held(self, at_step_count: int) -> tuple[bytes, ...]:
        assert at_step_count >= 0
        return ()


_WRITER: Any = _Writer()


def _round(number: int) -> dict[str, NDArray[Any]]:
    return {
        "action": np.full((3, _ENVS), number, np.int64),
        "priority:q": np.arange(6, dtype=np.float32).reshape(3, _ENVS) + number,
    }


def _equal(found: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[Any]]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_history_comes_back_round_by_round(tmp_path: Path) -> None:
    """A new process reads what the former one wrote, and adds to it."""
    history = History(tmp_path / "history")
    assert history.rounds == 0
    history.write(_round(1))
    history.write(_round(2))
    history.close()
    history = History(tmp_path / "history")
    history.write(_round(3))
    assert history.rounds == 3
    assert all(_equal(history.read(number), _round(number)) for number in (2, 1, 3))
    history.close()


def test_history_without_its_last_bytes_has_a_round_less(tmp_path: Path) -> None:
    """A process may be killed anywhere: what is left of a round, or of the first line, is removed."""
    path = tmp_path / "history"
    history = History(path)
    history.write(_round(1))
    history.write(_round(2))
    history.close()
    whole = path.read_bytes()
    size = 3 * _ENVS * (8 + 4) + 4  # with its CRC
    for cut in (1, size - 1, size, size + 1, len(whole) - 3, len(whole)):
        path.write_bytes(whole[: len(whole) - cut])
        history = History(path)
        assert history.rounds == (1 if cut <= size else 0)
        for number in range(history.rounds + 1, 3):
            history.write(_round(number))
        assert _equal(history.read(2), _round(2))
        history.close()
        assert path.read_bytes() == whole


@pytest.fixture(scope="module")
def whole_history(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a history of three rounds."""
    path = tmp_path_factory.mktemp("lock_step") / "history"
    history = History(path)
    for number in (1, 2, 3):
        history.write(_round(number))
    history.close()
    return path.read_bytes()


@given(data=st.data())
def test_history_with_a_flipped_bit_is_never_read_as_another(
    whole_history: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Each round that is read is the one that was written. A first line without its end is that of an empty history."""
    place, bit = data.draw(st.integers(0, len(whole_history) - 1)), data.draw(st.integers(0, 7))
    damaged = bytearray(whole_history)
    damaged[place] ^= 1 << bit
    path = tmp_path_factory.mktemp("flip") / "history"
    path.write_bytes(damaged)

    def read_all() -> None:
        with closing(History(path)) as history:
            for number in range(1, history.rounds + 1):
                assert _equal(history.read(number), _round(number))

    if b"\n" in damaged:
        with pytest.raises(FatalError, match=naming("history corrupt")):
            read_all()
    else:
        read_all()
        assert path.read_bytes() == b""


@given(data=st.data())
def test_end_of_a_round_with_a_flipped_bit_is_never_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Its numbers are covered by the digest, too."""
    path = tmp_path_factory.mktemp("flip") / "round"
    RoundEnd(2, 7, b"params", 3, 40, _MESSAGES).write(path)
    damaged = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    with pytest.raises(FatalError, match=naming("round corrupt")):
        RoundEnd.read(path)


def test_end_of_a_round_comes_back(tmp_path: Path) -> None:
    """Parameters and messages are the bytes that were written; the file is replaced as a whole."""
    path = tmp_path / "round"
    assert RoundEnd.read(path) is None
    for number in (1, 2):
        RoundEnd(number, 7, b"params\n\0", 3, 40, _MESSAGES).write(path)
    found = RoundEnd.read(path)
    assert found is not None
    assert (found.number, found.epoch, found.params, found.version, found.learner_steps) == (2, 7, b"params\n\0", 3, 40)
    assert found.messages == _MESSAGES
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FatalError, match=naming("corrupt")):
        RoundEnd.read(path)


def test_history_of_another_round_than_its_end_is_refused(tmp_path: Path) -> None:
    """With the parameters of a later round, the rounds that are lost would be played otherwise than before."""
    RoundEnd(3, 7, b"params", 3, 40, _MESSAGES).write(tmp_path / "round")
    with closing(History(tmp_path / "history")) as history:
        history.write(_round(1))
        pacer = RoundPacer(_UNUSED, 0, _UNUSED, _WRITER, history, tmp_path / "round")
        with pytest.raises(FatalError, match=naming("round round 3 1")):
            pacer.load(_UNUSED, threading.Event())


def test_lost_streams_are_told_with_what_keeps_them(tmp_path: Path) -> None:
    """A log alone loses its last steps with the power of its machine."""
    RoundEnd(3, 7, b"params", 3, 40, _MESSAGES).write(tmp_path / "round")
    writer: Any = SimpleNamespace(epoch=8)
    with pytest.raises(FatalError, match=naming("streams replay.storage.folder replay.storage.ack fsync")):
        check_epoch(writer, tmp_path / "round")


def test_decisions_of_all_actors_are_known_and_which_rounds_are_played_again(tmp_path: Path) -> None:
    """The curves' axis: a process that plays rounds 1 and 2 once more has no points until round 3."""
    with closing(History(tmp_path / "history")) as history:
        for number in (1, 2, 3):
            history.write(_round(number))
        rounds = LockStep(round_steps=3, num_envs=_ENVS, actors=4, updates=1, warm_up=1)
        policy, _ = _policy()
        pacer = RoundPacer(rounds, 0, policy, _WRITER, history, tmp_path / "round")
        found = []
        for _ in range(8):
            pacer.wait(_UNUSED, threading.Event())
            found.append((pacer.is_past(), pacer.env_steps()))
    assert found == [(number <= 6, 8 * number) for number in range(1, 9)]


def test_wait_between_two_rounds_counts_as_time_of_the_actor(tmp_path: Path) -> None:
    """For the parameters, and until the replay service takes the round."""
    rounds = LockStep(round_steps=3, num_envs=_ENVS, actors=1, updates=1, warm_up=1)
    blob, stop, newest, idle = pack({}), threading.Event(), list[Params](), threading.Event()

    def come(*_: object, **__: object) -> None:
        idle.wait(0.05)
        metadata = replace(METADATA, learner_steps=rounds.updates_after(0))
        newest.append(Params(Version(1, 0, 1, NOON, metadata, (encoding(blob),)), Precision.FULL, blob))

    watcher: Any = SimpleNamespace(newest=lambda: newest[-1] if newest else None, wait=come)
    writer: Any = SimpleNamespace(epoch=7, take_held=lambda _: (), store=lambda _: not idle.wait(0.05))
    policy, _ = _policy()
    params = PolicyParams(watcher, policy)
    with closing(History(tmp_path / "history")) as history:
        pacer = RoundPacer(rounds, 0, policy, writer, history, tmp_path / "round")
        assert pacer.load(params, stop)
        assert 0.05 <= params.waited_s < 60.0
        for _ in range(rounds.round_steps):
            assert pacer.wait(params, stop)
            policy.act(_SEEN)
        assert pacer.wait(params, stop)
    assert 0.1 <= params.waited_s < 60.0


class _Random:
    """A policy of random actions that counts what it is asked."""

    recurrent_state_size = 0

    def __init__(self, number: int) -> None:
        self._rng = np.random.default_rng(number)
        self.loaded: list[object] = []
        self.env_steps: list[int] = []

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.loaded.append(state)

    def act(self, policy_input: PolicyInput, env_steps: int = 0, *, evaluation: bool = False) -> PolicyOutput:
        assert not evaluation
        self.env_steps.append(env_steps)
        action = self._rng.integers(100, size=len(policy_input))
        return PolicyOutput(action, {"q": action.astype(np.float32)})

    def initial_priority(self, steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        return np.full(steps["reward"].shape[1], 5.0, np.float32)


_SEEN = PolicyInput(
    observation=np.zeros((_ENVS, 1), np.float32),
    is_first=np.zeros(_ENVS, np.bool_),
    last_action=np.zeros(_ENVS, np.int64),
    last_reward=np.zeros(_ENVS, np.float32),
    recurrent_state=np.zeros((_ENVS, 0), np.float32),
)


def _policy() -> tuple[RoundPolicy, list[_Random]]:
    built: list[_Random] = []

    def build(number: int) -> _Random:
        built.append(_Random(number))
        return built[-1]

    return RoundPolicy(build, lambda number, place: 1000 * number + place, wants_inputs=True), built


def test_policy_of_a_round_depends_on_its_number_alone() -> None:
    """A process that begins with round 2 acts as one that has played round 1, with the same parameters."""
    through, built = _policy()
    state: dict[str, Tensor] = {}
    through.load(state)
    for number in (1, 2):
        through.begin(number)
        for _ in range(3):
            through.act(_SEEN, env_steps=12345)
    alone, _ = _policy()
    alone.begin(2)
    for _ in range(3):
        alone.act(_SEEN)
    assert _equal(through.outputs(), alone.outputs())
    assert built[1].env_steps == [2000, 2001, 2002]
    assert built[1].loaded == [state]


def test_recorded_round_is_put_out_again() -> None:
    """Actions and what initial priorities are made of come from the record, and no policy is asked."""
    first, _ = _policy()
    first.begin(1)
    for _ in range(3):
        first.act(_SEEN)
    recorded = first.outputs()
    again, built = _policy()
    again.begin(1, recorded)
    outputs = [again.act(_SEEN) for _ in range(3)]
    assert np.array_equal(np.stack([output.action for output in outputs]), recorded["action"])
    assert np.array_equal(np.stack([output.priority_inputs["q"] for output in outputs]), recorded["priority:q"])
    assert _equal(again.outputs(), recorded)
    assert built[0].env_steps == []


def test_initial_priorities_of_a_past_round_are_not_computed() -> None:
    """They were stored with it."""
    policy, _ = _policy()
    steps = {"reward": np.zeros((2, 4), np.float32)}
    policy.begin(1, _round(1), is_past=True)
    assert policy.initial_priority(steps).tolist() == [0.0] * 4
    policy.begin(2, _round(2))
    assert policy.initial_priority(steps).tolist() == [5.0] * 4
