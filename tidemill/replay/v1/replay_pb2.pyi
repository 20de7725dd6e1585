from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_UNSPECIFIED: _ClassVar[Codec]
    CODEC_RAW: _ClassVar[Codec]
    CODEC_LZ4: _ClassVar[Codec]

class SelectorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SELECTOR_KIND_UNSPECIFIED: _ClassVar[SelectorKind]
    SELECTOR_KIND_UNIFORM: _ClassVar[SelectorKind]
    SELECTOR_KIND_PRIORITIZED: _ClassVar[SelectorKind]
    SELECTOR_KIND_FIFO: _ClassVar[SelectorKind]
    SELECTOR_KIND_LIFO: _ClassVar[SelectorKind]
    SELECTOR_KIND_MAX_HEAP: _ClassVar[SelectorKind]
    SELECTOR_KIND_MIN_HEAP: _ClassVar[SelectorKind]
CODEC_UNSPECIFIED: Codec
CODEC_RAW: Codec
CODEC_LZ4: Codec
SELECTOR_KIND_UNSPECIFIED: SelectorKind
SELECTOR_KIND_UNIFORM: SelectorKind
SELECTOR_KIND_PRIORITIZED: SelectorKind
SELECTOR_KIND_FIFO: SelectorKind
SELECTOR_KIND_LIFO: SelectorKind
SELECTOR_KIND_MAX_HEAP: SelectorKind
SELECTOR_KIND_MIN_HEAP: SelectorKind

class Column(_message.Message):
    __slots__ = ("name", "dtype", "shape", "codec")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    codec: Codec
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., codec: _Optional[_Union[Codec, str]] = ...) -> None: ...

class Selector(_message.Message):
    __slots__ = ("kind", "priority_exponent")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    kind: SelectorKind
    priority_exponent: float
    def __init__(self, kind: _Optional[_Union[SelectorKind, str]] = ..., priority_exponent: _Optional[float] = ...) -> None: ...

class RateLimiter(_message.Message):
    __slots__ = ("min_size", "samples_per_insert", "error_buffer", "queue_size")
    MIN_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    ERROR_BUFFER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SIZE_FIELD_NUMBER: _ClassVar[int]
    min_size: int
    samples_per_insert: float
    error_buffer: float
    queue_size: int
    def __init__(self, min_size: _Optional[int] = ..., samples_per_insert: _Optional[float] = ..., error_buffer: _Optional[float] = ..., queue_size: _Optional[int] = ...) -> None: ...

class TableConfig(_message.Message):
    __slots__ = ("name", "signature", "sampler", "remover", "max_items", "max_bytes", "rate_limiter", "max_times_sampled", "max_item_steps")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    REMOVER_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITER_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMES_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEM_STEPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    signature: _containers.RepeatedCompositeFieldContainer[Column]
    sampler: Selector
    remover: Selector
    max_items: int
    max_bytes: int
    rate_limiter: RateLimiter
    max_times_sampled: int
    max_item_steps: int
    def __init__(self, name: _Optional[str] = ..., signature: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., sampler: _Optional[_Union[Selector, _Mapping]] = ..., remover: _Optional[_Union[Selector, _Mapping]] = ..., max_items: _Optional[int] = ..., max_bytes: _Optional[int] = ..., rate_limiter: _Optional[_Union[RateLimiter, _Mapping]] = ..., max_times_sampled: _Optional[int] = ..., max_item_steps: _Optional[int] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("config",)
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: TableConfig
    def __init__(self, config: _Optional[_Union[TableConfig, _Mapping]] = ...) -> None: ...

class CreateTableResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: _Optional[bool] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableDescription]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableDescription, _Mapping]]] = ...) -> None: ...

class DescribeTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeTableResponse(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: TableDescription
    def __init__(self, table: _Optional[_Union[TableDescription, _Mapping]] = ...) -> None: ...

class TableDescription(_message.Message):
    __slots__ = ("config", "items", "chunk_bytes", "chunks", "streams", "inserts", "samples", "samples_per_insert", "evictions", "priority_updates", "unknown_keys", "insert_blocked", "sample_blocked", "insert_blocked_s", "sample_blocked_s", "env_steps", "priority_mass")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    INSERTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_INSERT_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_UPDATES_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_KEYS_FIELD_NUMBER: _ClassVar[int]
    INSERT_BLOCKED_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_BLOCKED_FIELD_NUMBER: _ClassVar[int]
    INSERT_BLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_BLOCKED_S_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MASS_FIELD_NUMBER: _ClassVar[int]
    config: TableConfig
    items: int
    chunk_bytes: int
    chunks: int
    streams: int
    inserts: int
    samples: int
    samples_per_insert: float
    evictions: int
    priority_updates: int
    unknown_keys: int
    insert_blocked: bool
    sample_blocked: bool
    insert_blocked_s: float
    sample_blocked_s: float
    env_steps: int
    priority_mass: float
    def __init__(self, config: _Optional[_Union[TableConfig, _Mapping]] = ..., items: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., chunks: _Optional[int] = ..., streams: _Optional[int] = ..., inserts: _Optional[int] = ..., samples: _Optional[int] = ..., samples_per_insert: _Optional[float] = ..., evictions: _Optional[int] = ..., priority_updates: _Optional[int] = ..., unknown_keys: _Optional[int] = ..., insert_blocked: _Optional[bool] = ..., sample_blocked: _Optional[bool] = ..., insert_blocked_s: _Optional[float] = ..., sample_blocked_s: _Optional[float] = ..., env_steps: _Optional[int] = ..., priority_mass: _Optional[float] = ...) -> None: ...

class ResetTableRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ResetTableResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("open", "data")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    open: AppendOpen
    data: AppendData
    def __init__(self, open: _Optional[_Union[AppendOpen, _Mapping]] = ..., data: _Optional[_Union[AppendData, _Mapping]] = ...) -> None: ...

class AppendOpen(_message.Message):
    __slots__ = ("actor_id", "epoch", "env_count", "tables", "signature", "chunk_length")
    ACTOR_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENV_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    actor_id: str
    epoch: int
    env_count: int
    tables: _containers.RepeatedScalarFieldContainer[str]
    signature: _containers.RepeatedCompositeFieldContainer[Column]
    chunk_length: int
    def __init__(self, actor_id: _Optional[str] = ..., epoch: _Optional[int] = ..., env_count: _Optional[int] = ..., tables: _Optional[_Iterable[str]] = ..., signature: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., chunk_length: _Optional[int] = ...) -> None: ...

class AppendData(_message.Message):
    __slots__ = ("chunks", "items")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    items: _containers.RepeatedCompositeFieldContainer[ItemBatch]
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., items: _Optional[_Iterable[_Union[ItemBatch, _Mapping]]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("env_index", "first_step", "step_count", "decision_count", "params_version", "columns")
    ENV_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECISION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARAMS_VERSION_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    env_index: int
    first_step: int
    step_count: int
    decision_count: int
    params_version: int
    columns: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, env_index: _Optional[int] = ..., first_step: _Optional[int] = ..., step_count: _Optional[int] = ..., decision_count: _Optional[int] = ..., params_version: _Optional[int] = ..., columns: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ItemBatch(_message.Message):
    __slots__ = ("table_index", "chunk_indices", "last_offsets", "lengths", "priorities", "payloads")
    TABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDICES_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    table_index: int
    chunk_indices: _containers.RepeatedScalarFieldContainer[int]
    last_offsets: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[float]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, table_index: _Optional[int] = ..., chunk_indices: _Optional[_Iterable[int]] = ..., last_offsets: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[float]] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("epoch", "next_steps", "env_steps")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next_steps: _containers.RepeatedScalarFieldContainer[int]
    env_steps: int
    def __init__(self, epoch: _Optional[int] = ..., next_steps: _Optional[_Iterable[int]] = ..., env_steps: _Optional[int] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("open", "credit")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    open: SampleOpen
    credit: int
    def __init__(self, open: _Optional[_Union[SampleOpen, _Mapping]] = ..., credit: _Optional[int] = ...) -> None: ...

class SampleOpen(_message.Message):
    __slots__ = ("table", "batch_size", "without_replacement")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_REPLACEMENT_FIELD_NUMBER: _ClassVar[int]
    table: str
    batch_size: int
    without_replacement: bool
    def __init__(self, table: _Optional[str] = ..., batch_size: _Optional[int] = ..., without_replacement: _Optional[bool] = ...) -> None: ...

class SampleResponse(_message.Message):
    __slots__ = ("keys", "probabilities", "first_rows", "lengths", "payloads", "chunks", "table_items", "priority_mass", "env_steps")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROWS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MASS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    probabilities: _containers.RepeatedScalarFieldContainer[float]
    first_rows: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    chunks: ChunkBatch
    table_items: int
    priority_mass: float
    env_steps: int
    def __init__(self, keys: _Optional[_Iterable[int]] = ..., probabilities: _Optional[_Iterable[float]] = ..., first_rows: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., chunks: _Optional[_Union[ChunkBatch, _Mapping]] = ..., table_items: _Optional[int] = ..., priority_mass: _Optional[float] = ..., env_steps: _Optional[int] = ...) -> None: ...

class ChunkBatch(_message.Message):
    __slots__ = ("step_counts", "params_versions", "columns")
    STEP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    step_counts: _containers.RepeatedScalarFieldContainer[int]
    params_versions: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedCompositeFieldContainer[ColumnBlocks]
    def __init__(self, step_counts: _Optional[_Iterable[int]] = ..., params_versions: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[_Union[ColumnBlocks, _Mapping]]] = ...) -> None: ...

class ColumnBlocks(_message.Message):
    __slots__ = ("data", "sizes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, data: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdatePrioritiesRequest(_message.Message):
    __slots__ = ("table", "keys", "priorities")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: _containers.RepeatedScalarFieldContainer[int]
    priorities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ..., priorities: _Optional[_Iterable[float]] = ...) -> None: ...

class UpdatePrioritiesResponse(_message.Message):
    __slots__ = ("updated", "unknown")
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    updated: int
    unknown: int
    def __init__(self, updated: _Optional[int] = ..., unknown: _Optional[int] = ...) -> None: ...

class DeleteItemsRequest(_message.Message):
    __slots__ = ("table", "keys")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    table: str
    keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, table: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class DeleteItemsResponse(_message.Message):
    __slots__ = ("deleted", "unknown")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    unknown: int
    def __init__(self, deleted: _Optional[int] = ..., unknown: _Optional[int] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: int
    def __init__(self, snapshot: _Optional[int] = ...) -> None: ...
