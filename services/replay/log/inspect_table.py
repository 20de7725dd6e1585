"""What `tidemill replay inspect` says of one table: its settings, distributions of its items, its writers, one item."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tidemill.codec import decode
from tidemill.replay.table_config import describe_limiter
from tidemill.services.replay.chunks.blob_reader import BlobFiles
from tidemill.services.replay.chunks.logged_blocks import logged
from tidemill.services.replay.streams import StreamRegistry, places_of
from tidemill.services.replay.tables.sampled_items import locate
from tidemill.services.replay.tables.table import Table

Ints = NDArray[np.int64]

_MOST_ROWS = 12  # of a histogram
_BAR = 40  # characters of the longest
_NEWEST = 1000  # items by which a writer's present rate is judged
_MOST_WRITERS = 20


def describe_table(table: Table, streams: StreamRegistry, files: BlobFiles) -> Iterator[str]:
    """Yield what is said of a table of a log, line by line.

    Args:
        table: The table, its chunks intact.
        streams: Whose its streams are.
        files: Reads the chunks.
    """
    config, counters, slots = table.config, table.counters, table.items.oldest_first()
    exponent = f" of exponent {config.sampler.priority_exponent:g}" if config.sampler.priority_exponent else ""
    yield f"table {config.name}: {table.size:,} of at most {config.max_items:,} items, {table.held_bytes:,} bytes"
    yield f"  {config.sampler.kind.value} sampler{exponent}, {config.remover.kind.value} remover"
    yield f"  {counters.inserts:,} inserts, {counters.samples:,} samples, {counters.evictions:,} evictions"
    yield f"  {describe_limiter(config.rate_limiter, is_on=table.limiter.is_on)}"
    if not len(slots):
        return
    yield from histogram("priorities", table.items.priorities[slots], 10)
    yield from histogram("ages, in items inserted since", table.items.ages(slots), 2)
    yield from histogram("times sampled, as of the newest snapshot", table.items.times_sampled[slots], 2)
    yield from _writers(table, streams, slots)
    yield from _item(table, files, slots[-1:])


def histogram(name: str, values: NDArray[np.generic], base: int) -> Iterator[str]:
    """Yield a title and, from the least, how many of values [N], none negative, lie between two powers of a base."""
    numbers = values.astype(np.float64)
    lowest, median, highest = np.quantile(numbers, (0.0, 0.5, 1.0))
    yield f"  {name}: {lowest:,.6g} to {highest:,.6g}, median {median:,.6g}"
    positive, width = numbers[numbers > 0], 1
    powers = np.floor(np.log(positive) / np.log(base) + 1e-9).astype(np.int64)
    if len(powers):
        width = int(powers.max() - powers.min()) // _MOST_ROWS + 1
    counts = [("0", len(numbers) - len(positive))]
    for low in range(int(powers.min(initial=0)), int(powers.max(initial=-1)) + 1, width):
        count = int(np.count_nonzero((powers >= low) & (powers < low + width)))
        counts.append((f"{float(base) ** low:,.6g} to below {float(base) ** (low + width):,.6g}", count))
    most = max(count for _, count in counts)
    for label, count in counts:
        if count:
            yield f"  {label:>30} {count:12,} {'#' * -(-_BAR * count // most)}"


def _writers(table: Table, streams: StreamRegistry, slots: Ints) -> Iterator[str]:
    """Yield how many items each writer has, of all and of the newest, and how many of its steps the table needs."""
    known = streams.known
    names = [*sorted({one.actor_id for one in known}), "(unknown)"]
    writer_of = np.array([*(names.index(one.actor_id) for one in known), len(names) - 1])
    writers = writer_of[places_of(table.store.streams_of(table.items.first_chunks[slots].astype(np.int64)), known)]
    chunks = table.chunks()
    steps = np.bincount(
        writer_of[places_of(table.store.streams_of(chunks), known)], table.store.step_counts(chunks), len(names)
    )
    items = np.bincount(writers, minlength=len(names))
    newest = np.bincount(writers[-_NEWEST:], minlength=len(names)) / len(writers[-_NEWEST:])
    yield f"  {'writer':32} {'items':>12} {'of all':>8} {'of newest':>10} {'steps':>12}"
    order = [int(i) for i in np.argsort(-items, kind="stable") if items[i]]
    for i in order[:_MOST_WRITERS]:
        yield f"  {names[i]:32} {items[i]:12,} {items[i] / len(slots):8.1%} {newest[i]:10.1%} {int(steps[i]):12,}"
    if len(order) > _MOST_WRITERS:
        yield f"  and {len(order) - _MOST_WRITERS} more"


def _item(table: Table, files: BlobFiles, slot: Ints) -> Iterator[str]:
    """Yield the columns of one item, decoded."""
    store, signature = table.store, table.config.signature
    blocks = logged(store)
    found = locate(table.items, store, slot, np.ones(1), (table.size, table.total_weight))
    blobs = [blob for blob in files.read(blocks.locations(found.chunks)) if blob is not None]
    batch = found.with_blocks(blocks.cut(found.chunks, blobs, found.step_counts))
    decoded = decode(signature, batch, int(found.lengths[0]))
    payload = f", payload of {len(found.payloads[0])} bytes" if found.payloads else ""
    yield f"  the newest item, key {int(found.keys[0])}, {int(found.lengths[0])} steps{payload}:"
    for column in signature:
        values = decoded.columns[column.name][decoded.index[0]]
        few = np.array2string(values.reshape(-1)[:6], precision=4, separator=", ", threshold=6)
        more = " ..." if values.size > 6 else ""
        yield f"    {column.name:24} {values.dtype} {list(values.shape)}, {_range(values)}: {few}{more}"


def _range(values: NDArray[np.generic]) -> str:
    numbers = values.astype(np.float64)
    return f"{numbers.min():.6g} to {numbers.max():.6g}"
