"""Observations that are kept on the training device: batches equal those from the host's memory, bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.support.batches import CASES
from tests.support.learner_decoder import LearnerDecoder
from tests.support.naming import naming
from tests.support.replay_streams import UNIFORM, append, make_items, make_replay
from tidemill.config.table import TableSettings
from tidemill.errors import DataLoss
from tidemill.replay import codec, wire
from tidemill.replay.batch import Blocks, SampledBatch, StoredSteps
from tidemill.replay.chunk import Chunk
from tidemill.replay.limits import least_slots
from tidemill.replay.sampling.mirror import MirrorSize, TableMirror
from tidemill.replay.table_config import TableConfig
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.registry import AgentConfig, stored_columns
from tidemill.services.learner.data.decoder import Batch
from tidemill.services.learner.data.device_rows import DeviceQueue, DeviceRows, HostQueue, Mark, StreamQueue
from tidemill.services.replay.chunks.mirror import ChunkMirror
from tidemill.types import Codec, ColumnSpec, EnvSpec, ObservationPart, Signature

CHUNK, BATCH, SPLITS = 8, 6, 2
CPU = torch.device("cpu")
BUSY_CYCLES = 100_000_000
"""Of a GPU: a twentieth of a second and more."""

PARTS = (ObservationPart("speed", "float32", (3,)), ObservationPart("camera", "uint8", (5, 4)))
DICT = EnvSpec((12 + 20,), "uint8", frame_stack=2, num_actions=4, observation_parts=PARTS)
MASKED = EnvSpec((3,), "float32", num_actions=4, masks_actions=True)

KINDS: dict[str, tuple[AgentConfig, EnvSpec]] = {
    **{
        name: CASES[name]
        for name in ("dqn", "dqn_image", "dqn_colours", "r2d2", "r2d2_image", "sac", "sac_tqc", "sac_lstm")
    },
    **{name: CASES[name] for name in ("td3", "ddpg_all_options", "ppo_lstm_image", "impala_continuous", "pqn")},
    "sac_discrete_image": CASES["sac_discrete_image"],
    "dqn_of_parts": (DQNConfig(network="mlp", hidden_sizes=(16,), n_step=3), DICT),
    "dqn_masked": (DQNConfig(network="mlp", hidden_sizes=(16,)), MASKED),
}
"""Every kind of item: stacks, n-step returns, sequences with a state, rollouts, vectors, parts, colours, masks."""


class Postponed:
    """A device that does nothing before somebody waits for it, and then everything in order: the slowest GPU."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._handed_over = self._done = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory that holds something else."""
        return torch.full(shape, 77, dtype=dtype)

    def submit(self, work: Callable[[], object]) -> None:
        """Put work behind the rest."""
        self._work.append(work)
        self._handed_over += 1

    def mark(self) -> Mark:
        """Return the place behind all of it."""
        return _Place(self, self._handed_over)

    def run_to(self, place: int) -> None:
        """Do what is before a place."""
        while self._done < place:
            self._work.popleft()()
            self._done += 1


@dataclass
class _Place:
    queue: Postponed
    number: int

    def synchronize(self) -> None:
        self.queue.run_to(self.number)


