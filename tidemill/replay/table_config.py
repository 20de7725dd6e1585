"""The configuration and the description of a table. Checked on construction, at both ends of the wire."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tidemill.errors import InvalidArgument
from tidemill.replay.argument_types import check_integer, check_range, check_type
from tidemill.types import DTYPES, ColumnSpec, Signature

MAX_ITEMS = 2**31 - 1
MAX_ITEM_STEPS = 2**16 - 1
MAX_STEP_BYTES = 2**24
MAX_COLUMNS = 64
MAX_DIMENSIONS = 8
MAX_PAYLOAD_BYTES = 64 * 1024
MAX_PRIORITY = 1e39
"""More than any float32, which is what priorities are computed in. Beyond, the probability of others would be 0."""

_MAX_UINT32 = 2**32 - 1
_EXPONENT = 0.6  # of prioritized replay (Schaul et al., 2016, table 3: the proportional variant)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COLUMN_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,62}")  # a step that is a tuple has the columns 0, 1 and so on


class SelectorKind(enum.Enum):
    """Rule that picks the next item."""

    UNIFORM = "uniform"
    """Each item with the same probability."""
    PRIORITIZED = "prioritized"
    """Probability proportional to priority to the power of the exponent (Schaul et al., 2016, section 3.3)."""
    FIFO = "fifo"
    """The oldest item."""
    LIFO = "lifo"
    """The newest item."""
    MAX_HEAP = "max_heap"
    """The item of highest priority."""
    MIN_HEAP = "min_heap"
    """The item of lowest priority."""


@dataclass(frozen=True)
class SelectorConfig:
    """A rule that picks items.

    Attributes:
        kind: The rule.
        priority_exponent: Exponent on the priority: of PRIORITIZED by default 0.6 (ibid.), and 0 of all others.
    """

    kind: SelectorKind
    priority_exponent: float = None  # type: ignore[assignment]  # a number once it is made

    def __post_init__(self) -> None:
        check_type("kind", self.kind, SelectorKind, "a SelectorKind, such as SelectorKind.UNIFORM")
        exponent: Any = self.priority_exponent
        if exponent is None:
            exponent = _EXPONENT if self.kind is SelectorKind.PRIORITIZED else 0.0
            object.__setattr__(self, "priority_exponent", exponent)
        check_type("priority_exponent", exponent, (int, float, np.number), "a number")
        if not (math.isfinite(exponent) and exponent >= 0):
            raise InvalidArgument(f"priority_exponent is {exponent}, must be finite and at least 0")
        if exponent and self.kind is not SelectorKind.PRIORITIZED:
            raise InvalidArgument(f"priority_exponent is {exponent}, must be 0 for the {self.kind.value} selector")


@dataclass(frozen=True)
class RateLimiterConfig:
    """Limits at which inserts and samples wait.

    Attributes:
        min_size: Samples wait until the table has held this many items, at least 1, or was full: `max_bytes` or the
            server's memory may keep it smaller. Readers of several servers wait for as many items in any case.
        samples_per_insert: Samples handed out for each insert on average, in items; 0 means no ratio.
        error_buffer: How far `inserts * samples_per_insert - samples` may move from its value at `min_size` before
            the side that is ahead waits, in samples; positive with a ratio, 0 without.
        queue_size: Inserts wait while this many items are in the table; 0 means not a queue.
    """

    min_size: int = 1
    samples_per_insert: float = 0.0
    error_buffer: float = 0.0
    queue_size: int = 0

    def __post_init__(self) -> None:
        ratio, buffer = self.samples_per_insert, self.error_buffer
        check_integer("min_size", self.min_size)
        check_integer("queue_size", self.queue_size)
        for name in ("samples_per_insert", "error_buffer"):
            check_type(name, getattr(self, name), (int, float, np.number), "a number")
        if self.min_size < 1:
            raise InvalidArgument(f"min_size is {self.min_size}, must be at least 1")
        if not (math.isfinite(ratio) and ratio >= 0):
            raise InvalidArgument(f"samples_per_insert is {ratio}, must be finite and at least 0")
        if not (math.isfinite(buffer) and (buffer > 0) == (ratio > 0) and buffer >= 0):
            raise InvalidArgument(
                f"error_buffer is {buffer}, must be finite, positive with samples_per_insert and 0 without it"
            )
        if self.queue_size and ratio:
            raise InvalidArgument(
                f"queue_size is {self.queue_size} and samples_per_insert is {ratio}, only one may be set: "
                "the two together could block inserts and samples at once"
            )
        if self.queue_size and self.queue_size < self.min_size:
            raise InvalidArgument(f"queue_size is {self.queue_size}, must be 0 or at least min_size ({self.min_size})")


def describe_limiter(limiter: RateLimiterConfig, *, is_on: bool) -> str:
    """Return a rate limiter's numbers for a person to read."""
    numbers = [f"min_size {limiter.min_size:,}"]
    if limiter.samples_per_insert:
        numbers.append(f"samples_per_insert {limiter.samples_per_insert:g}, error_buffer {limiter.error_buffer:g}")
    if limiter.queue_size:
        numbers.append(f"queue_size {limiter.queue_size:,}")
    return f"rate limiter: {'' if is_on else 'OFF, '}{', '.join(numbers)}"


