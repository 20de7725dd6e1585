"""An export of a table larger than its memory: read from the log, without what is corrupt there."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.damage import flip
from tests.support.naming import because, naming
from tests.support.replay_streams import append, make_chunk, make_config, make_items, open_streams
from tests.unit.replay.logs import AtOnce, Log, open_log, unreadable
from tidemill.arrays import Ints
from tidemill.errors import NotFound, Reason, ResourceExhausted, Unavailable
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.services.replay.export import TableExport
from tidemill.services.replay.log.blob_reader import BlobFiles, BlobReader
from tidemill.services.replay.log.compactor import Compactor
from tidemill.services.replay.log.logged_blocks import logged
from tidemill.services.replay.tables.items import Items

_CHUNKS = 40


def _filled(path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int = 2**20) -> Log:
    """Return a log with a stream of which memory holds a few chunks; exports have parts of about five."""
    monkeypatch.setattr("tidemill.services.replay.export._PART_BYTES", 500)
    log = open_log(path, segment_bytes, max_memory_bytes=1000)
    log.replay.create_table(make_config(max_items=1000))
    session = open_streams(log.replay)
    for first in range(0, 4 * _CHUNKS, 4):
        items = [(0, i, min(first + i + 1, 3)) for i in range(4)]
        append(log.replay, session, [make_chunk(0, 0, first, 4)], [make_items(0, items)])
    return log


def _exported(log: Log) -> tuple[list[pb.ExportChunks], list[pb.ExportItems]]:
    async def read() -> tuple[list[pb.ExportChunks], list[pb.ExportItems]]:
        export, blobs = TableExport(log.replay.find("t")), BlobReader(BlobFiles(log.recovered.folder))
        try:
            await export.choose()
            chunks = [pb.ExportResponse.FromString(part).chunks async for part in export.chunk_parts(log.replay, blobs)]
            return chunks, [pb.ExportResponse.FromString(part).items for part in export.item_parts()]
        finally:
            blobs.close()
            export.close()

    return asyncio.run(read())


def _steps(chunks: list[pb.ExportChunks]) -> list[int]:
    """Return the numbers of the steps, from the second column of the tests' signature."""
    return [int(step) for part in chunks for step in np.frombuffer(part.chunks.columns[1].data, dtype=np.int64)]


def test_table_larger_than_memory_is_exported_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk by chunk, in parts; one stream without a gap."""
    log = _filled(tmp_path, monkeypatch)
    chunks, (items,) = _exported(log)
    assert len(chunks) > 5
    assert _steps(chunks) == list(range(160))
    assert [one for part in chunks for one in part.continues] == [False] + [True] * 39
    ends = [first + length - 1 for first, length in zip(items.first_rows, items.lengths, strict=True)]
    assert ends == list(range(160))
    assert list(items.ages) == list(range(159, -1, -1))
    log.crash()


@pytest.mark.parametrize("corrupt", [[0], [7], [38, 39], [4, 5, 6, 20], list(range(_CHUNKS))])
def test_corrupt_chunks_are_left_out_with_their_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corrupt: list[int]
) -> None:
    """The rows of the others count on, a stream begins again behind a gap, and the table has lost the items, too."""
    log = _filled(tmp_path, monkeypatch)
    table = log.replay.find("t")
    slots = np.array(corrupt)  # a new store gives slots in order
    where = logged(table.store).locations(slots)
    for slot, segment, offset in zip(corrupt, where.segments.tolist(), where.offsets.tolist(), strict=True):
        flip(log.recovered.folder.segment(segment), offset + 10)
        logged(table.store)._data[slot] = None  # only the log has it
    gone = set(corrupt)
    chunks, parts = _exported(log)
    kept = [step for step in range(160) if step // 4 not in gone]
    assert _steps(chunks) == kept
    follows = [chunk - 1 not in gone and chunk > 0 for chunk in range(_CHUNKS) if chunk not in gone]
    assert [one for part in chunks for one in part.continues] == follows
    expected = [
        (end - min(end + 1, 3) + 1, end) for end in range(160) if not gone & {(end - min(end, 2)) // 4, end // 4}
    ]
    found = [
        (kept[first], kept[first + length - 1])
        for part in parts
        for first, length in zip(part.first_rows, part.lengths, strict=True)
    ]
    assert found == expected
    assert table.size == len(expected)
    log.crash()


def test_export_that_cannot_read_the_log_ends_and_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left: that proves nothing about the chunks, and the next export has all of them."""
    log = _filled(tmp_path, monkeypatch)
    with unreadable(errno.EMFILE), pytest.raises(Unavailable, match=naming("log")):
        _exported(log)
    assert _steps(_exported(log)[0]) == list(range(160))
    log.crash()


