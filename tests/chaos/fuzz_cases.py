"""Calls that no good client makes: good messages of every RPC, changed in ways that a seed decides."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lz4.block
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.support.params_service import METADATA
from tests.support.replay_messages import data_with, field, opening, varint
from tests.support.replay_streams import make_config
from tests.support.rpc_methods import METHODS
from tidemill.inference.v1 import inference_pb2
from tidemill.inference.wire import Opening, pack_open
from tidemill.learner.v1 import learner_pb2
from tidemill.params.v1 import params_pb2
from tidemill.params.wire import pack_metadata
from tidemill.replay.v1 import replay_pb2
from tidemill.replay.wire import pack_config
from tidemill.simulator.v1 import simulator_pb2

_BLOB = b"parameters"
_NUMBERS = (-(2**63), -(2**31), -1, 0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_REALS = (0.0, -0.0, 1.0, -1.0, 5e-324, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
_TEXTS = ("", "t", "latest", "\0", "../../x", "a" * 300, "é" * 70_000, "full", "-1")
_BYTES = (b"", b"\0", b"\xff" * 16, bytes(64), bytes(100_000))
_COUNTS = (0, 1, 2, 17)
_DEEPEST = 4


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        path: The method, as in HTTP/2.
        messages: What is sent, byte for byte.
        refused: Whether nothing but a refusal is right.
    """

    path: str
    messages: tuple[bytes, ...]
    refused: bool = False


class Corpus:
    """Good calls of every RPC."""

    def __init__(self, opened: Opening, step: bytes, simulated: Sequence[Message]) -> None:
        """Take what an actor of the inference service sends, and what a simulator does."""
        self.calls: dict[str, tuple[Message, ...]] = {}
        for path, method in METHODS.items():
            self.calls[path] = (GetMessageClass(method.input_type)(),)
        r, p = "/tidemill.replay.v1.ReplayService/", "/tidemill.params.v1.ParamService/"
        pb = replay_pb2
        self.calls |= {
            f"{r}CreateTable": (pb.CreateTableRequest(config=pack_config(make_config("other", max_items=50))),),
            f"{r}DescribeTable": (pb.DescribeTableRequest(name="t"),),
            f"{r}UpdateTable": (pb.UpdateTableRequest(name="t", max_items=90, min_size=2, rate_limiter_on=True),),
            f"{r}ResetTable": (pb.ResetTableRequest(name="t"),),
            f"{r}DropTable": (pb.DropTableRequest(name="dropped"),),
            f"{r}Append": (opening(), data_with()),
            f"{r}Sample": (
                pb.SampleRequest(open=pb.SampleOpen(table="t", batch_size=4, item_counts=True), credit=2),
                pb.SampleRequest(draws=[pb.Draw(items=4, seed=3)]),
            ),
            f"{r}UpdatePriorities": (pb.UpdatePrioritiesRequest(table="t", keys=[1, 2], priorities=[1.0, 2.0]),),
            f"{r}DeleteItems": (pb.DeleteItemsRequest(table="t", keys=[1, 2**40]),),
            f"{r}DeleteMatchingItems": (pb.DeleteMatchingItemsRequest(table="t", min_age=2),),
            f"{r}Export": (pb.ExportRequest(table="t", newest=3, max_age=9),),
            f"{p}AcquireFencingToken": (params_pb2.AcquireFencingTokenRequest(publisher="p"),),
            f"{p}Publish": (_header(), params_pb2.PublishRequest(piece=_BLOB)),
            f"{p}Fetch": (params_pb2.FetchRequest(tag="latest"),),
            f"{p}Watch": (params_pb2.WatchRequest(tag="latest"),),
            f"{p}SetTag": (params_pb2.SetTagRequest(tag="best", version=1),),
            "/tidemill.learner.v1.LearnerService/Stop": (learner_pb2.StopRequest(reason="enough"),),
            "/tidemill.inference.v1.InferenceService/Act": (
                pack_open(opened),
                inference_pb2.ActRequest.FromString(step),
            ),
            "/tidemill.simulator.v1.SimulatorService/Play": tuple(simulated),
            "/tidemill.simulator.v1.SimulatorService/Evaluate": (
                simulator_pb2.EvaluateRequest(params_version=1, episodes=2),
            ),
        }
        self.paths = sorted(self.calls)

    def raw(self, path: str) -> list[bytes]:
        """Return the messages of a good call."""
        return [message.SerializeToString() for message in self.calls[path]]


