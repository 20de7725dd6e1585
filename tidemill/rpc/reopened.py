"""Objects that hold connections and threads, and go to another process as what they were made with."""

from __future__ import annotations

from functools import partial
from typing import Any, Self


class Reopened:
    """Is pickled as the arguments of its constructor: the process that unpickles it makes one of its own with them."""

    _opened_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:  # noqa: ANN401 - those of the constructor
        """Remember the arguments."""
        made = super().__new__(cls)
        made._opened_with = (arguments, named)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes another one. TypeError: `stop` is given, an event of this process's threads."""
        arguments, named = self._opened_with
        if named.get("stop") is not None:
            raise TypeError(f"a {type(self).__name__} with `stop` cannot be pickled: that event is this process's own")
        return partial(type(self), *arguments, **named), ()
