"""Completes drawn batches with their blocks; what is damaged on disk is left out and drawn anew."""

from __future__ import annotations

import structlog

from services.replay.cold_reader import ColdReader
from services.replay.credit import Wanted
from services.replay.drawn import Drawn, Sample
from services.replay.gate import Gate
from services.replay.log_blocks import LogBlocks
from services.replay.replay import Replay
from services.replay.table import Table

_log = structlog.get_logger()


class BatchReader:
    """Draws batches, waiting for the table first and for the disk then."""

    def __init__(self, replay: Replay, gate: Gate, cold: ColdReader | None) -> None:
        """Draw from a state; `cold` reads what is not in memory, None if everything is."""
        self._replay, self._gate, self._cold = replay, gate, cold

    async def read(self, table: Table, wanted: Wanted, distinct: bool) -> Sample:
        """Draw a batch once the table admits it, and return it with its blocks."""
        items, limited = wanted.items, wanted.counted is None
        if self._cold is None:
            return await self._gate.sample(
                table,
                items,
                distinct,
                lambda: table.sample(items, distinct, wanted.counted_by(table.limiter)),
                limited=limited,
            )
        held: list[Drawn] = []  # by the draw itself: a call that is cancelled just then must release it all the same
        try:
            drawn = await self._gate.sample(
                table,
                items,
                distinct,
                lambda: _kept(held, table.draw(items, distinct, wanted.counted_by(table.limiter))),
                limited=limited,
            )
            return await self._complete(self._cold, table, drawn, distinct, held)
        finally:
            for part in held:
                part.release(table.store)

    async def _complete(
        self, cold: ColdReader, table: Table, drawn: Drawn, distinct: bool, held: list[Drawn]
    ) -> Sample:
        blocks, count = table.store.blocks, len(drawn.keys)
        assert isinstance(blocks, LogBlocks), "a log keeps the blocks"
        while True:
            blobs, damaged = await cold.blobs(blocks, drawn.chunks)
            if not len(damaged):
                whole = [blob for blob in blobs if blob is not None]
                return drawn.with_blocks(blocks.cut(drawn.chunks, whole, drawn.step_counts))
            self._drop(table, damaged.tolist())
            anew = distinct and not table.config.max_times_sampled  # or an item could come twice
            kept = drawn.without(drawn.chunks if anew else damaged)
            drawn = kept.joined(await self._draw_more(table, count - len(kept.keys), distinct, held))

    async def _draw_more(self, table: Table, count: int, distinct: bool, held: list[Drawn]) -> Drawn:
        """Draw in place of damaged items, which the rate limiter has counted already."""
        return await self._gate.sample(
            table, count, distinct, lambda: _kept(held, table.draw(count, distinct, 0)), limited=False
        )

    def _drop(self, table: Table, chunks: list[int]) -> None:
        dropped = sum(self._replay.drop_chunk(table.store, chunk) for chunk in chunks)
        _log.error("damaged chunks on disk: their items are dropped", chunks=len(chunks), items=dropped)
        self._gate.changed()


def _kept(held: list[Drawn], drawn: Drawn) -> Drawn:
    held.append(drawn)
    return drawn