def _header() -> params_pb2.PublishRequest:
    encoding = params_pb2.Encoding(
        precision=params_pb2.PRECISION_FULL, size_bytes=len(_BLOB), sha256=hashlib.sha256(_BLOB).digest()
    )
    header = params_pb2.PublishHeader(fencing_token=1, metadata=pack_metadata(METADATA), encodings=[encoding])
    return params_pb2.PublishRequest(header=header)


Kind = Callable[[random.Random, Corpus], Case]


def noise(rng: random.Random, corpus: Corpus) -> Case:
    """Random bytes, alone or after a good first message."""
    path = rng.choice(corpus.paths)
    good = corpus.raw(path)[:-1] if rng.random() < 0.5 else []
    return Case(path, (*good, rng.randbytes(rng.randint(1, 300))))


def mutated(rng: random.Random, corpus: Corpus) -> Case:
    """A good call whose bytes are flipped, cut, repeated, removed or exchanged in one or a few places."""
    path = rng.choice(corpus.paths)
    messages = [bytearray(raw) for raw in corpus.raw(path)]
    for _ in range(rng.choice((1, 1, 2, 5))):
        data = rng.choice(messages)
        at, size = rng.randint(0, len(data)), rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = data[at : at + size] * rng.choice((1, 3))
            case _:
                data[at : at + size] = rng.randbytes(size)
    return Case(path, tuple(map(bytes, messages)))


def extreme_field(rng: random.Random, corpus: Corpus) -> Case:
    """A good call with one field, however deep, at an extreme of its type."""
    path = rng.choice(corpus.paths)
    messages = [type(good).FromString(good.SerializeToString()) for good in corpus.calls[path]]
    target: Any = rng.choice(messages)
    while True:
        name = rng.choice(target.DESCRIPTOR.fields) if target.DESCRIPTOR.fields else None
        if name is None:
            break
        inner = getattr(target, name.name)
        if name.message_type and rng.random() < 0.8:
            if not name.is_repeated:
                target = inner
                target.SetInParent()
                continue
            if inner and not name.message_type.GetOptions().map_entry:
                target = rng.choice(list(inner))
                continue
        _set_extreme(target, name, rng, 0)
        break
    return Case(path, _keeping_the_table(messages))


def extreme(rng: random.Random, corpus: Corpus) -> Case:
    """Messages of which every field is at an extreme, or missing."""
    path = rng.choice(corpus.paths)
    kind = METHODS[path].input_type
    made = [_extreme_message(kind, rng, 0) for _ in range(rng.choice((1, 1, 2, 3)))]
    good = corpus.raw(path)[:1] if len(made) < 3 and METHODS[path].client_streaming and rng.random() < 0.6 else []
    return Case(path, (*good, *_keeping_the_table(made)))


def _keeping_the_table(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """Serialise messages; a call that would drop the table of all other calls drops none."""
    for message in messages:
        if isinstance(message, replay_pb2.DropTableRequest) and message.name == "t":
            message.name = "dropped"
    return tuple(message.SerializeToString() for message in messages)


def _extreme_message(kind: Descriptor, rng: random.Random, depth: int) -> Message:
    message = GetMessageClass(kind)()
    for each in kind.fields:
        if rng.random() < 0.7:
            _set_extreme(message, each, rng, depth)
    return message


def _set_extreme(message: Any, each: FieldDescriptor, rng: random.Random, depth: int) -> None:  # noqa: ANN401
    if each.message_type and (depth > _DEEPEST or each.message_type.GetOptions().map_entry):
        return
    if each.is_repeated:
        values = [_extreme_value(each, rng, depth) for _ in range(rng.choice(_COUNTS))]
        message.ClearField(each.name)
        getattr(message, each.name).extend(values)
    elif each.message_type:
        getattr(message, each.name).CopyFrom(_extreme_message(each.message_type, rng, depth + 1))
    else:
        setattr(message, each.name, _extreme_value(each, rng, depth))


_INTEGERS: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
}
"""Least value of a type, and the first that is too great."""


