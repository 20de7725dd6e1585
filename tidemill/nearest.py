"""Names the known name that a mistyped one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean 'X'?` for the known name closest to a mistyped one, or an empty string.

    Args:
        name: What was written.
        known: What could have been meant.
        prefix: Put before the known name, e.g. `learner.`.
    """
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {prefix + matches[0]!r}?" if matches else ""
