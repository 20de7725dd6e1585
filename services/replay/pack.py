"""A drawn sample to its message."""

from __future__ import annotations

from services.replay.table import Sample
from tidemill.replay.v1 import replay_pb2 as pb


def pack_sample(sample: Sample, env_steps: int) -> pb.SampleResponse:
    """Return the message of a sample; lists are converted whole, never item by item."""
    return pb.SampleResponse(
        keys=sample.keys.tolist(),
        probabilities=sample.probabilities.tolist(),
        first_rows=sample.first_rows.tolist(),
        lengths=sample.lengths.tolist(),
        payloads=sample.payloads,
        chunks=pb.ChunkBatch(
            step_counts=sample.step_counts.tolist(),
            params_versions=sample.params_versions.tolist(),
            columns=[pb.ColumnBlocks(data=column.data, sizes=column.sizes.tolist()) for column in sample.blocks],
        ),
        table_items=sample.table_items,
        priority_mass=sample.priority_mass,
        env_steps=env_steps,
    )
