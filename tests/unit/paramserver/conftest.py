"""Stores that are closed when the test ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.publishing import OpenStore, small_store
from tidemill.services.paramserver.version_store import VersionStore


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """`small_store`, closed at the end of the test."""
    opened: list[VersionStore] = []

    def open_one(*arguments: object, **named: object) -> VersionStore:
        opened.append(small_store(*arguments, **named))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