@dataclass(frozen=True)
class TableConfig:
    """Everything that defines a table.

    Attributes:
        name: Lower-case letters, digits and `_`, a letter first, at most 63 characters.
        signature: Columns of every stream that feeds it.
        sampler: Picks the items of a batch.
        max_items: Most items the table holds.
        max_item_steps: Longest item, in steps; streams keep this many newest steps for items yet to come.
        remover: Picks the item that leaves when the table is full.
        rate_limiter: When inserts and samples wait.
        max_times_sampled: An item is removed after it was sampled this often; 0 means never for that reason.
        max_bytes: Most bytes of chunks and payloads the table's items may hold alive; 0 means no such limit.
        payload_bytes: Bytes of every item's payload; 0 means items have none.
    """

    name: str
    signature: Signature
    sampler: SelectorConfig
    max_items: int
    max_item_steps: int
    remover: SelectorConfig = SelectorConfig(SelectorKind.FIFO)
    rate_limiter: RateLimiterConfig = field(default_factory=RateLimiterConfig)
    max_times_sampled: int = 0
    max_bytes: int = 0
    payload_bytes: int = 0

    def __post_init__(self) -> None:
        check_table_name(self.name)
        check_signature(self.signature)
        for name in ("sampler", "remover"):
            instead = "a SelectorConfig, such as SelectorConfig(SelectorKind.UNIFORM)"
            check_type(name, getattr(self, name), SelectorConfig, instead)
        check_type("rate_limiter", self.rate_limiter, RateLimiterConfig, "a RateLimiterConfig")
        check_range("max_items", self.max_items, 1, MAX_ITEMS)
        check_range("max_item_steps", self.max_item_steps, 1, MAX_ITEM_STEPS)
        check_range("max_times_sampled", self.max_times_sampled, 0, _MAX_UINT32)
        check_range("max_bytes", self.max_bytes, 0, 2**63 - 1)
        check_range("payload_bytes", self.payload_bytes, 0, MAX_PAYLOAD_BYTES)
        for name in ("min_size", "queue_size"):
            check_range(f"rate_limiter.{name}", getattr(self.rate_limiter, name), 0, self.max_items)

    @property
    def least_priority(self) -> float:
        """The lowest priority of an item: 0 with a PRIORITIZED selector, else -`MAX_PRIORITY`."""
        prioritized = SelectorKind.PRIORITIZED in (self.sampler.kind, self.remover.kind)
        return 0.0 if prioritized else -MAX_PRIORITY


