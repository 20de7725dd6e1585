"""Framing of the log's records: what is written is read, and whatever is corrupt is not."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naming import naming
from tidemill.errors import FatalError
from tidemill.services.replay.log.frame import (
    FORMAT,
    PREAMBLE_BYTES,
    Chain,
    Kind,
    Record,
    blob_is_intact,
    check_format,
    preamble,
    scan,
    split_body,
)

blobs = st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=50)), max_size=4)
MARK = b"\x93sync\x00\xffk"
kinds = st.sampled_from([Kind.TABLE, Kind.EPOCH, Kind.CHANGES])  # those that may stand anywhere in a file
records = st.builds(Record, kinds, st.integers(0, 2**64 - 1), st.binary(max_size=60), blobs)


def written(frames: list[Record]) -> bytes:
    """Return the bytes of a file of records."""
    chain = Chain(MARK)
    return b"".join(piece for record in frames for piece in chain.frame(record))


def read(data: bytes, expected: list[Record]) -> list[Record]:
    """Return the records of a file of which `expected` holds the shapes of the bodies, by sequence number."""
    view = memoryview(data)
    shapes = {record.sequence: record for record in expected}
    found = []
    for frame in scan(view, MARK).frames:
        written_blobs = shapes[frame.sequence].blobs
        sizes = [len(blob) for _, blob in written_blobs]
        pieces = list(split_body(view, frame, sizes))
        assert all(blob_is_intact(identity, p) for (identity, _), p in zip(written_blobs, pieces, strict=True))
        back = [(identity, bytes(p[4:])) for (identity, _), p in zip(written_blobs, pieces, strict=True)]
        found.append(Record(frame.kind, frame.sequence, bytes(frame.meta), back))
    return found


@given(st.lists(records, max_size=5, unique_by=lambda record: record.sequence))
def test_records_come_back_as_they_were_written(frames: list[Record]) -> None:
    """Kind, sequence number, meta part and blobs survive; nothing counts as corrupt and the whole file is read."""
    data = written(frames)
    assert len(data) == sum(record.size for record in frames)
    assert read(data, frames) == frames
    found = scan(memoryview(data), MARK)
    assert (found.corrupt, found.end) == ([], len(data))


@given(st.lists(records, min_size=1, max_size=3, unique_by=lambda record: record.sequence), st.data())
def test_file_cut_anywhere_gives_the_records_before_the_cut(frames: list[Record], data: st.DataObject) -> None:
    """A record that was not written to its end is not found, and what comes before it is."""
    whole = written(frames)
    cut = data.draw(st.integers(0, len(whole) - 1))
    ends = [sum(record.size for record in frames[: i + 1]) for i in range(len(frames))]
    complete = [record for record, end in zip(frames, ends, strict=True) if end <= cut]
    assert read(whole[:cut], frames) == complete
    found = scan(memoryview(whole[:cut]), MARK)
    assert (found.corrupt, found.end) == ([], ends[len(complete) - 1] if complete else 0)


@given(st.lists(records, min_size=1, max_size=3, unique_by=lambda record: record.sequence), st.data())
def test_flipped_bit_costs_at_most_the_record_it_is_in(frames: list[Record], data: st.DataObject) -> None:
    """Header or meta part: the record is not found. Blob: its checksum is wrong. All others come back."""
    whole = bytearray(written(frames))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    ends = [sum(record.size for record in frames[: i + 1]) for i in range(len(frames))]
    hit = next(i for i, end in enumerate(ends) if position < end)
    view = memoryview(bytes(whole))
    found = scan(view, MARK)
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
    (piece,) = split_body(data, scan(data, MARK).frames[0], [len(b"observation")])
    assert blob_is_intact(7, piece)
    assert not blob_is_intact(8, piece)


def test_stretch_without_a_record_is_skipped_and_counted() -> None:
    """Bytes between two records that are not a record count as one corrupt stretch and hide neither."""
    first, second = Record(Kind.TABLE, 1, b"first"), Record(Kind.TABLE, 2, b"second")
    data = written([first]) + MARK + bytes(100) + written([second])
    found = scan(memoryview(data), MARK)
    assert [bytes(frame.meta) for frame in found.frames] == [b"first", b"second"]
    start = len(written([first]))
    assert (found.corrupt, found.end) == ([(start, start + 108)], len(data))


def test_record_behind_a_single_stray_byte_is_found() -> None:
    """The search for the next record starts at the very next byte."""
    first, second = written([Record(Kind.TABLE, 1, b"first")]), written([Record(Kind.TABLE, 2, b"second")])
    found = scan(memoryview(first + b"\0" + second), MARK)
    assert [frame.sequence for frame in found.frames] == [1, 2]
    assert found.corrupt == [(len(first), len(first) + 1)]


def test_bytes_of_a_record_are_those_of_the_format() -> None:
    """A log outlives the program that wrote it: layout and numbers of kinds change only with the format."""
    record = Record(Kind.CHANGES, 7, b"meta", [(9, b"blob")])
    header = struct.pack("<8sBBHQIIQI", MARK, 4, 0, 0, 7, 0, 4, 8, zlib.crc32(b"meta"))
    expected = header + struct.pack("<I", zlib.crc32(header)) + b"meta"
    assert written([record]) == expected + struct.pack("<I", zlib.crc32(b"blob", 9)) + b"blob"
    assert [(kind.name, kind.value) for kind in Kind] == [
        ("SEGMENT", 1), ("TABLE", 2), ("EPOCH", 3), ("CHANGES", 4), ("SNAPSHOT", 5),
    ]  # fmt: skip


def test_record_without_a_copy_takes_no_room_for_one() -> None:
    """Its copy has no bytes, whatever its kind."""
    for kind in Kind:
        record = Record(kind, 1, b"meta")
        assert (record.copy_size, Chain(MARK).copy(record)) == (0, [])


def test_only_a_file_of_another_format_is_refused_for_its_format() -> None:
    """One of this format, one too short to tell and one of another program are not."""
    for data in (preamble(MARK), preamble(MARK)[:-1], bytes(100)):
        check_format(data, "here")
    other = preamble(MARK).replace(struct.pack("<I", FORMAT), struct.pack("<I", FORMAT + 1))
    with pytest.raises(FatalError, match=naming("here", FORMAT, FORMAT + 1)):
        check_format(other, "here")


def test_each_record_names_the_one_before_and_its_copy_names_it() -> None:
    """The link is the checksum of the header before, so that another record of the same number does not fit."""
    chain = Chain(MARK)
    first, second = (Record(Kind.TABLE, number, b"meta", copy=b"copy") for number in (1, 2))
    records, copies = chain.frame(first), chain.copy(first)
    records += chain.frame(second)
    copies += chain.copy(second)
    one, two = scan(memoryview(b"".join(records)), MARK).frames
    of_one, of_two = scan(memoryview(b"".join(copies)), MARK).frames
    assert (one.link, two.link) == (0, one.checksum)
    assert (of_one.link, of_two.link) == (one.checksum, two.checksum)
    assert [(frame.is_copy, bytes(frame.meta)) for frame in (one, of_two)] == [(False, b"meta"), (True, b"copy")]
    assert (first.size, first.copy_size) == (len(b"".join(records)) // 2, len(b"".join(copies)) // 2)


@pytest.mark.parametrize("kind", [Kind.SEGMENT, Kind.SNAPSHOT])
def test_first_record_of_a_file_brings_the_preamble(kind: Kind) -> None:
    """A flipped bit in it is corruption, and the records behind it are found."""
    record = Record(kind, 1, b"meta", copy=b"copy")
    data = b"".join(Chain(MARK).frame(record))
    assert len(data) == record.size
    assert scan(memoryview(data), MARK).corrupt == []
    for position in range(PREAMBLE_BYTES):
        flipped = data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]
        found = scan(memoryview(flipped), MARK)
        assert (len(found.frames), found.corrupt) == (1, [(0, PREAMBLE_BYTES)]), position


def test_frame_of_another_mark_is_no_frame() -> None:
    """What an actor put into a blob, without knowing the log's mark, is not found behind a corrupt header."""
    hidden = b"".join(Chain(b"guessed!").frame(Record(Kind.CHANGES, 3, b"forged")))
    data = bytearray(written([Record(Kind.CHANGES, 1, b"meta", [(1, hidden)]), Record(Kind.TABLE, 2, b"next")]))
    data[10] ^= 1
    assert [bytes(frame.meta) for frame in scan(memoryview(data), MARK).frames] == [b"next"]
    assert scan(memoryview(hidden + written([Record(Kind.TABLE, 2, b"next")])), MARK).corrupt == [(0, len(hidden))]
