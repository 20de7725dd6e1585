"""What a release hands out."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.release_rehearsal import build

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_same_commit_is_the_same_bytes(tmp_path: Path) -> None:
    """Sdist and wheel, built twice in different folders at different times, with the compiled kernel."""
    assert build(tmp_path).name.startswith("tidemill-")
