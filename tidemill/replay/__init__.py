"""Replay on its own: what a program needs to write to a replay server and to sample from it (docs/replay.md).

    from tidemill.replay import ReplayDataset, ReplayWriter, TableConfig

Names are imported when they are first used, so that a program pays only for what it uses.
"""

from __future__ import annotations

from tidemill.lazy_names import offered

__all__, __getattr__, __dir__ = offered(__name__)
