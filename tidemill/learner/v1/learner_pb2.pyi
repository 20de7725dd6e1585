from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LearnerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEARNER_STATE_UNSPECIFIED: _ClassVar[LearnerState]
    LEARNER_STATE_STARTING: _ClassVar[LearnerState]
    LEARNER_STATE_WAITING: _ClassVar[LearnerState]
    LEARNER_STATE_TRAINING: _ClassVar[LearnerState]
    LEARNER_STATE_PAUSED: _ClassVar[LearnerState]
    LEARNER_STATE_STOPPING: _ClassVar[LearnerState]
LEARNER_STATE_UNSPECIFIED: LearnerState
LEARNER_STATE_STARTING: LearnerState
LEARNER_STATE_WAITING: LearnerState
LEARNER_STATE_TRAINING: LearnerState
LEARNER_STATE_PAUSED: LearnerState
LEARNER_STATE_STOPPING: LearnerState

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("state", "learner_steps", "env_steps", "steps_per_s", "wait_fraction", "params_version", "generation", "checkpoint_steps", "table_items", "metrics", "uptime_s", "max_learner_steps", "restored")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    PARAMS_VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEPS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ITEMS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    MAX_LEARNER_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    state: LearnerState
    learner_steps: int
    env_steps: int
    steps_per_s: float
    wait_fraction: float
    params_version: int
    generation: int
    checkpoint_steps: int
    table_items: int
    metrics: _containers.ScalarMap[str, float]
    uptime_s: float
    max_learner_steps: int
    restored: str
    def __init__(self, state: _Optional[_Union[LearnerState, str]] = ..., learner_steps: _Optional[int] = ..., env_steps: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., wait_fraction: _Optional[float] = ..., params_version: _Optional[int] = ..., generation: _Optional[int] = ..., checkpoint_steps: _Optional[int] = ..., table_items: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., uptime_s: _Optional[float] = ..., max_learner_steps: _Optional[int] = ..., restored: _Optional[str] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ("path", "learner_steps")
    PATH_FIELD_NUMBER: _ClassVar[int]
    LEARNER_STEPS_FIELD_NUMBER: _ClassVar[int]
    path: str
    learner_steps: int
    def __init__(self, path: _Optional[str] = ..., learner_steps: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
