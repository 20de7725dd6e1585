"""Tidemill: distributed deep reinforcement learning as a cluster of gRPC services.

What is listed in `__all__` is the public surface: it is documented, typed and versioned, and the services of this
distribution are built on it. Names are imported when they are first used, so that `import tidemill` needs neither torch
nor gRPC's channels.

    import tidemill

    with tidemill.ReplayClient("127.0.0.1:7401") as replay:
        print([table.config.name for table in replay.list_tables()])
"""

from __future__ import annotations

from tidemill.lazy_names import offered

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = offered(__name__)
__all__ += ["__version__"]
