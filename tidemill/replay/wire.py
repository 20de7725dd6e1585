"""Domain objects to messages of the replay contract and back, for both ends of the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from numpy.typing import NDArray

from tidemill.errors import InvalidArgument
from tidemill.replay import packed
from tidemill.replay.batch import Blocks, EpochPlace, SampledBatch, StoredSteps
from tidemill.replay.chunk import Chunk, ItemBatch
from tidemill.replay.columns import Column, Per, columns_of
from tidemill.replay.table_config import (
    RateLimiterConfig,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    TableDescription,
    TableUpdate,
)
from tidemill.replay.v1 import replay_pb2 as pb
from tidemill.types import Codec, ColumnSpec, Signature

_SAMPLE, _CHUNKS, _COLUMN, _EXPORT, _EXPORT_CHUNKS = (
    {field.name: field.number for field in message.DESCRIPTOR.fields}
    for message in (pb.SampleResponse, pb.ChunkBatch, pb.ColumnBlocks, pb.ExportResponse, pb.ExportChunks)
)
"""Numbers of the fields that are written without a message, by name."""

_SAMPLE_FIELDS = pb.SampleResponse.DESCRIPTOR.fields_by_name
_ITEM_COLUMNS = sorted(columns_of(SampledBatch, Per.ITEM), key=lambda column: _SAMPLE[column.name])

_WRITERS: dict[int, Callable[[int, Any], Iterable[bytes]]] = {
    FieldDescriptor.TYPE_FIXED64: packed.fixed,
    FieldDescriptor.TYPE_DOUBLE: packed.fixed,
    FieldDescriptor.TYPE_FLOAT: packed.fixed,
    FieldDescriptor.TYPE_UINT32: packed.varints,
    FieldDescriptor.TYPE_UINT64: packed.varints,
    FieldDescriptor.TYPE_BYTES: lambda number, values: (
        part for value in values for part in packed.field(number, value)
    ),
}
"""What writes a column's field, by the type that the contract gives it."""

_CODECS = {codec: pb.Codec.Value(f"CODEC_{codec.name}") for codec in Codec}
_SELECTORS = {kind: pb.SelectorKind.Value(f"SELECTOR_KIND_{kind.name}") for kind in SelectorKind}
_CODEC_OF = {message: codec for codec, message in _CODECS.items()}
_SELECTOR_OF = {message: kind for kind, message in _SELECTORS.items()}


def pack_signature(signature: Signature) -> list[pb.Column]:
    """Return the messages of a signature."""
    return [
        pb.Column(name=column.name, dtype=column.dtype, shape=column.shape, codec=_CODECS[column.codec])
        for column in signature
    ]


def unpack_signature(columns: Iterable[pb.Column]) -> Signature:
    """Return a signature, unchecked except for its codecs. InvalidArgument: a codec is unknown."""
    return tuple(ColumnSpec(column.name, column.dtype, tuple(column.shape), _codec(column)) for column in columns)


_LIMITER = tuple(RateLimiterConfig.__dataclass_fields__)
_NESTED = ("signature", "sampler", "remover", "rate_limiter")
_PLAIN = tuple(name for name in TableConfig.__dataclass_fields__ if name not in _NESTED)
"""Fields that a table's configuration and its message have alike."""


def pack_config(config: TableConfig) -> pb.TableConfig:
    """Return the message of a table's configuration."""
    return pb.TableConfig(
        signature=pack_signature(config.signature),
        sampler=_pack_selector(config.sampler),
        remover=_pack_selector(config.remover),
        rate_limiter=pb.RateLimiter(**_values(config.rate_limiter, _LIMITER)),
        **_values(config, _PLAIN),
    )