def test_export_of_a_dropped_table_whose_segments_are_gone_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not cut short, and nothing counts as corrupt: draws by a seed from other tables would be refused."""
    log = _filled(tmp_path, monkeypatch, segment_bytes=1000)

    async def read() -> None:
        blobs = BlobReader(BlobFiles(log.recovered.folder))
        cleaner = Compactor(log.replay, log.journal, AtOnce(), blobs, log.segment_bytes, lambda: None)
        export = TableExport(log.replay.find("t"))
        try:
            await export.choose()
            parts = export.chunk_parts(log.replay, blobs)
            await anext(parts)
            log.replay.drop_table(log.replay.find("t"))
            await cleaner.compact()
            async for _ in parts:
                pass
        finally:
            blobs.close()
            export.close()

    with pytest.raises(NotFound, match=naming("table 't'"), check=because(Reason.UNKNOWN_TABLE)):
        asyncio.run(read())
    assert log.replay.corrupt_chunks == 0
    log.crash()


def test_export_that_let_go_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory was needed for others: the next part is an error, not a part of what is no longer held."""
    log = _filled(tmp_path, monkeypatch)

    async def read() -> None:
        export, blobs = TableExport(log.replay.find("t")), BlobReader(BlobFiles(log.recovered.folder))
        try:
            await export.choose()
            async for _ in export.chunk_parts(log.replay, blobs):
                export.close()
        finally:
            blobs.close()

    with pytest.raises(ResourceExhausted, match=naming("export items"), check=because(Reason.MEMORY_FULL)):
        asyncio.run(read())
    log.crash()


def test_others_get_their_turn_while_an_export_chooses_its_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting takes seconds in a large table; what they remove meanwhile is exported all the same."""
    log = _filled(tmp_path, monkeypatch)

    async def read() -> list[int]:
        export, blobs = TableExport(log.replay.find("t")), BlobReader(BlobFiles(log.recovered.folder))
        try:
            choosing = asyncio.create_task(export.choose())
            await asyncio.sleep(0)
            assert not choosing.done()
            log.replay.reset(log.replay.find("t"))
            await choosing
            chunks = [pb.ExportResponse.FromString(part).chunks async for part in export.chunk_parts(log.replay, blobs)]
            assert export.items == 160
            return _steps(chunks)
        finally:
            blobs.close()
            export.close()

    assert asyncio.run(read()) == list(range(160))
    assert log.replay.chunks == 1  # the newest of the stream
    log.crash()


def test_export_of_few_items_lets_go_of_the_other_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are free as soon as the items are chosen, not at its end."""
    log = _filled(tmp_path, monkeypatch)

    async def read() -> int:
        export = TableExport(log.replay.find("t"), newest=6)
        await export.choose()
        log.replay.reset(log.replay.find("t"))
        held = log.replay.chunks
        export.close()
        return held

    assert asyncio.run(read()) == 2
    log.crash()


def test_export_that_ends_while_it_sorts_lets_go_of_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: other chunks may take their slots, because the thread reads copies."""
    log, sorts, oldest_first = _filled(tmp_path, monkeypatch), threading.Event(), Items.oldest_first

    def once_it_may(items: Items) -> Ints:
        assert sorts.wait(10)
        return oldest_first(items)

    monkeypatch.setattr(Items, "oldest_first", once_it_may)

    async def give_up() -> None:
        export = TableExport(log.replay.find("t"))
        choosing = asyncio.create_task(export.choose())
        await asyncio.sleep(0)
        log.replay.reset(log.replay.find("t"))
        choosing.cancel()
        export.close()
        await asyncio.gather(choosing, return_exceptions=True)
        assert log.replay.chunks == 1  # the newest of the stream
        sorts.set()

    asyncio.run(give_up())
    assert log.replay.chunks == 1
    log.crash()