class Pair:
    """A table, and two learners that sample it by one call: one keeps all in the host's memory, the other does not."""

    def __init__(self, kind: str, hold: int, spare_slots: int, rows: Callable[[Signature, int], DeviceRows]) -> None:
        self._agent, self._signature = _agent(kind)
        self._steps = self._agent.window.length
        self._config = TableConfig(
            "t",
            self._signature,
            UNIFORM,
            max_items=20,
            max_item_steps=self._steps,
            payload_bytes=4 * self._agent.recurrent_state_size,
        )
        self._replay = make_replay(self._config)
        slots = least_slots(BATCH, self._steps, CHUNK, hold) + spare_slots
        self.size = MirrorSize(slots, CHUNK, hold)
        self.rows = rows(self._signature, slots * CHUNK)
        self.mirrors = [TableMirror(self._signature, self.size)]
        self.mirrors.append(TableMirror(self._signature, self.size, elsewhere=self.rows))
        self._decoders = [
            _decoder(self._agent, self._signature, mirror, device, of_rows)
            for mirror, device, of_rows in zip(self.mirrors, (CPU, self.rows.device), (None, self.rows), strict=True)
        ]
        self._epoch = self._next_step = 0
        self._rng = np.random.default_rng(5)
        self.connect()

    def connect(self) -> None:
        """Begin another call."""
        self._chunks = ChunkMirror(self._replay.find("t").store, self.size.slots, self.size.hold)

    def append(self, chunks: int) -> None:
        """Append chunks of a stream, with an item that ends at each step."""
        session = self._replay.open_streams("a", self._epoch, 1, ("t",), self._signature, CHUNK)
        self._epoch = session.epoch.number
        for _ in range(chunks):
            first, self._next_step = self._next_step, self._next_step + CHUNK
            columns = {spec.name: _random(spec, self._rng) for spec in self._signature}
            blocks = codec.encode(self._signature, columns)
            state = self._rng.standard_normal(self._agent.recurrent_state_size).astype("<f4").tobytes()
            items = [(0, offset, min(self._steps, first + offset + 1)) for offset in range(CHUNK)]
            chunk = Chunk(0, first, CHUNK, CHUNK, 1 + first, blocks)
            append(self._replay, session, [chunk], [make_items(0, items, payloads=[state] * CHUNK if state else ())])
        self._replay.close_streams(session.epoch)

    def sample(self) -> list[SampledBatch]:
        """Draw a sample; return it as both keep it."""
        table = self._replay.find("t")
        drawn = table.draw(BATCH)
        lacked = self._chunks.missing(drawn.chunks)
        blocks = table.store.blocks.read(drawn.chunks[lacked], drawn.batch.step_counts[lacked])
        sent = drawn.with_blocks(blocks, self._chunks.place(drawn.chunks), lacked)
        drawn.release(table.store)
        message = pb.SampleResponse.FromString(wire.pack_sample(sent, StoredSteps(1, 0), 0.0))
        return [mirror.keep(wire.unpack_sample(message, mirrored=True)) for mirror in self.mirrors]

    def decode(self, kept: list[SampledBatch]) -> list[list[Batch]]:
        """Return the batches of both; those of the device may still be on their way."""
        return [decoder.decode(sample, 0.0) for decoder, sample in zip(self._decoders, kept, strict=True)]

    def reset(self) -> None:
        """Empty the table."""
        self._replay.reset(self._replay.find("t"))

    @property
    def items(self) -> int:
        """Items in the table."""
        return self._replay.find("t").size


@cache
def _agent(kind: str) -> tuple[Agent, Signature]:
    config, env_spec = KINDS[kind]
    return build_agent(config, env_spec, seed=1), stored_columns(config, env_spec)


def _decoder(
    agent: Agent, signature: Signature, mirror: TableMirror, device: torch.device, rows: DeviceRows | None
) -> LearnerDecoder:
    def none(keys: object) -> None:
        pytest.fail(f"{keys} are not corrupt")

    settings = TableSettings(sampler="prioritized")
    return LearnerDecoder(agent, signature, none, settings, splits=SPLITS, mirror=mirror, on_device=rows, device=device)


def _random(spec: ColumnSpec, rng: np.random.Generator) -> NDArray[Any]:
    shape = (CHUNK, *spec.shape)
    if spec.dtype == "bool":
        return rng.random(shape) < 0.1
    if spec.dtype.startswith("float"):
        return rng.standard_normal(shape).astype(spec.dtype)
    return rng.integers(0, 4 if spec.name == "action" else 255, shape).astype(spec.dtype)


