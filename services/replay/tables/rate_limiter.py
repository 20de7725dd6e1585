"""Rate limiter of a table: when inserts and samples must wait. Arithmetic only; waiting happens in the admission."""

from __future__ import annotations

from tidemill.replay.table_config import RateLimiterConfig

_MOST_AHEAD = 2**20
"""Samples beyond the error buffer: what many ranks of a learner may ask for before they hear of each other's."""


class RateLimiter:
    """Counts the inserts and samples of one table and judges the next call before it happens.

    A call is admitted whole, whatever its size. With a ratio, the *diff* of the inserts is

        diff = (items inserted beyond min_size) * samples_per_insert - samples

    An insert is admitted while diff <= error_buffer, a sample while diff >= -error_buffer. As the buffer is
    positive, one of the two always holds, so that the sides cannot wait for each other.

    One that is off counts nothing and holds nobody back but a sample of an empty table.

    Attributes:
        is_on: Whether it limits.
        full_size: Items of the table when it last evicted some to save bytes, at least 1; 0 if it never did.
    """

    def __init__(self, config: RateLimiterConfig, *, is_on: bool = True) -> None:
        """Create a limiter of an empty table."""
        self.is_on = is_on
        self._config = config if is_on else RateLimiterConfig()
        self.reset()

    def reset(self) -> None:
        """Forget every call."""
        self._reached = False  # whether the table has ever held min_size items
        self._least = self._config.min_size  # items up to which inserts do not wait for samples
        self._inserts = 0  # beyond min_size
        self._samples = 0
        self.full_size = 0

    @property
    def state(self) -> tuple[int, int, int]:
        """Whether min_size was reached (0 or 1), inserts beyond it, and samples."""
        return int(self._reached), self._inserts, self._samples

    def restore(self, state: tuple[int, int, int]) -> None:
        """Continue from the `state` before the restart, with the same configuration."""
        self._reached, self._inserts, self._samples = bool(state[0]), state[1], state[2]

    def begin(self, size: int, full_size: int = 0) -> None:
        """Start with a table that already holds `size` items: neither side is ahead.

        Args:
            size: Items of the table.
            full_size: Of the limiter before it, if bytes bound the table as they did.
        """
        self.reset()
        self._reached = size >= self._config.min_size
        self.full_size = full_size
        if 0 < full_size < self._config.min_size:
            self.full(full_size)

    @property
    def diff(self) -> float:
        """How far the inserts are ahead, in samples; 0 without a ratio."""
        if not self._config.samples_per_insert:
            return 0.0
        return self._inserts * self._config.samples_per_insert - self._samples

    def can_insert(self, size: int) -> bool:
        """True if an insert is allowed while the table holds `size` items."""
        if self._config.queue_size and size >= self._config.queue_size:
            return False
        return size < self._least or self.diff <= self._config.error_buffer

    def can_sample(self, size: int) -> bool:
        """True if a sample is allowed while the table holds `size` items."""
        return self._reached and size > 0 and self.diff >= -self._config.error_buffer

    def inserted(self, count: int, size: int) -> None:
        """Count an insert of `count` items, after which the table holds `size` (or would, were it not full)."""
        if self._reached:
            self._inserts += count
        elif size >= self._config.min_size:
            self._reached = True
            self._inserts = size - self._config.min_size

    def full(self, size: int) -> None:
        """Count `min_size` as reached: the table evicted items to save bytes and is full with `size` of them."""
        self._reached = True
        self.full_size = max(size, 1)
        self._least = min(self._least, self.full_size)

    def countable(self, said: int, batch_size: int) -> int:
        """Return the number of a caller's samples, drawn here or elsewhere, that are counted.

        At most a batch, or what reduces a positive diff to zero; whatever callers say, samples never get further ahead
        than `_MOST_AHEAD`, so that inserts can catch up.
        """
        most, room = max(batch_size, self.diff + 1), self.diff + self._config.error_buffer + _MOST_AHEAD
        return max(int(min(said, most, room)), 0)

    def sampled(self, count: int) -> None:
        """Count `count` sampled items."""
        self._samples += count

    def unsampled(self, count: int) -> None:
        """Take back `count` sampled items, as far as they are still counted."""
        self._samples -= min(count, self._samples)
