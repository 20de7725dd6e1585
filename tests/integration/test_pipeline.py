"""From env.step to a learner's batch: what comes out is what the environment did."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.naming import naming
from tests.support.proxy import Proxy
from tests.support.replay_service import local_server
from tests.support.waiting import WAIT_S, wait_until
from tidemill.acting.writer import open_writer
from tidemill.config.run import ClusterSettings
from tidemill.config.sections import ActorConfig
from tidemill.config.services import ActorSettings
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.errors import InvalidArgument, Unavailable
from tidemill.replay import ItemWindow, ReplayWriter, codec
from tidemill.replay.batch import SampledBatch
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampling.sampler import ReplaySampler
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.rl.sequences import SequenceShape, sequences
from tidemill.rl.transitions import transitions, unrolled_transitions
from tidemill.services.learner.data.decoder import recurrent_states
from tidemill.types import ColumnSpec, EnvSpec, Signature, WindowSpec, signature_of

_GAMMA, _ENVS, _LENGTH, _TICKS = 0.9, 4, 11, 160
_OWN = (ColumnSpec("log_prob", "float32", ()), ColumnSpec("seen", "float32", (2,)))


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("steps", [1, 3])
def test_sampled_transitions_are_those_the_environment_made(steps: int, end: str) -> None:
    """Every sampled transition has the action, return and bootstrap observation of its place in its episode.

    The environment observes (episode, step), both from 0, and rewards a step with its number.
    """
    window = WindowSpec(0, steps)
    signature, batch = _sampled(window, end)
    rows = codec.decode(signature, batch, window.length)
    _check(transitions(rows.columns, rows.index, 1, steps, _GAMMA), steps, end)


def test_items_carry_what_the_policy_remembered_at_their_start() -> None:
    """A policy that remembers the observation before the last: each item's payload is that of its first action.

    Sequences start every third row, whatever the episodes do; none starts at a final observation step.
    """
    window = WindowSpec(history=1, steps=6, stride=3)
    signature, batch = _sampled(window, "truncated")
    rows = codec.decode(signature, batch, window.length)
    remembered = recurrent_states(batch.payloads, 2)
    start = rows.index[:, window.history]
    before = rows.index[:, 0]
    expected = rows.columns["observation"][before]
    at_start = batch.lengths == window.steps + 1  # the first of a stream has no row before it
    assert at_start.any()
    assert not at_start.all()
    np.testing.assert_array_equal(remembered[~at_start], expected[~at_start])
    assert (remembered[at_start] == 0).all()
    # an episode of 11 steps and its final observation step are 12 rows: every stream's items start at the rows
    # 0, 3, 6 and 9 of one
    assert set(rows.columns["observation"][start, 1].astype(int)) == {0, 3, 6, 9}


def test_columns_of_an_algorithms_own_arrive_with_their_steps() -> None:
    """In n-step windows and in sequences each is the one stored with the action it came with."""
    window = WindowSpec(history=1, steps=6)
    signature, batch = _sampled(window, "truncated", _OWN)
    rows = codec.decode(signature, batch, window.length)
    assert len(signature) == 8
    extras = ("log_prob", "seen")
    first = transitions(rows.columns, rows.index, 2, 6, _GAMMA, extras=extras)
    np.testing.assert_array_equal(first["seen"], first["observation"][:, -1])
    np.testing.assert_allclose(first["log_prob"], -first["observation"][:, -1, 1] / 7, rtol=1e-6)
    unroll = sequences(rows.columns, rows.index, SequenceShape(1, 1, 4, 2), _GAMMA, extras=extras)
    np.testing.assert_array_equal(unroll["seen"], unroll["observation"][:, 1:5])
    each = unrolled_transitions(rows.columns, rows.index, 2, 6, _GAMMA, extras=extras)
    np.testing.assert_array_equal(each["seen"], each["observation"][:, :, -1])


def test_actor_with_other_columns_than_the_table_is_refused() -> None:
    """As one whose algorithm is another version than the learner's: its first step names the columns."""
    plain = signature_of(EnvSpec((2,), "float32", num_actions=3))
    table = TableConfig("t", plain, SelectorConfig(SelectorKind.UNIFORM), max_items=10, max_item_steps=2)
    with local_server() as server, ReplayClient(server.address) as client:
        client.create_table(table)
        row = {column.name: np.zeros((_ENVS, *column.shape), column.dtype) for column in (*plain, *_OWN)}
        with (
            ReplayWriter(server.address, "t", num_envs=_ENVS, create=False) as writer,
            pytest.raises(InvalidArgument, match=naming("['log_prob', 'seen']")),
        ):
            writer.append(row)