def _assert_equal(batches: list[list[Batch]]) -> None:
    """Batches of the device have the host's columns, bit for bit."""
    of_host, of_device = batches
    assert len(of_host) == len(of_device)
    for expected, found in zip(of_host, of_device, strict=True):
        found.device_batch.wait()
        columns = {**expected.columns, "weight": expected.weight}
        for name, column in {**found.columns, "weight": found.weight}.items():
            torch.testing.assert_close(column.cpu(), columns.pop(name), rtol=0, atol=0, equal_nan=True)
        assert not columns
        np.testing.assert_array_equal(found.keys, expected.keys)


def _exercise(pair: Pair, hold: int, steps: list[str], run: Callable[[], object]) -> None:
    """Sample and decode while the table turns over; compare at the end, when much has been written over."""
    waiting: deque[list[SampledBatch]] = deque()
    decoded: list[list[list[Batch]]] = []

    def read() -> None:
        decoded.append(pair.decode(waiting.popleft()))

    def sample() -> None:
        if pair.items:
            waiting.append(pair.sample())
        if len(waiting) > hold:
            read()

    moves: dict[str, Callable[[], object]] = {
        "append": lambda: pair.append(2),
        "sample": sample,
        "reconnect": pair.connect,  # what was not read until then may be lost, for both
        "read": lambda: read() if waiting else None,
        "reset": pair.reset,
        "run": run,
    }
    for step in ["append", *steps]:
        moves[step]()
    while waiting:
        read()
    run()
    for batches in decoded:
        _assert_equal(batches)


def _rows(queue: DeviceQueue, staging_bytes: int, signature: Signature, rows: int) -> DeviceRows:
    return DeviceRows(signature, rows, CPU, CHUNK, queue, staging_bytes=staging_bytes)


STEPS = st.lists(
    st.sampled_from(["append", "sample", "sample", "sample", "reconnect", "read", "reset", "run"]), max_size=30
)


@settings(max_examples=15)
@given(STEPS, st.integers(0, 3), st.integers(0, 12), st.sampled_from([1, 4096, 2**20]))
@pytest.mark.parametrize("kind", list(KINDS))
def test_batches_equal_those_from_the_hosts_memory(
    kind: str, steps: list[str], hold: int, spare_slots: int, staging_bytes: int
) -> None:
    """Through evictions, reconnections and slots that run out, on a device that is as late as it may be."""
    queue = Postponed()
    pair = Pair(kind, hold, spare_slots, partial(_rows, queue, staging_bytes))
    _exercise(pair, hold, steps, lambda: queue.mark().synchronize())


@pytest.mark.parametrize("kind", list(KINDS))
def test_batches_equal_on_a_cpu(kind: str) -> None:
    """Where the device is the host itself, everything is done at once."""
    pair = Pair(kind, 2, 4, partial(_rows, HostQueue(), 4096))
    _exercise(pair, 2, ["sample", "append", "sample", "sample", "append"] * 5, lambda: None)


