"""The C library against the Python code beside each of its uses: the same results, bit for bit, and the same errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lz4.block import _block
from numpy.typing import NDArray

from tests.support.encoded_batches import batch_of, damaged, without_kernel
from tests.support.hostile_requests import GOOD, HOSTILE, fullest
from tests.support.replay_messages import field, opening
from tests.unit.test_codec import SIGNATURE, columns_of, with_block
from tidemill import kernel
from tidemill.errors import InvalidArgument
from tidemill.replay import codec
from tidemill.replay.batch import SampledBatch
from tidemill.replay.codec import CorruptBlocks, decode, decode_chunks, decompress_prefixes, encode
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.services.replay import requests
from tidemill.services.replay.selectors.segment_tree import SumTree


@pytest.fixture(scope="module")
def built() -> None:
    """The library must be there.

    Without a C compiler the tests are skipped and say why, unless TIDEMILL_REQUIRE_KERNEL is set.
    """
    if not kernel.available:
        if os.environ.get("TIDEMILL_REQUIRE_KERNEL"):
            pytest.fail(f"the kernel is not in use: {kernel.reason}")
        pytest.skip(f"the kernel is not in use: {kernel.reason}")


@pytest.fixture(params=["kernel", "python"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with the library, where there is one, and without it."""
    if request.param == "kernel":
        request.getfixturevalue("built")
        yield
    else:
        with without_kernel():
            yield


def random_batch(seed: int) -> SampledBatch:
    """Return a batch of a few chunks, some of them damaged, and items anywhere in them."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 40, int(rng.integers(1, 9))).tolist()
    chunks = []
    for count in counts:
        columns = columns_of(count, int(rng.integers(2**32)))
        columns["observation"] &= np.uint8(rng.integers(256))  # from incompressible to constant
        chunk = encode(SIGNATURE, columns)
        for column in (0, 2):
            if rng.random() < 0.3:
                chunk = with_block(chunk, column, damaged(chunk[column], rng))
        chunks.append(chunk)
    rows = sum(counts)
    firsts = rng.integers(0, rows, int(rng.integers(1, 12)))
    items = [(int(first), int(rng.integers(1, rows - first + 1))) for first in firsts]
    return batch_of(SIGNATURE, chunks, counts, items)


def decoded(batch: SampledBatch) -> object:
    """Return all that decoding a batch gives, or its error."""
    try:
        found = decode(SIGNATURE, batch, int(batch.step_counts.sum()))
    except CorruptBlocks as error:
        return str(error), error.chunks.tolist()
    return found.index.tobytes(), {name: column.tobytes() for name, column in found.columns.items()}


@pytest.mark.usefixtures("built")
@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32 - 1))
def test_batches_decode_as_in_python(seed: int) -> None:
    """Random chunks and prefixes, whole or damaged: the same rows, or the same error for the same chunks."""
    batch = random_batch(seed)
    found = decoded(batch)
    with without_kernel():
        assert found == decoded(batch)


def taken(batch: SampledBatch, seed: int) -> object:
    """Return rows of a batch's observations as stacks, in any order and one by one, or the error."""
    rng = np.random.default_rng(seed)
    try:
        found = decode(SIGNATURE, batch, int(batch.step_counts.sum()), later="observation")
        assert "observation" not in found.columns
        assert found.encoded is not None
        rows = len(found.columns["reward"])
        stacks = rng.integers(0, rows, (5, 1)) + np.arange(-3, 1)
        numbers = {"stack": np.maximum(stacks, 0), "any": rng.integers(-rows, rows, (2, 3, 2)), "none": stacks[:0]}
        return {name: (array.shape, array.tobytes()) for name, array in found.encoded.take(numbers).items()}
    except CorruptBlocks as error:
        return str(error), sorted(error.chunks.tolist())


