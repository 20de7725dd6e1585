import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FULL: _ClassVar[Precision]
    PRECISION_HALF: _ClassVar[Precision]
PRECISION_UNSPECIFIED: Precision
PRECISION_FULL: Precision
PRECISION_HALF: Precision

class Metadata(_message.Message):
    __slots__ = ("algorithm", "env_id", "learner_steps", "env_steps", "config_digest")
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    ENV_ID_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    algorithm: str
    env_id: str
    learner_steps: int
    env_steps: int
    config_digest: str
    def __init__(self, algorithm: _Optional[str] = ..., env_id: _Optional[str] = ..., learner_steps: _Optional[int] = ..., env_steps: _Optional[int] = ..., config_digest: _Optional[str] = ...) -> None: ...

class Encoding(_message.Message):
    __slots__ = ("precision", "size_bytes", "sha256")
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    precision: Precision
    size_bytes: int
    sha256: bytes
    def __init__(self, precision: _Optional[_Union[Precision, str]] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version", "base_version", "generation", "created", "metadata", "encodings")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    version: int
    base_version: int
    generation: int
    created: _timestamp_pb2.Timestamp
    metadata: Metadata
    encodings: _containers.RepeatedCompositeFieldContainer[Encoding]
    def __init__(self, version: _Optional[int] = ..., base_version: _Optional[int] = ..., generation: _Optional[int] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., encodings: _Optional[_Iterable[_Union[Encoding, _Mapping]]] = ...) -> None: ...

class OpenGenerationRequest(_message.Message):
    __slots__ = ("publisher",)
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    def __init__(self, publisher: _Optional[str] = ...) -> None: ...

class OpenGenerationResponse(_message.Message):
    __slots__ = ("generation", "latest_version")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LATEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    latest_version: int
    def __init__(self, generation: _Optional[int] = ..., latest_version: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("header", "piece")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    header: PublishHeader
    piece: bytes
    def __init__(self, header: _Optional[_Union[PublishHeader, _Mapping]] = ..., piece: _Optional[bytes] = ...) -> None: ...

class PublishHeader(_message.Message):
    __slots__ = ("generation", "base_version", "metadata", "encodings")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    base_version: int
    metadata: Metadata
    encodings: _containers.RepeatedCompositeFieldContainer[Encoding]
    def __init__(self, generation: _Optional[int] = ..., base_version: _Optional[int] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., encodings: _Optional[_Iterable[_Union[Encoding, _Mapping]]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("version", "tag", "newer_than", "wait_s", "precision")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    NEWER_THAN_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    version: int
    tag: str
    newer_than: int
    wait_s: float
    precision: Precision
    def __init__(self, version: _Optional[int] = ..., tag: _Optional[str] = ..., newer_than: _Optional[int] = ..., wait_s: _Optional[float] = ..., precision: _Optional[_Union[Precision, str]] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("header", "piece")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    header: FetchHeader
    piece: bytes
    def __init__(self, header: _Optional[_Union[FetchHeader, _Mapping]] = ..., piece: _Optional[bytes] = ...) -> None: ...

class FetchHeader(_message.Message):
    __slots__ = ("not_newer", "version", "encoding")
    NOT_NEWER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    not_newer: bool
    version: Version
    encoding: Encoding
    def __init__(self, not_newer: _Optional[bool] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., encoding: _Optional[_Union[Encoding, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("tag", "newer_than")
    TAG_FIELD_NUMBER: _ClassVar[int]
    NEWER_THAN_FIELD_NUMBER: _ClassVar[int]
    tag: str
    newer_than: int
    def __init__(self, tag: _Optional[str] = ..., newer_than: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions", "tags")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    tags: _containers.ScalarMap[str, int]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ..., tags: _Optional[_Mapping[str, int]] = ...) -> None: ...

class SetTagRequest(_message.Message):
    __slots__ = ("tag", "version")
    TAG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    tag: str
    version: int
    def __init__(self, tag: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class SetTagResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
