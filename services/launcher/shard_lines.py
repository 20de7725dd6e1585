"""Replay shards in words, for `tidemill status` and the view of a run."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.learner.status import ShardStatus


def describe_shards(shards: Sequence[ShardStatus]) -> dict[str, str]:
    """Return one line for each shard by its name: what it holds, its share of all samples, its address."""
    total = sum(shard.samples for shard in shards) or 1
    return {f"shard {shard.name}": _line(shard, shard.samples / total) for shard in shards}


def shards_away(shards: Sequence[ShardStatus]) -> str:
    """Return which shards do not answer, in words; empty if all do."""
    names = [shard.name for shard in shards if not shard.live]
    return f"without replay shard {', '.join(names)}" if names else ""


def _line(shard: ShardStatus, ratio: float) -> str:
    state = f"{shard.items:,} items, weight {shard.total_weight:,.4g}" if shard.live else "does not answer"
    return f"{state}, {ratio:.0%} of all samples, {shard.address}"
