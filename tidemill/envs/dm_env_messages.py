"""Messages of dm_env_rpc, wire-compatible with its dm_env_rpc.proto (version 1).

The stubs of the package `dm_env_rpc` are of protobuf 5, for which protobuf 7 promises nothing. Names and numbers of the
fields are those of https://github.com/google-deepmind/dm_env_rpc; the messages are made when this module is imported,
in a package of another name, so that both may be imported by one process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

PROCESS = "/dm_env_rpc.v1.Environment/Process"
"""The method: a stream of requests, each answered by one response."""

STRING, PROTO = 10, 11
RUNNING, TERMINATED, INTERRUPTED = 1, 2, 3

DTYPES = ("", "float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64", "bool")
"""NumPy's names, by the number of `DataType`; what follows them are texts and messages."""

_PACKAGE = "tidemill.dm_env_rpc"
_ARRAYS = ("floats", "doubles", "int8s", "int32s", "int64s", "uint8s", "uint32s", "uint64s", "bools", "strings")
_IN_BYTES = ("int8s", "uint8s")
_ELEMENTS = {
    "floats": "float",
    "doubles": "double",
    "int8s": "bytes",
    "int32s": "int32",
    "int64s": "int64",
    "uint8s": "bytes",
    "uint32s": "uint32",
    "uint64s": "uint64",
    "bools": "bool",
    "strings": "string",
}
_FIELDS = {
    **{f"{name}_array": (f"{'' if name in _IN_BYTES else '*'}{kind} array 1",) for name, kind in _ELEMENTS.items()},
    "Tensor": (*(f"{name}_array {name} {number}" for number, name in enumerate(_ARRAYS, 1)), "*int32 shape 15"),
    "Value": tuple(f"{name}_array {name} {number}" for number, name in enumerate(_ARRAYS[:8], 9)),
    "TensorSpec": ("string name 1", "*int32 shape 2", "int32 dtype 3", "Value min 4", "Value max 5"),
    "Setting": ("string key 1", "Tensor value 2"),
    "NamedSpec": ("uint64 key 1", "TensorSpec value 2"),
    "NamedTensor": ("uint64 key 1", "Tensor value 2"),
    "Specs": ("*NamedSpec actions 1", "*NamedSpec observations 2"),
    "Settings": ("*Setting settings 1",),
    "World": ("string world_name 1", "*Setting settings 2"),
    "Specified": ("Specs specs 1",),
    "StepRequest": ("*NamedTensor actions 1", "*uint64 requested_observations 2"),
    "StepResponse": ("int32 state 1", "*NamedTensor observations 2"),
    "Empty": (),
    "Status": ("int32 code 1", "string message 2"),
    "EnvironmentRequest": (
        *("Settings create_world 1", "World join_world 2", "StepRequest step 3", "Settings reset 4"),
        *("Empty leave_world 6", "World destroy_world 7"),
    ),
    "EnvironmentResponse": (
        *("World create_world 1", "Specified join_world 2", "StepResponse step 3", "Specified reset 4"),
        *("Empty leave_world 6", "Empty destroy_world 7", "Status error 16"),
    ),
}
_ONE_OF = {"Tensor": _ARRAYS, "Value": _ARRAYS[:8]}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="tidemill/dm_env_rpc.proto", package=_PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for text in fields:
            kind, name, number = text.split()
            field = message.field.add(name=name, number=int(number), json_name=name)
            field.label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if name in _ONE_OF.get(message_name, ()):
                field.oneof_index = 0
        if message_name in _ONE_OF:
            message.oneof_decl.add(name="payload")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def _message(name: str) -> Any:  # noqa: ANN401 - made here, so no stub knows it
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


EnvironmentRequest = _message("EnvironmentRequest")
EnvironmentResponse = _message("EnvironmentResponse")
Tensor = _message("Tensor")


def pack_tensor(value: Any) -> Any:  # noqa: ANN401
    """Return the `Tensor` of an array, a number or a text."""
    array = np.asarray(value)
    tensor = Tensor(shape=array.shape)
    if array.dtype.kind == "U":
        tensor.strings.array.extend(array.reshape(-1).tolist())
        return tensor
    field = _ARRAYS[DTYPES.index(array.dtype.name) - 1]
    payload = getattr(tensor, field)
    payload.SetInParent()
    if field in _IN_BYTES:
        payload.array = array.tobytes()
    else:
        payload.array.extend(array.reshape(-1).tolist())
    return tensor


def unpack_numbers(message: Any, shape: tuple[int, ...]) -> NDArray[Any]:  # noqa: ANN401
    """Return the numbers of a `Tensor`, or of a bound of a spec, in a shape; a single one fills it.

    Raises:
        ValueError: It has none, or another number of them.
    """
    field = message.WhichOneof("payload")
    if field is None or field == "strings":
        raise ValueError(f"{field or 'nothing'} instead of numbers")
    array, dtype = getattr(message, field).array, DTYPES[_ARRAYS.index(field) + 1]
    numbers = np.frombuffer(array, dtype) if field in _IN_BYTES else np.array(array, dtype)
    return np.full(shape, numbers[0]) if numbers.size == 1 else numbers.reshape(shape)
