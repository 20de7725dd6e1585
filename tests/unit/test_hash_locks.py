"""How locks are written again: the parts of it that need no package index."""

from __future__ import annotations

from scripts.hash_locks import split

LOCK = """# A lock.
-r runtime.txt
--only-binary :all:
box2d==2.3.10 ; python_full_version < '3.14' \\
    --hash=sha256:00 \\
    --hash=sha256:01
numpy==2.4.6 --hash=sha256:02
"""


def test_comments_nested_files_versions_and_markers_are_kept() -> None:
    """Hashes, and options that uv writes itself, are not."""
    header, pins = split(LOCK)
    assert header == ["# A lock.", "-r runtime.txt"]
    assert pins == ["box2d==2.3.10 ; python_full_version < '3.14'", "numpy==2.4.6"]