@dataclass(frozen=True)
class TableUpdate:
    """Changes to a table in use; None leaves a value unchanged.

    Attributes:
        max_items: Most items the table holds.
        max_bytes: Most bytes of chunks and payloads; 0 means no such limit.
        max_times_sampled: How often an item may be sampled; 0 means without limit.
        priority_exponent: Exponent on the priority, for a PRIORITIZED sampler.
        min_size: Of the rate limiter, as the three below, see `RateLimiterConfig`.
        samples_per_insert: Samples for each insert on average.
        error_buffer: How far either side may be ahead, in samples.
        queue_size: Inserts wait while this many items are in the table.
        rate_limiter_on: Whether the rate limiter limits; off, it counts nothing, and its numbers stay.
    """

    max_items: int | None = None
    max_bytes: int | None = None
    max_times_sampled: int | None = None
    priority_exponent: float | None = None
    min_size: int | None = None
    samples_per_insert: float | None = None
    error_buffer: float | None = None
    queue_size: int | None = None
    rate_limiter_on: bool | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidArgument(f"no change given; set at least one of {', '.join(_UPDATED)}")
        for name, least, most in (
            ("max_items", 1, MAX_ITEMS),
            ("max_bytes", 0, 2**63 - 1),
            ("max_times_sampled", 0, _MAX_UINT32),
            ("min_size", 1, MAX_ITEMS),
            ("queue_size", 0, MAX_ITEMS),
        ):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, least, most)

    @property
    def values(self) -> dict[str, Any]:
        """What is to be changed, by name."""
        return {name: value for name in _UPDATED if (value := getattr(self, name)) is not None}

    def applied_to(self, config: TableConfig) -> TableConfig:
        """Return a table's configuration with the changes; InvalidArgument: it would not be a valid one."""
        values = self.values
        limiter = {name: values[name] for name in RateLimiterConfig.__dataclass_fields__ if name in values}
        plain = {name: values[name] for name in TableConfig.__dataclass_fields__ if name in values}
        sampler = config.sampler
        if self.priority_exponent is not None:
            if sampler.kind is not SelectorKind.PRIORITIZED:
                raise InvalidArgument(
                    f"priority_exponent is {self.priority_exponent}, must not be set: the sampler of table "
                    f"{config.name!r} is {sampler.kind.value}"
                )
            sampler = replace(sampler, priority_exponent=self.priority_exponent)
        return replace(config, sampler=sampler, rate_limiter=replace(config.rate_limiter, **limiter), **plain)


_UPDATED = tuple(TableUpdate.__dataclass_fields__)


@dataclass(frozen=True)
class TableDescription:
    """Sizes, counters and limiter state of a table at one moment; the fields are those of the wire contract.

    Attributes:
        config: Its configuration now.
        items: Items in the table now.
        chunk_bytes: Bytes of chunks as stored, of all tables of the server.
        chunks: Chunks, of all tables of the server.
        streams: Streams the server knows.
        inserts: Items inserted since the table was created or reset; so for the counters below.
        samples: Items sampled; an item sampled twice counts twice.
        evictions: Items removed because the table was full.
        priority_updates: Priorities set.
        unknown_keys: Keys of updates and deletions that were not in the table.
        insert_blocked: Whether an insert would have to wait now.
        sample_blocked: Whether a sample would have to wait now.
        insert_blocked_s: Time during which at least one insert waited, in seconds.
        sample_blocked_s: Time during which at least one sample waited, in seconds.
        env_steps: Agent decisions stored for the table since it was created or reset, in items or not.
        total_weight: Sum of sampler weights.
        held_bytes: Bytes of the chunks that items of this table need, as stored, and of their payloads.
        limiter_diff: How far inserts are ahead, in samples; 0 without a ratio.
        mean_sampled_age: Items inserted after an item when it was sampled, on average over all samples.
        corrupt_items: Items dropped because bytes they need were corrupt on disk.
        memory_bytes: Bytes of chunks in memory, as stored, of all tables of the server; so for all below.
        log_bytes: Bytes of the log on disk, 0 without one.
        log_segments: Files of the log.
        log_full: Whether the disk has no room, so that nothing is acknowledged.
        corrupt_records: Records and chunks found corrupt on disk since the server started.
        snapshot: Number of the newest snapshot, 0 for none.
        fsync_bounds_s: Upper bounds of the buckets of `fsync_counts` but the last, in seconds.
        fsync_counts: How often the disk took how long to confirm, by bucket.
        fsync_sum_s: Time it took altogether, in seconds.
        rate_limiter_off: Whether its rate limiter is switched off.
        updated_fields: Fields of `config` that have another value than the table was created with.
        fencing_token: Greatest fencing token the table has heard of since the server started; 0 for none.
        timed_from_s: Unix time from which on the server knows when items came, in seconds; 0 if it knows of none.
        store_id: Identifies what the server has stored, see `SampledBatch.stored`; 0 if the server does not say.
        count_id: Identifies the count of `env_steps`: another one after a reset. 0 if the server does not say.
    """

    config: TableConfig
    items: int
    chunk_bytes: int
    chunks: int
    streams: int
    inserts: int
    samples: int
    evictions: int
    priority_updates: int
    unknown_keys: int
    insert_blocked: bool
    sample_blocked: bool
    insert_blocked_s: float
    sample_blocked_s: float
    env_steps: int
    total_weight: float
    held_bytes: int = 0
    limiter_diff: float = 0.0
    mean_sampled_age: float = 0.0
    corrupt_items: int = 0
    memory_bytes: int = 0
    log_bytes: int = 0
    log_segments: int = 0
    log_full: bool = False
    corrupt_records: int = 0
    snapshot: int = 0
    fsync_bounds_s: tuple[float, ...] = ()
    fsync_counts: tuple[int, ...] = ()
    fsync_sum_s: float = 0.0
    rate_limiter_off: bool = False
    updated_fields: tuple[str, ...] = ()
    fencing_token: int = 0
    timed_from_s: float = 0.0
    store_id: int = 0
    count_id: int = 0

    @property
    def samples_per_insert(self) -> float:
        """Samples by inserts, 0 before the first insert."""
        return self.samples / self.inserts if self.inserts else 0.0