def _extreme_value(each: FieldDescriptor, rng: random.Random, depth: int) -> Any:  # noqa: ANN401
    if each.message_type:
        return _extreme_message(each.message_type, rng, depth + 1)
    if each.cpp_type in _INTEGERS:
        least, end = _INTEGERS[each.cpp_type]
        return rng.choice([number for number in _NUMBERS if least <= number < end])
    if each.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if each.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(_BYTES if each.type == FieldDescriptor.TYPE_BYTES else _TEXTS)
    return rng.choice(_REALS)


def lying(rng: random.Random, corpus: Corpus) -> Case:
    """A message in which the size of a field is more than what is there, up to 2**64 - 1."""
    path = rng.choice([p for p in corpus.paths if any(corpus.raw(p))])
    messages = corpus.raw(path)
    at = rng.choice([i for i, raw in enumerate(messages) if raw])
    lie = rng.choice((1, 2, 100, 2**20, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1))
    messages[at] = field(15, b"")[:-1] + varint(lie) if rng.random() < 0.2 else _with_lie(messages[at], lie, rng)
    # A batch that waits for items is drawn before the server looks at what a caller of Sample sent after it.
    return Case(path, tuple(messages[: at + 1]), refused=not (path.endswith("Sample") and at))


def _with_lie(raw: bytes, lie: int, rng: random.Random) -> bytes:
    """Return a message whose last field is one of bytes that says to be longer than it is."""
    kept = raw if rng.random() < 0.5 else b""
    body = rng.randbytes(rng.randint(0, min(lie - 1, 20)))
    return kept + varint(rng.randint(1, 15) << 3 | 2) + varint(lie) + body


def bomb(rng: random.Random, corpus: Corpus) -> Case:
    """Little that unpacks to much: LZ4 blocks of zeros, and empty entries by the hundred thousand."""
    path = "/tidemill.replay.v1.ReplayService/Append"
    first, _ = corpus.raw(path)
    zeros = lz4.block.compress(bytes(rng.choice((2**16, 2**20, 2**24))), store_size=rng.random() < 0.5)
    count = rng.choice((17_000, 17_000, 17_000, 150_000))
    entries = field(rng.choice((1, 2)), b"") * count
    nested = field(1, field(6, b"") * count)
    messages: tuple[bytes, ...] = (
        data_with(columns=[zeros, bytes(32), bytes(16)]).SerializeToString(),
        field(2, entries),
        field(2, nested),
        field(2, field(2, field(6, b"") * count)),
        field(2, field(2, field(2, bytes(count * 8)))),
    )
    return Case(path, (first, rng.choice(messages)), refused=True)


def disorder(rng: random.Random, corpus: Corpus) -> Case:
    """A stream whose messages come too early, twice, too late, or that ends at once."""
    path = rng.choice([p for p in corpus.paths if METHODS[p].client_streaming])
    first, last = corpus.raw(path)
    order = rng.choice(((last,), (last, first), (first, first, last), (b"", first), (first, b""), (b"",), (b"", b"")))
    # Once it is open, Sample takes what gives it no credit.
    return Case(path, order, refused=not (path.endswith("Sample") and order[0] == first))


KINDS: Mapping[str, Kind] = {
    "noise": noise,
    "changed bytes": mutated,
    "one field at an extreme": extreme_field,
    "all fields at extremes": extreme,
    "sizes that lie": lying,
    "bombs": bomb,
    "streams out of order": disorder,
}
"""How calls are made, by name."""

STORES_NOTHING = ("noise", "sizes that lie", "bombs", "streams out of order")
"""Kinds of calls of which none can be good."""


def cases(kind: str, count: int, seed: str, corpus: Corpus) -> Iterator[Case]:
    """Yield so many calls of a kind."""
    rng = random.Random(seed)
    for _ in range(count):
        yield KINDS[kind](rng, corpus)