class _LateRows(DeviceRows):
    """Observations on a GPU whose stream is busy before each upload, so that it reads staged rows late."""

    def keep(self, *chunks: Any) -> NDArray[np.bool_]:  # noqa: ANN401 - those of `DeviceRows`
        """Keep chunks."""
        _keep_busy(self, BUSY_CYCLES // 10)
        return super().keep(*chunks)


def _keep_busy(rows: DeviceRows, cycles: int) -> None:
    assert isinstance(rows.queue, StreamQueue)
    with torch.cuda.stream(rows.queue.stream):
        torch.cuda._sleep(cycles)


@pytest.mark.requires_cuda
@pytest.mark.parametrize("kind", list(KINDS))
def test_batches_equal_on_a_gpu(kind: str) -> None:
    """With pinned memory and a stream beside the computing one, which is late with all that it is handed."""
    device = torch.device("cuda", torch.cuda.current_device())
    pair = Pair(kind, 2, 4, lambda signature, rows: _LateRows(signature, rows, device, CHUNK, staging_bytes=4096))
    _exercise(pair, 2, ["sample", "append", "sample", "sample", "append"] * 20, lambda: None)
    pair.append(2)
    sampled = pair.sample()
    _keep_busy(pair.rows, BUSY_CYCLES)
    _assert_equal(pair.decode(sampled))


def test_rows_are_written_over_after_the_gathers_that_were_handed_over_before() -> None:
    """A batch that was decoded in time keeps its rows, though the device reads them later than others arrive."""
    queue = Postponed()
    pair = Pair("dqn_image", 0, 0, partial(_rows, queue, 1))
    pair.append(3)
    decoded = pair.decode(pair.sample())
    pair.connect()  # the next chunks go to the same slots
    for _ in range(5):
        pair.append(2)
        pair.sample()
    queue.mark().synchronize()
    assert len(decoded[1]) == SPLITS
    _assert_equal(decoded)


def test_sample_that_is_decoded_too_late_is_dropped() -> None:
    """As from the host's memory."""
    pair = Pair("dqn", 0, 0, partial(_rows, HostQueue(), 1))
    pair.append(3)
    late = pair.sample()
    pair.connect()
    pair.append(3)
    for _ in range(4):
        pair.sample()
    assert pair.decode(late) == [[], []]


class _Interrupted(HostQueue):
    """Lets something happen before the next gather is handed over, as another thread may."""

    happens: Callable[[], object] | None = None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory for a gather."""
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().empty(shape, dtype)


def test_rows_that_are_written_over_just_before_their_gather_are_noticed() -> None:
    """The mirror is asked once the gathers are handed over, not before."""
    queue = _Interrupted()
    pair = Pair("dqn_image", 0, 0, partial(_rows, queue, 1))
    pair.append(3)
    kept = pair.sample()

    def overwrite() -> None:
        pair.connect()
        pair.append(3)
        for _ in range(4):
            pair.sample()

    queue.happens = overwrite
    assert [len(batches) for batches in pair.decode(kept)] == [SPLITS, 0]


def test_memory_is_what_the_observations_take() -> None:
    """And the mirror itself has the other columns alone."""
    pair = Pair("dqn_of_parts", 0, 0, partial(_rows, HostQueue(), 1))
    rows = pair.size.slots * CHUNK
    host, device = pair.mirrors
    assert pair.rows.columns == {"observation__speed", "observation__camera"}
    assert pair.rows.size_bytes == rows * (3 * 4 + 20)
    assert host.size_bytes == device.size_bytes + pair.rows.size_bytes


def test_corrupt_chunk_is_told() -> None:
    """Of two chunks in separate pieces, the one whose bytes do not decode."""
    signature = (ColumnSpec("observation", "uint8", (6, 6), Codec.LZ4),)
    rows = DeviceRows(signature, 64, CPU, CHUNK, staging_bytes=1)
    (block,) = codec.encode(signature, {"observation": np.ones((CHUNK, 6, 6), np.uint8)})
    broken = bytes([255]) * len(block)
    sizes, counts = np.full(2, len(block)), np.full(2, CHUNK)
    corrupt = rows.keep(signature, [Blocks(broken + block, sizes)], counts, np.array([0, CHUNK]))
    assert corrupt.tolist() == [True, False]
    assert bool((rows.take(torch.arange(CHUNK, 2 * CHUNK)) == 1).all())


def test_blocks_that_do_not_add_up_are_refused() -> None:
    """Before anything is decoded from beyond their end."""
    signature = (ColumnSpec("observation", "float32", (3,)),)
    rows = DeviceRows(signature, 64, CPU, CHUNK, staging_bytes=1)
    counts = np.full(2, CHUNK)
    with pytest.raises(DataLoss, match=naming("column 'observation'", CHUNK * 12)):
        rows.keep(signature, [Blocks(bytes(CHUNK * 12), np.empty(0, np.int64))], counts, np.array([0, CHUNK]))
    with pytest.raises(DataLoss, match=naming("[] ['observation']")):
        rows.keep((), [], counts, np.array([0, CHUNK]))


def test_only_agents_that_say_so_are_given_row_numbers() -> None:
    """Every built-in algorithm does."""
    for config, env_spec in CASES.values():
        agent = build_agent(config, env_spec, seed=1)
        assert "observation" in getattr(agent, "observation_columns", ()), type(agent).__name__