@pytest.mark.parametrize("chunks", [1, 2])
def test_an_actor_runs_ahead_by_so_many_chunks_of_each_environment(chunks: int) -> None:
    """Where nothing is stored, it collects one chunk of each stream more than the setting and then waits."""
    env = EnvSettings(id="tests.support.envs:counting", num_envs=_ENVS)
    config = ActorConfig(env=env, actor=ActorSettings(max_in_flight_chunks=chunks))
    signature, length = signature_of(make_env(env, 1, training=True).spec), config.table.chunk_length
    window = config.agent.window(1)
    table = TableConfig(config.table.name, signature, SelectorConfig(SelectorKind.UNIFORM), 1000, window.length)
    row = {column.name: np.zeros((_ENVS, *column.shape), column.dtype) for column in signature}
    step_count, stop = 0, threading.Event()
    with local_server() as server, Proxy(server.address) as proxy, ExitStack() as stack:
        with ReplayClient(server.address) as client:
            client.create_table(table)
        there = dataclasses.replace(config, cluster=ClusterSettings(replay=(proxy.address,)))
        writer = open_writer(there, "a", 1, _ones, stop, num_envs=_ENVS, max_in_flight_chunks=chunks)
        assert writer is not None
        stack.enter_context(closing(writer))
        stack.enter_context(proxy.refusing())
        stack.callback(stop.set)  # whatever fails below

        def act() -> None:
            nonlocal step_count
            with suppress(Unavailable):  # stopped
                while True:
                    writer.append(row)
                    writer.push()
                    step_count += 1

        actor = threading.Thread(target=act)
        actor.start()
        wait_until(lambda: writer.blocked_s > 0.5, "the actor to wait")
        assert writer.unacknowledged_chunks == chunks * _ENVS
        assert step_count == (chunks + 1) * length - 1
        stop.set()
        actor.join(WAIT_S)
        assert not actor.is_alive()


def _ones(steps: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return the same first priority for every window."""
    return np.ones(steps["reward"].shape[1], np.float32)


def _sampled(window: WindowSpec, end: str, own: Signature = ()) -> tuple[Signature, SampledBatch]:
    """Return a batch of what an actor made of counting environments; it remembers the observation before the last.

    Columns of its `own` may be added: `log_prob`, minus a seventh of the step's number, and the observation as `seen`.
    """
    env = make_env(
        EnvSettings(id="tests.support.envs:counting", kwargs={"length": _LENGTH, "end": end}), _ENVS, training=True
    )
    signature = (*signature_of(env.spec), *own)
    sampler = SelectorConfig(SelectorKind.UNIFORM)
    table = TableConfig("t", signature, sampler, max_items=10_000, max_item_steps=window.length, payload_bytes=8)
    with local_server() as server, ReplayClient(server.address) as client:
        client.create_table(table)
        windows = ItemWindow(window.steps + 1, window.stride, history=window.history, across_episodes=True)
        with ReplayWriter(server.address, "t", num_envs=_ENVS, windows=windows) as writer:
            observation, is_first = env.reset(0), np.ones(_ENVS, np.bool_)
            memory = np.zeros((_ENVS, 2), np.float32)
            for _ in range(_TICKS):
                # the action encodes the step it was chosen at, so that a shifted row shows
                action = (observation[:, 1] % 3).astype(np.int64)
                step = env.step(action)
                row = {"observation": observation, "action": action, "reward": step.reward, "is_first": is_first}
                row |= {"log_prob": (-observation[:, 1] / 7).astype(np.float32), "seen": observation} if own else {}
                ends = {"terminated": step.terminated, "truncated": step.truncated}
                writer.append(row | ends, params_version=1, is_decision=~step.is_reset_step, payload=memory)
                memory, observation, is_first = observation, step.observation, step.is_first
            writer.flush(WAIT_S)
        with ReplaySampler([server.address], table, 512) as samples:
            batch = samples.take(WAIT_S)
            assert batch is not None
    return signature, batch


def _check(batch: dict[str, np.ndarray], steps: int, end: str) -> None:
    episode, step = batch["observation"][:, 0], batch["observation"][:, 1].astype(int)
    assert step.max() == _LENGTH - 1  # never the final observation, whose action was ignored
    assert len(np.unique(step)) == _LENGTH
    assert (batch["action"] == step % 3).all()
    taken = np.minimum(steps, _LENGTH - step)
    expected = [sum(_GAMMA**i * (s + 1 + i) for i in range(k)) for s, k in zip(step, taken, strict=True)]
    np.testing.assert_allclose(batch["n_step_return"], expected, rtol=1e-5)
    ended = step + taken == _LENGTH
    discount = np.where(ended & (end == "terminated"), 0.0, _GAMMA**taken)
    np.testing.assert_allclose(batch["bootstrap_discount"], discount, rtol=1e-5)
    goes_on = discount > 0
    np.testing.assert_array_equal(batch["bootstrap_observation"][goes_on, 0], episode[goes_on])
    np.testing.assert_array_equal(batch["bootstrap_observation"][goes_on, 1], (step + taken)[goes_on])
