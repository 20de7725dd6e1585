"""Observations that are decoded once it is known which rows go where: batches equal those of rows decoded before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.batches import CASES
from tests.support.encoded_batches import batch_of, damaged, without_kernel
from tests.support.learner_decoder import LearnerDecoder
from tests.support.learner_fakes import FakeAgent
from tidemill.config.table import TableSettings
from tidemill.replay import codec
from tidemill.replay.batch import SampledBatch
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.registry import stored_columns
from tidemill.rl.transitions import FRAMES, gather_frame_stacks, transitions
from tidemill.types import Codec, ColumnSpec, EnvSpec, Signature, WindowSpec, signature_of

KINDS = ("dqn_image", "dqn_colours", "dqn", "r2d2_image", "ppo_lstm_image", "sac_discrete_image", "stacks_later")
"""Stacks, several channels, vectors (which are not compressed), sequences, rollouts, and stacks that a GPU gathers."""


class _StacksLater(FakeAgent):
    """Hands over frames and row numbers, or stacks if it must not."""

    window = WindowSpec(history=2, steps=2)

    def __init__(self, *, stack_on_device: bool) -> None:
        super().__init__()
        self.observation_columns = ("observation", "bootstrap_observation") if stack_on_device else ()

    def decode(self, columns: Mapping[str, NDArray[Any]], index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return transitions of two steps over stacks of three."""
        return transitions(columns, index, 3, 2, 0.9, stack_on_device=bool(self.observation_columns))


class _Silent:
    """An agent that does not say what it does with observations, so that they are decoded before it is asked."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the agent has
        if name == "observation_columns":
            raise AttributeError(name)
        return getattr(self._agent, name)


@cache
def _agents(kind: str) -> tuple[Agent, Agent, Signature]:
    """Return an agent, one that gives the same batches from decoded rows, and the columns of their table."""
    if kind == "stacks_later":
        signature = signature_of(EnvSpec((5, 4), "uint8", frame_stack=3, num_actions=4))
        return _StacksLater(stack_on_device=True), _StacksLater(stack_on_device=False), signature
    agent = build_agent(*CASES[kind], seed=1)
    return agent, cast(Agent, _Silent(agent)), stored_columns(*CASES[kind])


def _column(spec: ColumnSpec, steps: int, rng: np.random.Generator) -> NDArray[Any]:
    shape = (steps, *spec.shape)
    if spec.dtype == "bool":
        return rng.random(shape) < 0.15
    if spec.dtype.startswith("float"):
        return rng.standard_normal(shape).astype(spec.dtype)
    return rng.integers(0, 4, shape).astype(spec.dtype)


def _sample(agent: Agent, signature: Signature, rng: np.random.Generator) -> SampledBatch:
    """Return twelve items in a few chunks, some of them damaged; some items are short, as at a stream's start."""
    length = agent.window.length
    counts = [*rng.integers(1, 12, int(rng.integers(2, 9))).tolist(), length]
    chunks = [codec.encode(signature, {spec.name: _column(spec, n, rng) for spec in signature}) for n in counts]
    damage = 0.2 * (rng.random() < 0.5)
    chunks = [
        tuple(
            damaged(block, rng) if spec.codec is Codec.LZ4 and rng.random() < damage else block
            for spec, block in zip(signature, chunk, strict=True)
        )
        for chunk in chunks
    ]
    lengths = np.where(rng.random(12) < 0.8, length, rng.integers(1, length + 1, 12))
    items = [(int(rng.integers(sum(counts) - n + 1)), int(n)) for n in lengths]
    states = rng.standard_normal((12, agent.recurrent_state_size)).astype("<f4")
    payloads = tuple(state.tobytes() for state in states) if agent.recurrent_state_size else ()
    return dataclasses.replace(batch_of(signature, chunks, counts, items), payloads=payloads)


def _decoded(agent: Agent, signature: Signature, sample: SampledBatch) -> tuple[list[dict[str, Any]], set[int]]:
    """Return the batches of a sample, and the keys of the items that were removed."""
    removed: set[int] = set()
    settings = TableSettings(sampler="prioritized")
    decoder = LearnerDecoder(agent, signature, lambda keys: removed.update(keys.tolist()), settings, splits=2)
    return [
        {**gather_frame_stacks(batch.columns), "weight": batch.weight, "keys": torch.from_numpy(batch.keys)}
        for batch in decoder.decode(sample, 0.0)
    ], removed


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("kind", KINDS)
def test_batches_equal_those_of_rows_decoded_before(kind: str, seed: int) -> None:
    """With the kernel and without: across starts and ends of episodes, and with the same corrupt items left out."""
    agent, silent, signature = _agents(kind)
    sample = _sample(agent, signature, np.random.default_rng(seed))
    with without_kernel():
        expected, expected_removed = _decoded(silent, signature, sample)
    for way in (nullcontext, without_kernel):
        with way():
            batches, removed = _decoded(agent, signature, sample)
        assert removed == expected_removed
        assert len(batches) == len(expected)
        for found, other in zip(batches, expected, strict=True):
            assert found.keys() == other.keys()
            for name, column in found.items():
                torch.testing.assert_close(column, other[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind, later", [("dqn_image", "observation"), ("r2d2_image", "observation"), ("dqn", "")])
def test_only_compressed_observations_wait_for_the_agent(
    kind: str, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do those of an agent that says that it takes rows of them, and no other's."""
    agent, silent, signature = _agents(kind)
    asked: list[str] = []
    inner = codec.decode

    def decode(signature: Signature, batch: SampledBatch, length: int, *, later: str) -> codec.DecodedBatch:
        asked.append(later)
        return inner(signature, batch, length, later=later)

    monkeypatch.setattr(codec, "decode", decode)
    sample = batch_of(
        signature,
        [codec.encode(signature, {spec.name: _column(spec, 40, np.random.default_rng(1)) for spec in signature})],
        [40],
        [(0, agent.window.length), (3, agent.window.length)],
    )
    state = bytes(4 * agent.recurrent_state_size)
    sample = dataclasses.replace(sample, payloads=(state, state) if state else ())
    _decoded(agent, signature, sample)
    _decoded(silent, signature, sample)
    assert asked == [later, ""]


def test_frames_that_a_gpu_stacks_are_decoded_once_for_all_batches() -> None:
    """They stay the rows that items cover, which the batches of a sample share."""
    agent, _, signature = _agents("stacks_later")
    columns = {spec.name: _column(spec, 30, np.random.default_rng(2)) for spec in signature}
    sample = batch_of(signature, [codec.encode(signature, columns)], [30], [(2, 5), (9, 5)])
    decoder = LearnerDecoder(agent, signature, lambda keys: pytest.fail(f"{keys} are not corrupt"), splits=2)
    first, second = decoder.decode(sample, 0.0)
    assert first.columns[FRAMES] is second.columns[FRAMES]
    np.testing.assert_array_equal(first.columns[FRAMES].numpy(), columns["observation"][2:14])
