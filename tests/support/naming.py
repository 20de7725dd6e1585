"""What the message of an error must name, whatever its prose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from tidemill.errors import Reason, TidemillError

_WORD = re.compile(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}|'[^']*'(?!\w)|\S+")


def naming(*words: object) -> str:
    """Return a pattern of messages that hold all of some names and values, in any order.

    A message may then be put better, and its test stays. `match=naming("min_size 0 1")` fails if it leaves out the
    setting, its value or what is allowed.

    Args:
        words: Names and values, several in one text between spaces. What stands in quotes or brackets is one. A word is
            found whole: 1 is not in 10, 1.5 or -1. One that comes twice is in the message twice.
    """
    counts = Counter(word for text in words for word in _WORD.findall(str(text)))
    return r"(?s)\A" + "".join(rf"(?={rf'.*?{_whole(word)}' * count})" for word, count in counts.items())


def because(reason: Reason | None) -> Callable[[TidemillError], bool]:
    """Return a check of `pytest.raises`: the error has this reason, or none."""
    return lambda error: error.reason is reason


def _whole(word: str) -> str:
    before = r"(?<![\w-])(?<!\d\.)" if word[0].isdigit() else r"(?<!\w)" if word[0].isalnum() or word[0] == "_" else ""
    after = r"(?!\w)(?!\.\d)" if word[-1].isalnum() or word[-1] == "_" else ""
    return before + re.escape(word) + after
