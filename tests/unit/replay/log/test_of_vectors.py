"""A log of tables without a compressed column, as those of vector observations are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.support.replay_streams import SIGNATURE, append, make_config, make_items
from tests.unit.replay.logs import open_log, sample_all
from tidemill.arrays import Array
from tidemill.replay.chunk import Chunk
from tidemill.replay.codec import decode, encode
from tidemill.types import Codec

_PLAIN = tuple(column for column in SIGNATURE if column.codec is not Codec.LZ4)


def test_steps_of_plain_columns_are_restored(tmp_path: Path) -> None:
    """A restart brings back every item and byte of a stream whose columns are all plain."""
    log = open_log(tmp_path)
    log.replay.create_table(replace(make_config(), signature=_PLAIN))
    session = log.replay.open_streams("a", 0, 1, ("t",), _PLAIN, 4)
    for first in (0, 4):
        columns: dict[str, Array] = {"step": np.arange(first, first + 4), "stream": np.full((4, 1), 7, dtype=np.int32)}
        chunk = Chunk(0, first, 4, 4, 1, encode(_PLAIN, columns))
        append(log.replay, session, [chunk], [make_items(0, [(0, i, 1) for i in range(4)])])
    log.crash()
    restored = open_log(tmp_path)
    sample = sample_all(restored, restored.replay.find("t"))
    decoded = decode(_PLAIN, (sample), 1)
    assert sorted(decoded.columns["step"][decoded.index[:, -1]].tolist()) == list(range(8))
    assert set(decoded.columns["stream"][decoded.index[:, -1], 0].tolist()) == {7}
    assert restored.replay.env_steps == 8
    restored.crash()
