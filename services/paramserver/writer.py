"""Changes the store in a separate thread, so that reads continue during disk writes."""

from __future__ import annotations

import asyncio
import datetime
import errno
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from tidemill.errors import Reason, Unavailable
from tidemill.params.version import Version
from tidemill.services.paramserver.catalog import Catalog
from tidemill.services.paramserver.upload import PublishRequest, Upload
from tidemill.services.paramserver.version_notifier import VersionNotifier
from tidemill.services.paramserver.version_store import VersionStore

STALL_S = 10.0
"""How long a publisher may send nothing before it loses its turn, in seconds."""

_T = TypeVar("_T")

_FOLDER_LOST = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
"""Errors of a folder that is not there any more; the last on NFS, where another host has removed or replaced it."""


def lost_folder(folder: Path) -> str:
    """Return the message about a folder that is not there any more."""
    return f"the folder {folder} was removed, moved or replaced; the parameter server ends, to start with what is there"


class StoreWriter:
    """Makes one change after the other, each to its end even when its caller leaves, and announces it.

    Belongs to one event loop.
    """

    def __init__(
        self,
        store: VersionStore,
        notifier: VersionNotifier,
        *,
        clock: Callable[[], datetime.datetime],
        stall_s: float = STALL_S,
    ) -> None:
        """Start with an idle thread.

        Args:
            store: What is changed.
            notifier: Called after every change.
            clock: Returns the time of day, in UTC.
            stall_s: How long a publisher may send nothing, in seconds.
        """
        self._store, self._notifier, self._clock, self._stall_s = store, notifier, clock, stall_s
        self._publishing = asyncio.Lock()
        self._stall_timeout: asyncio.Timeout | None = None
        self.lost = asyncio.Event()
        """Set when the folder was found removed, moved or replaced: the server then ends, for a new start."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paramserver-disk")

    async def acquire_fencing_token(
        self, last_known_token: int = 0, last_known_version: int = 0, held_token: int = 0
    ) -> Catalog:
        """See `VersionStore.acquire_fencing_token`. A publisher that this supersedes loses its turn at once."""
        acquire = partial(self._store.acquire_fencing_token, last_known_token, last_known_version, held_token)
        catalog = await self._change(acquire)
        if self._stall_timeout is not None and not self._stall_timeout.expired():
            self._stall_timeout.reschedule(asyncio.get_running_loop().time())
        return catalog

    async def set_tag(self, tag: str, number: int) -> None:
        """See `VersionStore.set_tag`."""
        await self._change(partial(self._store.set_tag, tag, number))

    async def publish(self, request: PublishRequest, pieces: AsyncIterator[bytes]) -> tuple[Version, bool]:
        """Receive a request's bytes and make it a version; one publish at a time.

        Returns:
            The version, and whether it is new; it is not when the request repeats the newest version.

        Raises:
            FailedPrecondition: The publisher is stale, or became so meanwhile.
            InvalidArgument, DataLoss: A field is out of range, or the bytes are not what was declared.
            ResourceExhausted: An encoding is too large, or the disk is full; nothing was stored.
            Unavailable: The publisher sent nothing for too long.
        """
        self._store.check(request)  # a stale publisher need not wait for its turn to learn so
        async with self._publishing:
            # On the thread, behind a commit that a caller which left may have under way: this may be its retry.
            repeated = await self._run(partial(self._store.check, request))
            if repeated is not None:
                return repeated, False
            upload = self._store.begin(request)
            try:
                await self._receive(upload, pieces)
                return await self._change(partial(self._store.commit, upload, self._clock())), True
            finally:
                self._thread.submit(upload.discard)  # after a write that may still be under way

    def close(self) -> None:
        """Finish what was begun and end the thread."""
        self._thread.shutdown(wait=True)

    async def _receive(self, upload: Upload, pieces: AsyncIterator[bytes]) -> None:
        while (piece := await self._next(upload.request, pieces)) is not None:
            await self._run(partial(upload.write, piece))

    async def _next(self, request: PublishRequest, pieces: AsyncIterator[bytes]) -> bytes | None:
        self._store.check(request)
        try:
            async with asyncio.timeout(self._stall_s) as self._stall_timeout:
                return await anext(pieces, None)
        except TimeoutError:
            self._store.check(request)  # it may be a new publisher that ended the wait
            raise Unavailable(
                f"the publisher sent nothing for {self._stall_s:g} s; publish again", reason=Reason.CALLER_SILENT
            ) from None
        finally:
            self._stall_timeout = None

    async def _change(self, change: Callable[[], _T]) -> _T:
        """Change the store on the thread, to the end even if the caller is cancelled, and announce it."""
        future = self._begun(change)
        future.add_done_callback(self._announce)
        return await asyncio.shield(future)

    def _announce(self, future: asyncio.Future[_T]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._notifier.notify()

    async def _run(self, step: Callable[[], _T]) -> _T:
        """Run a step on the thread that makes no visible change."""
        return await self._begun(step)

    def _begun(self, step: Callable[[], _T]) -> asyncio.Future[_T]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, self._on_disk, step, loop)

    def _on_disk(self, step: Callable[[], _T], loop: asyncio.AbstractEventLoop) -> _T:
        """Take a step in the folder that was opened.

        Raises:
            Unavailable: The folder is gone, or the disk refused; the publisher tries again.
        """
        try:
            self._store.check_folder()
            return step()
        except OSError as error:
            if error.errno in _FOLDER_LOST:
                loop.call_soon_threadsafe(self.lost.set)
                raise Unavailable(lost_folder(self._store.folder), reason=Reason.STOPPING) from error
            said = f"the parameter server cannot write to its folder: {error}"
            raise Unavailable(said, reason=Reason.DEPENDENCY_UNAVAILABLE) from error
