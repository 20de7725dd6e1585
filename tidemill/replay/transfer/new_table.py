"""A table that is created and filled in one go: whole, or removed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import AlreadyExists, TidemillError, Unavailable
from tidemill.replay.client import ReplayClient


@contextmanager
def removed_on_failure(client: ReplayClient, address: str, table: str) -> Iterator[None]:
    """Remove a table if the block that creates and fills it fails.

    Raises:
        Unavailable: The block has failed because the server was away, or before it was: the table may still be there.
    """
    try:
        yield
    except AlreadyExists:  # another program has created one of that name meanwhile
        raise
    except BaseException as error:
        try:
            client.drop_table(table)
        except Unavailable:
            if isinstance(error, TidemillError):
                raise Unavailable(
                    f"{error}. Table {table!r} may be left with a part of its items: before you try again, run "
                    f"`tidemill replay drop {address} {table}`"
                ) from error
        except TidemillError:
            pass  # such as no table
        raise
