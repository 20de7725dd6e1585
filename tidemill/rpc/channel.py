"""Client channels, with the options that make a dead or frozen peer known within seconds."""

from __future__ import annotations

import grpc
import grpc.aio

from tidemill.rpc.options import client_options
from tidemill.rpc.settings import MEBIBYTE

DEADLINE_S = 10.0
"""Deadline of a unary call unless the caller knows better, in seconds."""

MAX_MESSAGE_BYTES = 64 * MEBIBYTE


def open_channel(address: str, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.Channel:
    """Return a channel to `host:port`, `dns:///name:port` or `unix:///path`; it connects on first use."""
    return grpc.insecure_channel(address, options=client_options(max_message_bytes))


def open_aio_channel(address: str, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> grpc.aio.Channel:
    """Return the asyncio twin of `open_channel`."""
    return grpc.aio.insecure_channel(address, options=client_options(max_message_bytes))