@pytest.mark.usefixtures("built")
@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32 - 1))
def test_rows_are_taken_as_in_python(seed: int) -> None:
    """Random rows of random chunks, whole or damaged: the same, or the same error for the same chunks."""
    batch = random_batch(seed)
    found = taken(batch, seed)
    with without_kernel():
        assert found == taken(batch, seed)


@pytest.mark.usefixtures("either_way")
def test_rows_that_are_not_there_are_an_error() -> None:
    """Nothing is read from outside of a batch."""
    batch = batch_of(SIGNATURE, [encode(SIGNATURE, columns_of(9))], [9], [(2, 5)])
    encoded = decode(SIGNATURE, batch, 5, later="observation").encoded
    assert encoded is not None
    for number in (5, -6, 2**40):
        with pytest.raises(IndexError):
            encoded.take({"rows": np.array([0, number])})


@pytest.mark.usefixtures("built")
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1))
def test_whole_chunks_decode_as_in_python(seed: int) -> None:
    """The way into a mirror: the same chunks are corrupt, and the rows of the others are the same."""
    batch = random_batch(seed)
    counts = batch.step_counts
    places = np.cumsum(counts[::-1])[::-1] - counts  # not in order

    def into_slab() -> tuple[NDArray[np.bool_], list[bytes]]:
        slab = {name: np.zeros_like(column) for name, column in columns_of(int(counts.sum())).items()}
        corrupt = decode_chunks(SIGNATURE, batch.blocks, counts, slab, places)
        sound = [
            column[place : place + count].tobytes()
            for column in slab.values()
            for place, count, bad in zip(places, counts, corrupt, strict=True)
            if not bad
        ]
        return corrupt, sound

    found = into_slab()
    with without_kernel():
        expected = into_slab()
    assert found[0].tolist() == expected[0].tolist()
    assert found[1] == expected[1]


@pytest.mark.usefixtures("built")
def test_nothing_is_written_beyond_a_target() -> None:
    """Blocks of noise leave the bytes after each target as they were; impossible sizes are corrupt."""
    rng = np.random.default_rng(5)
    assert codec.addresses is not None
    for _ in range(300):
        noise = np.frombuffer(rng.bytes(80), dtype=np.uint8)
        target = np.full(400, 0xAB, dtype=np.uint8)
        wanted, raw = 300, int(rng.integers(300, 302))
        calls = [
            [noise.ctypes.data, noise.size, target.ctypes.data, wanted, raw],
            [0, -1, 0, 1, 1],
            [0, 1, 0, 2**31, 1],
        ]
        written = kernel.decompress(*codec.addresses, np.array(calls, dtype=np.int64))
        assert written[0] <= wanted
        assert written[1:].tolist() == [-1, -1]
        assert (target[wanted:] == 0xAB).all()


@pytest.mark.usefixtures("built")
def test_rows_of_corrupt_blocks_are_not_copied() -> None:
    """Nor anything beside the rows of the others."""
    assert codec.addresses is not None
    raw = np.arange(40, dtype=np.uint8)
    block = np.frombuffer(lz4.block.compress(raw, store_size=False), dtype=np.uint8)
    target = np.full(40, 0xAB, dtype=np.uint8)
    at = target.ctypes.data
    calls = [
        [block.ctypes.data, block.size, 20, 40, 3],  # half of it: its copies are two neighbours and one by itself
        [block.ctypes.data, block.size - 1, 40, 40, 1],
        [0, -1, 40, 40, 1],
        [block.ctypes.data, block.size, 40, 40, 1],
    ]
    copies = [[10, at + 1], [15, at + 6], [0, at + 12], [0, at + 20], [0, at + 20], [35, at + 35]]
    written = kernel.decompress_rows(*codec.addresses, np.array(calls), np.array(copies), 5)
    assert written[[0, 3]].tolist() == [20, 40]
    assert (written[1:3] < 0).all()
    expected = np.full(40, 0xAB, dtype=np.uint8)
    expected[1:11], expected[12:17], expected[35:] = raw[10:20], raw[:5], raw[35:]
    np.testing.assert_array_equal(target, expected)


