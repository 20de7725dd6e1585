"""A drawn sample to its message."""

from __future__ import annotations

from services.replay.table import Sample
from tidemill.replay.v1 import replay_pb2 as pb


def pack_sample(sample: Sample, env_steps: int) -> pb.SampleResponse:
    """Return the message of a sample; lists are converted whole, never item by item."""
    message = pb.SampleResponse(
        keys=sample.keys.tolist(),
        probabilities=sample.probabilities.tolist(),
        first_rows=sample.first_rows.tolist(),
        lengths=sample.lengths.tolist(),
        payloads=sample.payloads,
        table_items=sample.table_items,
        priority_mass=sample.priority_mass,
        env_steps=env_steps,
    )
    chunks = message.chunks  # filled in place: a message given to another's constructor is copied
    chunks.step_counts.extend(sample.step_counts.tolist())
    chunks.params_versions.extend(sample.params_versions.tolist())
    for column in sample.blocks:
        chunks.columns.add(data=column.data, sizes=column.sizes.tolist())
    return message