def unpack_config(message: pb.TableConfig) -> TableConfig:
    """Return a table's configuration. InvalidArgument: a field is out of range."""
    limiter = _values(message.rate_limiter, _LIMITER)
    return TableConfig(
        signature=unpack_signature(message.signature),
        sampler=_unpack_selector("sampler", message.sampler),
        remover=_unpack_selector("remover", message.remover),
        rate_limiter=RateLimiterConfig(**limiter | {"min_size": max(limiter["min_size"], 1)}),
        **_values(message, _PLAIN),
    )


def _values(of: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def config_to_json(config: TableConfig) -> dict[str, Any]:
    """Return a table's configuration as a JSON document: the message in protobuf's JSON form."""
    document: dict[str, Any] = json_format.MessageToDict(pack_config(config), preserving_proto_field_name=True)
    return document


def config_from_json(document: dict[str, Any]) -> TableConfig:
    """Return the configuration in a document of `config_to_json`. InvalidArgument: a field is wrong or unknown."""
    try:
        return unpack_config(json_format.ParseDict(document, pb.TableConfig()))
    except json_format.ParseError as error:
        raise InvalidArgument(f"table configuration: {error}") from error


def pack_update(name: str, update: TableUpdate) -> pb.UpdateTableRequest:
    """Return the message of what to change of a table."""
    return pb.UpdateTableRequest(name=name, **update.values)


def unpack_update(message: pb.UpdateTableRequest) -> TableUpdate:
    """Return the changes to a table. InvalidArgument: there are none, or a value is out of range."""
    fields = TableUpdate.__dataclass_fields__
    return TableUpdate(**{name: getattr(message, name) for name in fields if message.HasField(name)})  # type: ignore[arg-type]


def pack_description(description: TableDescription) -> pb.TableDescription:
    """Return the message of a table's description."""
    return pb.TableDescription(
        config=pack_config(description.config),
        samples_per_insert=description.samples_per_insert,
        **_values(description, _DESCRIPTION_FIELDS),
    )


def unpack_description(message: pb.TableDescription) -> TableDescription:
    """Return a table's description."""
    fields = _values(message, _DESCRIPTION_FIELDS)
    fields |= {name: tuple(fields[name]) for name in ("fsync_bounds_s", "fsync_counts", "updated_fields")}
    return TableDescription(config=unpack_config(message.config), **fields)


_DESCRIPTION_FIELDS = tuple(name for name in TableDescription.__dataclass_fields__ if name != "config")


def pack_append(chunks: Sequence[Chunk], items: Sequence[ItemBatch]) -> pb.AppendData:
    """Return the message of chunks and the items that end in them."""
    message = pb.AppendData()  # filled in place: a message given to another's constructor is copied
    for chunk in chunks:
        message.chunks.add(
            env_index=chunk.env_index,
            first_step=chunk.first_step,
            step_count=chunk.step_count,
            decision_count=chunk.decision_count,
            params_version=chunk.params_version,
            columns=chunk.blocks,
        )
    for batch in items:
        message.items.add(
            table_index=batch.table_index,
            chunk_indices=batch.chunk_indices.tolist(),
            last_offsets=batch.last_offsets.tolist(),
            lengths=batch.lengths.tolist(),
            priorities=batch.priorities.tolist(),
            payloads=batch.payloads,
            times_sampled=batch.times_sampled.tolist() if batch.times_sampled is not None else (),
        )
    return message


def unpack_append(message: pb.AppendData) -> tuple[list[Chunk], list[ItemBatch]]:
    """Return the chunks and items of a message, unchecked."""
    chunks = [
        Chunk(
            chunk.env_index,
            chunk.first_step,
            chunk.step_count,
            chunk.decision_count,
            chunk.params_version,
            tuple(chunk.columns),
        )
        for chunk in message.chunks
    ]
    items = [
        ItemBatch(
            batch.table_index,
            np.array(batch.chunk_indices, dtype=np.int64),
            np.array(batch.last_offsets, dtype=np.int64),
            np.array(batch.lengths, dtype=np.int64),
            np.array(batch.priorities, dtype=np.float64),
            tuple(batch.payloads),
            np.array(batch.times_sampled, dtype=np.int64) if batch.times_sampled else None,
        )
        for batch in message.items
    ]
    return chunks, items


def pack_part(data: bytes, *, more: bool) -> bytes:
    """Return the bytes of the `SampleResponse` that has a part of another one's bytes."""
    return b"".join((*packed.field(_SAMPLE["part"], data), pb.SampleResponse(more=more).SerializeToString()))


def pack_sample(
    batch: SampledBatch,
    stored: StoredSteps,
    limiter_diff: float,
    *,
    item_counts: bool = False,
    number: int = 0,
    epoch: EpochPlace | None = None,
) -> bytes:
    """Return the bytes of a batch's `SampleResponse`; arrays and blocks are copied into them as they are.

    Args:
        batch: The batch.
        stored: Decisions stored for the table.
        limiter_diff: How far inserts are ahead, in samples.
        item_counts: Whether to say how old each item is, how often it was sampled and which priority it has.
        number: Of the batch in its call.
        epoch: The place behind the batch, if it was drawn by epochs.
    """
    chunks = [
        *packed.varints(_CHUNKS["step_counts"], batch.step_counts),
        *packed.varints(_CHUNKS["params_versions"], batch.params_versions),
    ]
    for column in batch.blocks:
        data = packed.field(_COLUMN["data"], column.data) if column.data else ()
        chunks += packed.field(_CHUNKS["columns"], *data, *packed.varints(_COLUMN["sizes"], column.sizes))
    if batch.slots is not None and batch.sent is not None:
        chunks += packed.varints(_CHUNKS["slots"], batch.slots)
        chunks += packed.varints(_CHUNKS["sent"], batch.sent)
    rest = pb.SampleResponse(
        table_items=batch.table_items,
        total_weight=batch.total_weight,
        env_steps=stored.env_steps,
        limiter_diff=limiter_diff,
        store_id=stored.store_id,
        number=number,
        epoch=pack_epoch(epoch) if epoch is not None else None,
        count_id=stored.count_id,
    )
    return b"".join(
        (
            *_pack_items(batch, is_optional=False),
            *packed.field(_SAMPLE["chunks"], *chunks),
            rest.SerializeToString(),
            *_pack_items(batch, is_optional=True, item_counts=item_counts),
        )
    )


def pack_export_start(config: TableConfig, items: int, chunks: int, steps: int) -> bytes:
    """Return the bytes of the `ExportResponse` that comes first."""
    start = pb.ExportStart(config=pack_config(config), items=items, chunks=chunks, steps=steps)
    return pb.ExportResponse(start=start).SerializeToString()


def pack_export_items(
    first_rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    priorities: NDArray[np.float64],
    payloads: Sequence[bytes],
    ages: NDArray[np.int64],
    times_sampled: NDArray[np.uint32],
) -> bytes:
    """Return the bytes of the `ExportResponse` of some items, each list with one entry per item."""
    items = pb.ExportItems(
        first_rows=first_rows.tolist(),
        lengths=lengths.tolist(),
        priorities=priorities.tolist(),
        payloads=payloads,
        ages=ages.tolist(),
        times_sampled=times_sampled.tolist(),
    )
    return pb.ExportResponse(items=items).SerializeToString()


def pack_export_chunks(
    step_counts: NDArray[np.int64],
    params_versions: NDArray[np.uint64],
    continues: NDArray[np.bool_],
    blocks: Sequence[Blocks],
) -> bytes:
    """Return the bytes of the `ExportResponse` of some chunks; blocks are copied into them as they are.

    Args:
        step_counts: Steps of each chunk, [C].
        params_versions: Version of the parameters that chose each one's last action, [C].
        continues: Which of them follow the chunk before, [C].
        blocks: One entry for each column.
    """
    chunks = [*packed.varints(_CHUNKS["step_counts"], step_counts)]
    chunks += packed.varints(_CHUNKS["params_versions"], params_versions)
    for column in blocks:
        data = packed.field(_COLUMN["data"], column.data) if column.data else ()
        chunks += packed.field(_CHUNKS["columns"], *data, *packed.varints(_COLUMN["sizes"], column.sizes))
    part = [
        *packed.field(_EXPORT_CHUNKS["chunks"], *chunks),
        *packed.varints(_EXPORT_CHUNKS["continues"], continues.astype(np.int64)),
    ]
    return b"".join(packed.field(_EXPORT["chunks"], *part))


def unpack_blocks(message: pb.ChunkBatch) -> tuple[Blocks, ...]:
    """Return the blocks of some chunks, by column."""
    return tuple(Blocks(column.data, np.array(column.sizes, dtype=np.int64)) for column in message.columns)


def unpack_sample(message: pb.SampleResponse, *, mirrored: bool = False, received_at: float = 0.0) -> SampledBatch:
    """Return a sampled batch, its columns still encoded.

    Args:
        message: Its message.
        mirrored: Whether its stream was opened with a mirror.
        received_at: When it came, by `time.monotonic`, in seconds.
    """
    chunks = message.chunks
    return SampledBatch(
        **{column.name: _unpack_items(column, getattr(message, column.name)) for column in _ITEM_COLUMNS},
        step_counts=np.array(chunks.step_counts, dtype=np.int64),
        params_versions=np.array(chunks.params_versions, dtype=np.uint64),
        blocks=unpack_blocks(chunks),
        table_items=message.table_items,
        total_weight=message.total_weight,
        stored={"": StoredSteps(message.store_id, message.env_steps, message.count_id)},
        limiter_diff=message.limiter_diff,
        slots=np.array(chunks.slots, dtype=np.int64) if mirrored else None,
        sent=np.array(chunks.sent, dtype=np.int64) if mirrored else None,
        epoch=unpack_epoch(message.epoch) if message.HasField("epoch") else None,
        number=message.number,
        received_at=received_at,
    )


def _pack_items(batch: SampledBatch, *, is_optional: bool, item_counts: bool = False) -> Iterator[bytes]:
    """Yield the fields of the columns that every batch has, or of the others; counts where they were asked for."""
    for column in _ITEM_COLUMNS:
        value = getattr(batch, column.name)
        if column.is_optional is is_optional and value is not None and (item_counts or not column.is_count):
            yield from _WRITERS[_SAMPLE_FIELDS[column.name].type](_SAMPLE[column.name], value)


def _unpack_items(column: Column, values: Any) -> Any:  # noqa: ANN401 - a repeated field, and what a column is
    if not column.dtype:
        return tuple(values)
    return None if column.is_optional and not values else np.array(values, dtype=column.dtype)


def pack_epoch(place: EpochPlace) -> pb.EpochPlace:
    """Return a place in the epochs of a table as a message."""
    return pb.EpochPlace(seed=place.seed, number=place.number, slots=place.slots, next=place.next)


def unpack_epoch(message: pb.EpochPlace) -> EpochPlace:
    """Return the epoch from a message of `pack_epoch`."""
    return EpochPlace(message.seed, message.number, message.slots, message.next)


def _pack_selector(selector: SelectorConfig) -> pb.Selector:
    return pb.Selector(kind=_SELECTORS[selector.kind], priority_exponent=selector.priority_exponent)


def _unpack_selector(name: str, message: pb.Selector) -> SelectorConfig:
    kind = _SELECTOR_OF.get(message.kind)
    if kind is None:
        raise InvalidArgument(f"{name}.kind is {message.kind}, must be one of {sorted(_SELECTOR_OF)}")
    return SelectorConfig(kind, message.priority_exponent)


def _codec(message: pb.Column) -> Codec:
    codec = _CODEC_OF.get(message.codec)
    if codec is None:
        raise InvalidArgument(f"codec of column {message.name!r} is {message.codec}, must be CODEC_RAW or CODEC_LZ4")
    return codec
