"""Messages written from arrays have the bytes that protobuf itself writes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidemill.replay import packed, wire
from tidemill.replay.batch import Blocks, SampledBatch, StoredSteps
from tidemill.replay.v1 import replay_pb2 as pb

WIDTHS = st.one_of(*(st.integers(2 ** max(bits - 1, 0) - 1, 2**bits - 1) for bits in range(33)))
"""Numbers of 32 bits, of every size alike: most of all those about which a byte is added."""
WIDE = st.one_of(WIDTHS, st.integers(2**63 - 2, 2**64 - 1))


def signed(values: list[int]) -> NDArray[np.int64]:
    """Return numbers as a batch has most of them."""
    return np.array(values, dtype=np.int64)


def unsigned(values: list[int]) -> NDArray[np.uint64]:
    """Return numbers as a batch has keys and versions."""
    return np.array(values, dtype=np.uint64)


@given(st.lists(WIDE, max_size=20))
def test_packed_varints_are_protobufs(values: list[int]) -> None:
    """Of all lengths up to ten bytes, mixed; of none, there is no field."""
    found = b"".join(packed.varints(2, unsigned(values)))
    assert found == pb.ChunkBatch(params_versions=values).SerializeToString()


@st.composite
def batches(draw: st.DrawFn) -> tuple[SampledBatch, pb.SampleResponse]:
    """Return a batch, whose numbers need not fit together, and the message it is."""
    numbers, wide = st.lists(WIDTHS, max_size=6), st.lists(WIDE, max_size=6)
    keys, params_versions = draw(wide), draw(wide)
    first_rows, lengths, step_counts, slots, sent, sizes = (draw(numbers) for _ in range(6))
    probabilities = draw(st.lists(st.floats(0, 1), max_size=6))
    payloads = draw(st.lists(st.binary(max_size=200), max_size=3))
    columns, is_mirrored = draw(st.lists(st.binary(max_size=300), max_size=3)), draw(st.booleans())
    items, weight, env_steps, diff, store_id = (
        draw(WIDE),
        draw(st.floats(0, 1e9)),
        draw(WIDE),
        draw(st.floats(-9, 9)),
        7,
    )
    batch = SampledBatch(
        keys=unsigned(keys),
        probabilities=np.array(probabilities, dtype=np.float64),
        first_rows=signed(first_rows),
        lengths=signed(lengths),
        payloads=tuple(payloads),
        step_counts=signed(step_counts),
        params_versions=unsigned(params_versions),
        blocks=tuple(Blocks(data, signed(sizes)) for data in columns),
        table_items=items,
        total_weight=weight,
        stored={},
        slots=signed(slots) if is_mirrored else None,
        sent=signed(sent) if is_mirrored else None,
        ages=signed(slots),
        times_sampled=signed(sent),
        priorities=np.array(probabilities, dtype=np.float64),
    )
    message = pb.SampleResponse(
        keys=keys,
        probabilities=probabilities,
        first_rows=first_rows,
        lengths=lengths,
        payloads=payloads,
        chunks=pb.ChunkBatch(
            step_counts=step_counts,
            params_versions=params_versions,
            columns=[pb.ColumnBlocks(data=data, sizes=sizes) for data in columns],
            slots=slots if is_mirrored else [],
            sent=sent if is_mirrored else [],
        ),
        table_items=items,
        total_weight=weight,
        env_steps=env_steps,
        limiter_diff=diff,
        store_id=store_id,
    )
    return batch, message


@given(batches())
def test_batch_has_the_bytes_of_its_message(case: tuple[SampledBatch, pb.SampleResponse]) -> None:
    """Every field, with and without a mirror, empty ones too; counts of items only where they were asked for."""
    batch, message = case
    stored = StoredSteps(message.store_id, message.env_steps)
    assert wire.pack_sample(batch, stored, message.limiter_diff) == message.SerializeToString()
    assert batch.ages is not None
    assert batch.times_sampled is not None
    assert batch.priorities is not None
    message.ages.extend(batch.ages.tolist())
    message.times_sampled.extend(batch.times_sampled.tolist())
    message.priorities.extend(batch.priorities.tolist())
    assert wire.pack_sample(batch, stored, message.limiter_diff, item_counts=True) == message.SerializeToString()
