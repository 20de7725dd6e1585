"""Numbers of independent implementations, and how they were made."""

from __future__ import annotations

from pathlib import Path


def rlax_losses_file() -> Path:
    """Return where the numbers of rlax's losses are."""
    return Path(__file__).parent / "rlax_losses.json"
