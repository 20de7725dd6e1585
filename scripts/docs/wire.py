"""Write docs/reference/wire.md from protos/ and the comments there.

    python -m scripts.docs.wire [--check]

With `--check` nothing is written: it fails when the page is out of date.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

from scripts.docs.generated import FOLDER, write_or_check
from scripts.protos import PROTOS

PAGE = FOLDER / "wire.md"
Place = tuple[int, ...]

_INTRODUCTION = """# Wire reference

<!-- Written by `python -m scripts.docs.wire` from protos/: change the comments there, then run it. -->

Call the services from any language with gRPC. Every server answers reflection:

```text
grpcurl -plaintext 127.0.0.1:7401 describe tidemill.replay.v1.ReplayService
```

The page is made from the comments in [protos/](../../protos/tidemill/replay/v1/replay.proto): what each call does, when
it blocks, its status codes, and whether a retry is safe. The contract changes only compatibly within `v1`.
[Replay on its own](../replay.md) and `tidemill/replay/codec.py` describe the payloads.
"""
# Field numbers of descriptor.proto, which make up the paths of a file's comments.
_PACKAGE = 2
_MESSAGES, _ENUMS, _SERVICES, _FIELDS, _VALUES, _METHODS, _NESTED, _NESTED_ENUMS = 4, 5, 6, 2, 2, 2, 3, 4
_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}


def page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for file in _files():
        comments = {tuple(place.path): _text(place.leading_comments) for place in file.source_code_info.location}
        parts += [f"## {file.package}\n\n{comments[_PACKAGE,]}\n", *_file(file, comments)]
    return "\n".join(parts).rstrip("\n") + "\n"


def _files() -> list[FileDescriptorProto]:
    """Return the descriptors of the project's own protos, with their comments."""
    protos = [str(path) for path in sorted(PROTOS.rglob("*.proto"))]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set.binpb"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", "--include_source_info"]
        subprocess.run([*command, f"--descriptor_set_out={out}", *protos], check=True)
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def _file(file: FileDescriptorProto, comments: dict[Place, str]) -> Iterator[str]:
    for number, service in enumerate(file.service):
        yield f"### {service.name}\n\n{comments[_SERVICES, number]}\n"
        for index, method in enumerate(service.method):
            yield f"#### {service.name}.{method.name}\n\n`{_call(file, method)}`\n"
            yield f"{comments[_SERVICES, number, _METHODS, index]}\n"
    for number, message in enumerate(file.message_type):
        yield from _message(file, message, "", (_MESSAGES, number), comments)
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, "", (_ENUMS, number), comments)


def _call(file: FileDescriptorProto, method: MethodDescriptorProto) -> str:
    sent = ("stream " if method.client_streaming else "") + _short(file, method.input_type)
    answered = ("stream " if method.server_streaming else "") + _short(file, method.output_type)
    return f"{sent} → {answered}"


def _message(
    file: FileDescriptorProto, message: DescriptorProto, outer: str, place: Place, comments: dict[Place, str]
) -> Iterator[str]:
    name = f"{outer}{message.name}"
    yield f"### {name}\n\n{comments[place]}\n"
    rows = [
        f"| {field.number} | `{field.name}` | {_kind(file, message, field)} | "
        f"{_cell(comments[*place, _FIELDS, index])} |"
        for index, field in enumerate(message.field)
    ]
    if rows:
        yield "\n".join(["| | Field | Type | Meaning |", "|---:|---|---|---|", *rows, ""])
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(file, nested, f"{name}.", (*place, _NESTED, index), comments)
    for index, enum in enumerate(message.enum_type):
        yield from _enum(enum, f"{name}.", (*place, _NESTED_ENUMS, index), comments)


def _enum(enum: EnumDescriptorProto, outer: str, place: Place, comments: dict[Place, str]) -> Iterator[str]:
    yield f"### {outer}{enum.name}\n\n{comments[place]}\n"
    rows = [
        f"| {value.number} | `{value.name}` | {_cell(comments[*place, _VALUES, index])} |"
        for index, value in enumerate(enum.value)
    ]
    yield "\n".join(["| | Value | Meaning |", "|---:|---|---|", *rows, ""])


def _kind(file: FileDescriptorProto, message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Return a field's type, and the oneof it belongs to."""
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = (_kind(file, entry, part) for part in entry.field)
        return f"map from {key} to {value}"
    word = _short(file, field.type_name) if field.type_name else _SCALARS[field.type]
    word = f"repeated {word}" if field.label == FieldDescriptorProto.LABEL_REPEATED else word
    if field.proto3_optional:
        return f"optional {word}"
    return f"{word}, one of `{message.oneof_decl[field.oneof_index].name}`" if field.HasField("oneof_index") else word


def _short(file: FileDescriptorProto, name: str) -> str:
    return name.removeprefix(".").removeprefix(f"{file.package}.")


def _text(comment: str) -> str:
    """Return a comment as Markdown: its paragraphs, without the space after the slashes."""
    return re.sub(r"(?m)^ ", "", comment).strip().replace("<", "&lt;")


def _cell(comment: str) -> str:
    return " ".join(comment.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), "python -m scripts.docs.wire", sys.argv[1:]))
