"""A response that leaves Python's memory as soon as gRPC has it."""

from __future__ import annotations

from google.protobuf.message import Message


class Outgoing:
    """A message's bytes, handed out once.

    gRPC keeps what a call yielded last until it yields again, and a message beside its bytes until these are sent: with
    callers who sample much and read little that is most of a server's memory.
    """

    __slots__ = ("_data",)

    def __init__(self, message: Message) -> None:
        """Serialise a message."""
        self._data = message.SerializeToString()

    def take(self) -> bytes:
        """Return the bytes and let go of them."""
        data, self._data = self._data, b""
        return data
