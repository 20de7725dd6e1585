"""Framing of the log's records: what is written is read, and whatever was damaged is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.replay.log_frame import Kind, Record, blob_is_intact, scan, split_body

blobs = st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=50)), max_size=4)
records = st.builds(Record, st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=60), blobs)


def written(frames: list[Record]) -> bytes:
    """Return the bytes of a file of records."""
    return b"".join(piece for record in frames for piece in record.frame())


def read(data: bytes, expected: list[Record]) -> list[Record]:
    """Return the records of a file of which `expected` holds the shapes of the bodies, by sequence number."""
    view = memoryview(data)
    shapes = {record.sequence: record for record in expected}
    found = []
    for frame in scan(view).frames:
        written_blobs = shapes[frame.sequence].blobs
        sizes = [len(blob) for _, blob in written_blobs]
        pieces = list(split_body(view, frame, sizes))
        assert all(blob_is_intact(identity, p) for (identity, _), p in zip(written_blobs, pieces, strict=True))
        back = [(identity, bytes(p[4:])) for (identity, _), p in zip(written_blobs, pieces, strict=True)]
        found.append(Record(frame.kind, frame.sequence, bytes(frame.meta), back))
    return found


@given(st.lists(records, max_size=5, unique_by=lambda record: record.sequence))
def test_records_come_back_as_they_were_written(frames: list[Record]) -> None:
    """Kind, sequence number, meta part and blobs survive; nothing counts as damaged and the whole file is read."""
    data = written(frames)
    assert len(data) == sum(record.size for record in frames)
    assert read(data, frames) == frames
    found = scan(memoryview(data))
    assert (found.damaged, found.end) == (0, len(data))


@given(st.lists(records, min_size=1, max_size=3, unique_by=lambda record: record.sequence), st.data())
def test_file_cut_anywhere_gives_the_records_before_the_cut(frames: list[Record], data: st.DataObject) -> None:
    """A record that was not written to its end is not found, and what comes before it is."""
    whole = written(frames)
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = [sum(record.size for record in frames[: i + 1]) for i in range(len(frames))]
    complete = [record for record, end in zip(frames, ends, strict=True) if end <= cut]
    assert read(whole[:cut], frames) == complete
    found = scan(memoryview(whole[:cut]))
    assert (found.damaged, found.end) == (0, ends[len(complete) - 1] if complete else 0)


@given(st.lists(records, min_size=1, max_size=3, unique_by=lambda record: record.sequence), st.data())
def test_flipped_bit_costs_at_most_the_record_it_is_in(frames: list[Record], data: st.DataObject) -> None:
    """Header or meta part: the record is not found. Blob: its checksum is wrong. All others come back."""
    whole = bytearray(written(frames))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    ends = [sum(record.size for record in frames[: i + 1]) for i in range(len(frames))]
    hit = next(i for i, end in enumerate(ends) if position < end)
    view = memoryview(bytes(whole))
    found = scan(view)
    others = [record.sequence for i, record in enumerate(frames) if i != hit]
    sequences = [frame.sequence for frame in found.frames]
    assert [sequence for sequence in sequences if sequence != frames[hit].sequence] == others
    in_body = position >= ends[hit] - frames[hit].body_size
    assert (frames[hit].sequence in sequences) == in_body
    if in_body:
        frame = next(frame for frame in found.frames if frame.sequence == frames[hit].sequence)
        sizes = [len(blob) for _, blob in frames[hit].blobs]
        intact = [
            blob_is_intact(identity, piece)
            for (identity, _), piece in zip(frames[hit].blobs, split_body(view, frame, sizes), strict=True)
        ]
        assert intact.count(False) == 1


def test_blob_of_another_identity_is_not_mistaken_for_it() -> None:
    """The checksum starts from the identity: reading the right size at a wrong place is noticed."""
    record = Record(Kind.CHANGES, 1, b"", [(7, b"observation")])
    data = memoryview(written([record]))
    (piece,) = split_body(data, scan(data).frames[0], [len(b"observation")])
    assert blob_is_intact(7, piece)
    assert not blob_is_intact(8, piece)


def test_stretch_without_a_record_is_skipped_and_counted() -> None:
    """Bytes that are no record, between two that are, count as one damage and hide neither."""
    first, second = Record(Kind.TABLE, 1, b"first"), Record(Kind.TABLE, 2, b"second")
    data = written([first]) + b"TMLR" + bytes(100) + written([second])
    found = scan(memoryview(data))
    assert [bytes(frame.meta) for frame in found.frames] == [b"first", b"second"]
    assert (found.damaged, found.damaged_bytes, found.end) == (1, 104, len(data))
