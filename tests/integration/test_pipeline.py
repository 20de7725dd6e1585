"""From env.step to a learner's batch: what comes out is what the environment did."""

from __future__ import annotations

import numpy as np
import pytest

from services.actor.writer import StreamWriter
from tests.integration.replay_service import local_server
from tidemill import codec
from tidemill.envs.make import make_env
from tidemill.envs.settings import EnvSettings
from tidemill.replay.append import Appender
from tidemill.replay.client import ReplayClient
from tidemill.replay.sampler import SampleStream
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.rl.windows import transitions
from tidemill.types import WindowSpec, signature_of

_GAMMA, _ENVS, _LENGTH, _TICKS = 0.9, 4, 11, 160


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("steps", [1, 3])
def test_sampled_transitions_are_those_the_environment_made(steps: int, end: str) -> None:
    """Every sampled transition has the action, return and bootstrap observation of its place in its episode.

    The environment observes (episode, step), both from 0, and rewards a step with its number.
    """
    env = make_env(
        EnvSettings(id="tests.envs_for_tests:counting", kwargs={"length": _LENGTH, "end": end}), _ENVS, training=True
    )
    window, signature = WindowSpec(0, steps), signature_of(env.spec)
    sampler = SelectorConfig(SelectorKind.UNIFORM)
    table = TableConfig("t", signature, sampler, max_items=10_000, max_item_steps=window.length)
    with local_server() as server, ReplayClient(server.address) as client:
        client.create_table(table)
        with Appender(server.address, "a", _ENVS, signature, ["t"], 16) as appender:
            writer = StreamWriter(appender, signature, window, _ENVS, 16, lambda ticks: np.ones(_ENVS, np.float32))
            observation, is_first = env.reset(0), np.ones(_ENVS, np.bool_)
            for _ in range(_TICKS):
                # the action tells the step it was chosen at, so that a shifted row shows
                action = (observation[:, 1] % 3).astype(np.int64)
                tick = env.step(action)
                row = {"observation": observation, "action": action, "reward": tick.reward, "is_first": is_first}
                ends = {"terminated": tick.terminated, "truncated": tick.truncated}
                writer.add(row | ends, {}, tick.was_reset, 1)
                observation, is_first = tick.observation, tick.is_first
            assert appender.flush(10.0)
        with SampleStream(server.address, table, 512) as samples:
            batch = samples.take(10.0)
            assert batch is not None
    rows = codec.decode(signature, batch, window.length)
    _check(transitions(rows.columns, rows.index, 1, steps, _GAMMA), steps, end)


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