@pytest.mark.usefixtures("built")
@settings(deadline=None, max_examples=200)
@given(
    capacity=st.sampled_from([1, 2, 15, 16, 17, 255, 257, 4096, 4097, 65_536, 65_537, 1_000_000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sum_tree_is_that_of_numpy(capacity: int, seed: int) -> None:
    """Weights of all magnitudes, slots that repeat, any batch size: the same bits and slots found."""
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity)
    with without_kernel():
        reference = SumTree(capacity)
    for _ in range(4):
        count = int(rng.integers(1, 600))
        slots = rng.integers(0, capacity, count, dtype=np.int32 if rng.random() < 0.5 else np.int64)
        weights = 10.0 ** rng.uniform(-100, 100, count) if rng.random() < 0.3 else rng.random(count)
        weights[rng.random(count) < 0.2] = 0.0
        for each in (tree, reference):
            each.set(slots, weights)
        for level, expected in zip(tree._tree.arrays, reference._tree.arrays, strict=True):
            np.testing.assert_array_equal(level.view(np.uint64), expected.view(np.uint64))
        if tree.total:
            fractions = np.append(rng.random(int(rng.integers(600))), [0.0, np.nextafter(1.0, 0)])
            targets = fractions * tree.total
            kept = targets.copy()
            np.testing.assert_array_equal(tree.find(targets), reference.find(targets))
            np.testing.assert_array_equal(targets, kept)


def passes(raw: bytes) -> bool:
    """True if the Python code lets an AppendRequest pass."""
    with without_kernel():
        try:
            requests.check_append(raw)
        except (InvalidArgument, IndexError):
            return False
    return True


@pytest.mark.usefixtures("built")
def test_requests_of_clients_fit() -> None:
    """The largest one, too; what a server must refuse does not."""
    most = requests.append_limits()
    for message in (GOOD, fullest().SerializeToString(), opening().SerializeToString()):
        assert kernel.append_fits(message, most)
    for kind, raw, _ in (make() for make in HOSTILE.values()):
        if kind is pb.AppendRequest and raw:
            assert not kernel.append_fits(raw, most)


def random_fields(rng: np.random.Generator, numbers: Sequence[int], values: Callable[[], bytes]) -> bytes:
    """Return a few fields of some numbers; most hold bytes, others a number, or what proto3 does not have."""
    parts = []
    for number in rng.choice(numbers, rng.integers(6)).tolist():
        match int(rng.integers(12)):
            case 0:
                parts.append(bytes([number << 3, *rng.choice([b"\x05", b"\xff\x01", b"\x80" * 9 + b"\x01"])]))
            case 1:
                parts.append(bytes([number << 3 | 1, *bytes(8)]))
            case 2:
                parts.append(bytes([number << 3 | 5, *bytes(4)]))
            case 3 if rng.random() < 0.2:
                parts.append(bytes([number << 3 | int(rng.choice([3, 4, 6, 7]))]))
            case _:
                parts.append(field(number, values()))
    return b"".join(parts)


def random_request(rng: np.random.Generator) -> bytes:
    """Return fields within fields as those of an AppendRequest, now and then with bytes changed or cut off."""

    def noise() -> bytes:
        return rng.bytes(int(rng.integers(5)))

    def entry() -> bytes:
        return random_fields(rng, range(1, 9), noise)

    raw = random_fields(rng, [1, 2, 2, 2], lambda: random_fields(rng, [1, 1, 2, 2, 3], entry))
    if len(raw) and rng.random() < 0.3:
        at = int(rng.integers(len(raw)))
        raw = raw[:at] + rng.bytes(int(rng.integers(3))) + raw[at + int(rng.integers(3)) :]
    return raw


@pytest.mark.usefixtures("built")
def test_requests_that_fit_pass_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random requests beside limits so low that each of them counts: none is let through that Python refuses."""
    low = {"_TABLE_BYTES": 9, "_PLAIN_FIELDS": 3, "_MOST_FIELDS": 1, "_ITEM_BYTES": 3, "MAX_COLUMNS": 1}
    for name, value in {**low, "MAX_MESSAGE_CHUNKS": 3, "MAX_MESSAGE_BLOCKS": 2, "MAX_MESSAGE_ITEMS": 2}.items():
        monkeypatch.setattr(requests, name, value)
    rng, most = np.random.default_rng(7), requests.append_limits()
    found = Counter((kernel.append_fits(raw, most), passes(raw)) for raw in (random_request(rng) for _ in range(6_000)))
    assert found[True, False] == 0
    assert found[True, True] > 500
    assert found[False, False] > 500


@pytest.mark.usefixtures("either_way")
def test_sum_tree_refuses_what_is_outside() -> None:
    """A slot beyond the leaves, or a search in an empty tree, is an IndexError, and nothing is written."""
    tree = SumTree(100)
    with pytest.raises(IndexError):
        tree.find(np.zeros(3))
    with pytest.raises(IndexError):
        tree.set(np.array([1, 2**40]), np.ones(2))
    assert tree.total == 0


@pytest.mark.usefixtures("built")
def test_weights_that_are_no_numbers_lead_nowhere() -> None:
    """Nothing sets such weights; if something did, a search would not leave the tree."""
    rng = np.random.default_rng(6)
    for capacity in (5000, 65_537, 100_003):
        tree = SumTree(capacity)
        for _ in range(200):
            slots = rng.integers(0, capacity, 50)
            tree.set(slots, rng.choice(np.array([np.nan, np.inf, -1.0, 0.0, 1.0]), 50))
            with suppress(IndexError):
                assert tree.find(rng.choice(np.array([np.nan, np.inf, -1.0, 0.5, 1e9]), 50)).max() < capacity + 16


def test_library_that_is_not_ours_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, no library, another library: each is left alone, and the reason says which."""
    monkeypatch.delenv(kernel.VARIABLE, raising=False)
    assert kernel.load(tmp_path / "kernel.so") == (None, "it was not built: installing found no C compiler")
    (tmp_path / "kernel.so").write_bytes(b"none")
    for file in (tmp_path / "kernel.so", Path(_block.__file__)):
        library, reason = kernel.load(file)
        assert library is None
        assert reason.startswith("it cannot be loaded")


def test_variable_turns_it_off() -> None:
    """With TIDEMILL_KERNEL=0 batches still decode, by the Python code."""
    code = "from tidemill import kernel; from tidemill.replay import codec; print(kernel.available, kernel.reason)"
    environment = os.environ | {kernel.VARIABLE: "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False TIDEMILL_KERNEL=0\n"


@pytest.mark.parametrize("choice, fails", [("1", True), ("", False), ("0", False)])
def test_installation_without_a_compiler_fails_where_the_kernel_is_asked_for(
    choice: str, fails: bool, tmp_path: Path
) -> None:
    """Images and wheels to be published set TIDEMILL_KERNEL=1, so that none of them lacks it unseen."""
    environment = os.environ | {kernel.VARIABLE: choice, "CC": str(tmp_path / "none")}
    command = [sys.executable, "setup.py", "build_ext", "--build-temp", str(tmp_path), "--build-lib", str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stderr


@pytest.mark.usefixtures("either_way")
def test_blocks_decode_in_order() -> None:
    """A block may be written over the end of one before it, as decoding a batch in place does."""
    source = [np.frombuffer(lz4.block.compress(bytes([fill] * 8), store_size=False), np.uint8) for fill in (1, 2)]
    target = np.zeros(12, dtype=np.uint8)
    at = target.ctypes.data
    calls = [[block.ctypes.data, block.size, at + 4 - 4 * i, 8, 8] for i, block in enumerate(source)]
    assert decompress_prefixes(np.array(calls, dtype=np.int64)).tolist() == [True, True]
    assert target.tolist() == [2] * 8 + [1] * 4
