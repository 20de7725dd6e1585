"""The traced items of tables, from the message that brings one to the batches it is drawn in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from tidemill.arrays import Ints
from tidemill.replay.batch import SampledBatch
from tidemill.services.replay.tables.table import Table
from tidemill.tracing import tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_MOST_ITEMS = 1024
"""Traced items that a table remembers; the oldest go."""

_CONTEXT_CHARACTERS = 55  # of a `traceparent`; what a caller sends beyond is not kept

MOST_DRAWS = 8
"""Batches that an item is traced in."""


@dataclass(slots=True)
class _Item:
    """A traced item: its context in the form of a `traceparent`, and in how many batches it was."""

    context: bytes
    draws: int = 0


class ItemTraces:
    """The traced items of all tables. Without a tracer the contexts are handed on as they came."""

    def __init__(self) -> None:
        """Start with none."""
        self._items: WeakKeyDictionary[Table, dict[int, _Item]] = WeakKeyDictionary()
        self._commits: set[asyncio.Future[None]] = set()

    def stored(
        self, context: str, received_ns: int, inserted: Iterable[tuple[Table, Ints]], durable: Awaitable[None]
    ) -> None:
        """Trace the newest item of each table that a message with a context has brought.

        Args:
            context: The message's `traceparent`.
            received_ns: When it was received, in Unix time.
            inserted: Tables that got items, each with their slots.
            durable: Ends once the message may be acknowledged.
        """
        own, stored = tracer(), context[:_CONTEXT_CHARACTERS]
        if own is not None:
            from tidemill.tracing.tracer import header

            span = own.child("store", context, start_ns=received_ns)
            span.end()
            stored = header(span)
            commit = asyncio.ensure_future(_ended(own.child("commit", span), durable))
            self._commits.add(commit)
            commit.add_done_callback(self._commits.discard)
        elif asyncio.iscoroutine(durable):
            durable.close()
        for table, slots in inserted:
            if not len(slots):
                continue
            items = self._items.setdefault(table, {})
            items[int(table.items.keys(slots[-1:])[0])] = _Item(stored.encode("ascii", "replace"))
            while len(items) > _MOST_ITEMS:
                del items[next(iter(items))]

    def drawn(self, table: Table, batch: SampledBatch) -> tuple[SampledBatch, list[Span]]:
        """Return a batch with the contexts of its traced items, and the spans of their draw, which the caller ends."""
        items = self._items.get(table)
        if not items:
            return batch, []
        places = np.flatnonzero(np.isin(batch.keys, np.fromiter(items, np.uint64, len(items))))
        if not len(places):
            return batch, []
        first = {int(batch.keys[place]): int(place) for place in places[::-1]}  # where each is for the first time
        own = tracer()
        spans: list[Span] = []
        contexts = [b""] * len(batch.keys)
        for key, place in first.items():
            item = items[key]
            contexts[place] = item.context
            if own is not None:
                from tidemill.tracing.tracer import header

                links = [items[other].context for other in first if other != key]
                spans.append(own.child("draw", item.context, links=links, attributes={"items": len(batch.keys)}))
                contexts[place] = header(spans[-1]).encode()
        for key in first:
            items[key].draws += 1
            if items[key].draws >= MOST_DRAWS:
                del items[key]
        return replace(batch, traces=tuple(contexts)), spans


async def _ended(span: Span, durable: Awaitable[None]) -> None:
    try:
        await durable
    finally:
        span.end(time.time_ns())