def is_table_name(name: str) -> bool:
    """True if a table may have this name."""
    return _NAME.fullmatch(name) is not None


def check_table_name(name: str) -> None:
    """Raise InvalidArgument unless `name` may name a table, TypeError unless it is a string."""
    check_type("table name", name, str, "a string")
    if not is_table_name(name):
        raise InvalidArgument(f"table name is {name!r}, must match [a-z][a-z0-9_]{{0,62}}")


def shard_config(config: TableConfig, shard_count: int) -> TableConfig:
    """Return the configuration of the part of a table that one of `shard_count` shards holds."""
    if shard_count == 1:
        return config
    limiter = config.rate_limiter
    part = replace(
        limiter,
        min_size=_divided(limiter.min_size, shard_count),
        error_buffer=limiter.error_buffer / shard_count,
        queue_size=_divided(limiter.queue_size, shard_count),
    )
    return replace(
        config,
        max_items=_divided(config.max_items, shard_count),
        max_bytes=_divided(config.max_bytes, shard_count),
        rate_limiter=part,
    )


def _divided(value: int, parts: int) -> int:
    return -(-value // parts)


def check_signature(signature: Signature) -> None:
    """Raise InvalidArgument unless `signature` may be a table's, TypeError unless it has columns."""
    instead = "a tuple of ColumnSpec, such as signature_like(step) of an example"
    check_type("signature", signature, (tuple, list), instead)
    check_range("number of columns", len(signature), 1, MAX_COLUMNS)
    for column in signature:
        check_type("a column of the signature", column, ColumnSpec, instead)
        _check_column(column)
    names = [column.name for column in signature]
    if len(set(names)) != len(names):
        raise InvalidArgument(f"column names are {names}, each must be there once")


def _check_column(column: ColumnSpec) -> None:
    if not _COLUMN_NAME.fullmatch(column.name):
        raise InvalidArgument(f"column name is {column.name!r}, must match [a-z0-9][a-z0-9_]{{0,62}}")
    if column.dtype not in DTYPES:
        raise InvalidArgument(f"dtype of column {column.name!r} is {column.dtype!r}, must be one of {sorted(DTYPES)}")
    if len(column.shape) > MAX_DIMENSIONS or any(size < 1 for size in column.shape):
        raise InvalidArgument(
            f"shape of column {column.name!r} is {column.shape}, must have at most {MAX_DIMENSIONS} dimensions, "
            "each at least 1"
        )
    step_bytes = math.prod(column.shape) * np.dtype(column.dtype).itemsize
    check_range(f"bytes of a step of column {column.name!r}", step_bytes, 1, MAX_STEP_BYTES)
