"""Replay on its own: what a program needs to write to a replay server and to sample from it (docs/replay.md).

    from tidemill.replay import ReplayDataset, ReplayWriter, TableConfig

Names are imported when they are first used, so that a program pays only for what it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.errors import (
        AlreadyExists,
        DataLoss,
        FailedPrecondition,
        InvalidArgument,
        NotFound,
        ResourceExhausted,
        TidemillError,
        Unavailable,
    )
    from tidemill.replay.client import ReplayClient
    from tidemill.replay.sampling.batch import SampledBatch
    from tidemill.replay.sampling.dataset import ReplayDataset
    from tidemill.replay.sampling.replay_batch import ReplayBatch
    from tidemill.replay.sampling.sampler import ReplaySampler
    from tidemill.replay.table_config import (
        RateLimiterConfig,
        SelectorConfig,
        SelectorKind,
        TableConfig,
        TableDescription,
        TableUpdate,
    )
    from tidemill.replay.transfer.copying import copy_tables
    from tidemill.replay.transfer.exporting import TransferReport, export_table
    from tidemill.replay.transfer.importing import import_table
    from tidemill.replay.transfer.minari import MinariReport, export_minari, import_minari
    from tidemill.replay.writing.steps import signature_like
    from tidemill.replay.writing.stream_items import ItemWindow
    from tidemill.replay.writing.writer import ReplayWriter
    from tidemill.services.replay.embedded import Server
    from tidemill.types import Codec, ColumnSpec, Signature

_HOME = {
    "tidemill.errors": (
        *("AlreadyExists", "DataLoss", "FailedPrecondition", "InvalidArgument", "NotFound", "ResourceExhausted"),
        *("TidemillError", "Unavailable"),
    ),
    "tidemill.replay.sampling.batch": ("SampledBatch",),
    "tidemill.replay.client": ("ReplayClient",),
    "tidemill.replay.sampling.dataset": ("ReplayDataset",),
    "tidemill.replay.sampling.replay_batch": ("ReplayBatch",),
    "tidemill.replay.sampling.sampler": ("ReplaySampler",),
    "tidemill.replay.writing.steps": ("signature_like",),
    "tidemill.replay.writing.stream_items": ("ItemWindow",),
    "tidemill.replay.table_config": (
        *("RateLimiterConfig", "SelectorConfig", "SelectorKind", "TableConfig", "TableDescription", "TableUpdate"),
    ),
    "tidemill.replay.transfer.copying": ("copy_tables",),
    "tidemill.replay.transfer.exporting": ("TransferReport", "export_table"),
    "tidemill.replay.transfer.importing": ("import_table",),
    "tidemill.replay.transfer.minari": ("MinariReport", "export_minari", "import_minari"),
    "tidemill.replay.writing.writer": ("ReplayWriter",),
    "tidemill.services.replay.embedded": ("Server",),  # a service: imported for who asks for it, and by nothing here
    "tidemill.types": ("Codec", "ColumnSpec", "Signature"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AlreadyExists",
    "Codec",
    "ColumnSpec",
    "DataLoss",
    "FailedPrecondition",
    "InvalidArgument",
    "ItemWindow",
    "MinariReport",
    "NotFound",
    "RateLimiterConfig",
    "ReplayBatch",
    "ReplayClient",
    "ReplayDataset",
    "ReplaySampler",
    "ReplayWriter",
    "ResourceExhausted",
    "SampledBatch",
    "SelectorConfig",
    "SelectorKind",
    "Server",
    "Signature",
    "TableConfig",
    "TableDescription",
    "TableUpdate",
    "TidemillError",
    "TransferReport",
    "Unavailable",
    "copy_tables",
    "export_minari",
    "export_table",
    "import_minari",
    "import_table",
    "signature_like",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Return a public name from the module that holds it (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tidemill.replay' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
