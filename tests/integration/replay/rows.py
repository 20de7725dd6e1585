"""What the tests write to a replay service as rows, and how they read it back."""

from __future__ import annotations

from tests.integration.replay.service import CHUNK_LENGTH, WAIT_S
from tests.unit.replay.streams import SIGNATURE, make_chunk, make_items
from tidemill.codec import decode
from tidemill.replay.appender import StreamAppender
from tidemill.replay.batch import SampledBatch
from tidemill.replay.sampler import ReplaySampler
from tidemill.replay.table_config import TableConfig


def write(appender: StreamAppender, steps: range, env_index: int = 0) -> None:
    """Append steps of one environment, a message for each chunk, with an item of one step at each."""
    for first in range(steps.start, steps.stop, CHUNK_LENGTH):
        count = min(CHUNK_LENGTH, steps.stop - first)
        items = make_items(0, [(0, i, 1) for i in range(count)])
        assert appender.append([make_chunk(env_index, env_index, first, count)], [items], timeout_s=WAIT_S)


def rows(batch: SampledBatch, length: int = 1) -> list[tuple[int, int]]:
    """Return (stream, last step) of each item, from the decoded columns."""
    decoded = decode(SIGNATURE, batch, length)
    last = decoded.index[:, -1]
    return list(zip(decoded.columns["stream"][last, 0].tolist(), decoded.columns["step"][last].tolist(), strict=True))


def everything(address: str, config: TableConfig, items: int) -> list[tuple[int, int]]:
    """Return (stream, last step) of every item of a table, sorted."""
    with ReplaySampler([address], config, items, max_in_flight_batches=1, without_replacement=True) as stream:
        batch = stream.take(WAIT_S)
        assert batch is not None
        return sorted(rows(batch))
