"""Contents of files that are read again when the files change: tokens and certificates."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tidemill.errors import ConfigError

_LOG_EVERY_S = 10.0

_T = TypeVar("_T")
_Stamp = tuple[int, int, int, int]


class Reloaded(Generic[_T]):
    """The contents of files, looked at again by `refresh`; while they cannot be read, the last ones that could.

    A failure is logged: another reason at once, the same one at most every 10 seconds. Threads may share it.
    """

    def __init__(
        self,
        paths: Sequence[str],
        read: Callable[[], _T],
        log: Callable[..., None],
        message: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files.

        Args:
            paths: The files.
            read: Returns their contents; raises ConfigError or OSError.
            log: Logs a failure.
            message: What it logs.
            clock: Monotonic, in seconds.

        Raises:
            ConfigError, OSError: `read` did.
        """
        self._paths, self._read, self._log, self._message, self._clock = paths, read, log, message, clock
        self._reason, self._quiet_until = "", clock()
        # Stamps first: a change while the files are read is seen later. Both in one assignment: a thread that another
        # has overtaken sets back both, and the next `refresh` reads again.
        self._held: tuple[list[_Stamp | None] | None, _T] = self._look(), read()

    @property
    def value(self) -> _T:
        """The contents."""
        return self._held[1]

    def refresh(self, *, anyway: bool = False) -> bool:
        """Read the files again if they or their modes have changed; True if that gave new contents.

        Args:
            anyway: Read them in any case, so that a file that stays bad is logged again.
        """
        if (stamps := self._look()) == self._held[0] and not anyway:
            return False
        try:
            self._held = stamps, self._read()
        except (ConfigError, OSError) as error:  # such as files of which half are written: the rest changes the stamps
            # too many open files, for one, pass without a change of these
            passes = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            self._held = None if passes else stamps, self.value
            self._tell(str(error))
            return False
        return True

    def _look(self) -> list[_Stamp | None]:
        return [_stamp(path) for path in self._paths]

    def _tell(self, reason: str) -> None:
        if reason != self._reason or self._clock() >= self._quiet_until:
            self._reason, self._quiet_until = reason, self._clock() + _LOG_EVERY_S
            self._log(self._message, reason=reason)


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:  # reading it tells why
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
