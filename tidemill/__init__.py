"""Tidemill: distributed deep reinforcement learning as a cluster of gRPC services.

What is listed in `__all__` is the public surface: it is documented, typed and versioned, and the services of this
distribution are built on it. Names are imported when they are first used, so that `import tidemill` needs neither torch
nor gRPC's channels.

    import tidemill

    with tidemill.ReplayClient("127.0.0.1:7401") as replay:
        print([table.config.name for table in replay.list_tables()])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.bundle.policy import TrainedPolicy, load_policy
    from tidemill.config.load import load_config
    from tidemill.config.sections import RunConfig
    from tidemill.envs.interface import EpisodeSummary, MasksActions, VectorEnv, VectorStep
    from tidemill.envs.make import make_env
    from tidemill.envs.settings import EnvSettings
    from tidemill.errors import (
        AlreadyExists,
        ConfigError,
        DataLoss,
        FailedPrecondition,
        FatalError,
        InvalidArgument,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        TidemillError,
        Unauthenticated,
        Unavailable,
        Unimplemented,
    )
    from tidemill.learner.client import LearnerClient
    from tidemill.learner.status import LearnerState, LearnerStatus
    from tidemill.loggers.callbacks import Callback, CallbackContext
    from tidemill.loggers.interface import LoggedRun, RunLogger
    from tidemill.params.client import ParamsClient
    from tidemill.params.version import Params, ParamsMetadata, Precision, Version
    from tidemill.params.watcher import ParamsWatcher
    from tidemill.programs.cluster import Cluster, RunResult
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
    from tidemill.rl.agents.build import build_agent, build_policy
    from tidemill.rl.agents.interface import Agent, Policy, PolicyContext, Update
    from tidemill.rl.agents.registry import AgentConfig
    from tidemill.rl.policy_io import PolicyInput, PolicyOutput
    from tidemill.scores import Score
    from tidemill.types import Codec, ColumnSpec, EnvSpec, ObservationPart, Signature, WindowSpec, signature_of

__version__ = "0.1.0"

_HOME = {
    "tidemill.bundle.policy": ("TrainedPolicy", "load_policy"),
    "tidemill.loggers.callbacks": ("Callback", "CallbackContext"),
    "tidemill.programs.cluster": ("Cluster", "RunResult"),
    "tidemill.config.load": ("load_config",),
    "tidemill.config.sections": ("RunConfig",),
    "tidemill.envs.interface": ("EpisodeSummary", "MasksActions", "VectorEnv", "VectorStep"),
    "tidemill.envs.make": ("make_env",),
    "tidemill.envs.settings": ("EnvSettings",),
    "tidemill.errors": (
        *("AlreadyExists", "ConfigError", "DataLoss", "FailedPrecondition", "FatalError", "InvalidArgument"),
        *("NotFound", "PermissionDenied", "ResourceExhausted", "TidemillError", "Unauthenticated", "Unavailable"),
        "Unimplemented",
    ),
    "tidemill.learner.client": ("LearnerClient",),
    "tidemill.learner.status": ("LearnerState", "LearnerStatus"),
    "tidemill.loggers.interface": ("LoggedRun", "RunLogger"),
    "tidemill.params.client": ("ParamsClient",),
    "tidemill.params.version": ("Params", "ParamsMetadata", "Precision", "Version"),
    "tidemill.params.watcher": ("ParamsWatcher",),
    "tidemill.replay.sampling.batch": ("SampledBatch",),
    "tidemill.replay.client": ("ReplayClient",),
    "tidemill.replay.sampling.dataset": ("ReplayDataset",),
    "tidemill.replay.sampling.replay_batch": ("ReplayBatch",),
    "tidemill.replay.sampling.sampler": ("ReplaySampler",),
    "tidemill.replay.table_config": (
        *("RateLimiterConfig", "SelectorConfig", "SelectorKind", "TableConfig", "TableDescription"),
        "TableUpdate",
    ),
    "tidemill.replay.transfer.copying": ("copy_tables",),
    "tidemill.replay.transfer.exporting": ("TransferReport", "export_table"),
    "tidemill.replay.transfer.importing": ("import_table",),
    "tidemill.replay.transfer.minari": ("MinariReport", "export_minari", "import_minari"),
    "tidemill.replay.writing.steps": ("signature_like",),
    "tidemill.replay.writing.stream_items": ("ItemWindow",),
    "tidemill.replay.writing.writer": ("ReplayWriter",),
    "tidemill.rl.agents.build": ("build_agent", "build_policy"),
    "tidemill.rl.agents.interface": ("Agent", "Policy", "PolicyContext", "Update"),
    "tidemill.rl.agents.registry": ("AgentConfig",),
    "tidemill.rl.policy_io": ("PolicyInput", "PolicyOutput"),
    "tidemill.scores": ("Score",),
    "tidemill.types": ("Codec", "ColumnSpec", "EnvSpec", "ObservationPart", "Signature", "WindowSpec", "signature_of"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Agent",
    "AgentConfig",
    "AlreadyExists",
    "Callback",
    "CallbackContext",
    "Cluster",
    "Codec",
    "ColumnSpec",
    "ConfigError",
    "DataLoss",
    "EnvSettings",
    "EnvSpec",
    "EpisodeSummary",
    "FailedPrecondition",
    "FatalError",
    "InvalidArgument",
    "ItemWindow",
    "LearnerClient",
    "LearnerState",
    "LearnerStatus",
    "LoggedRun",
    "MasksActions",
    "MinariReport",
    "NotFound",
    "ObservationPart",
    "Params",
    "ParamsClient",
    "ParamsMetadata",
    "ParamsWatcher",
    "PermissionDenied",
    "Policy",
    "PolicyContext",
    "PolicyInput",
    "PolicyOutput",
    "Precision",
    "RateLimiterConfig",
    "ReplayBatch",
    "ReplayClient",
    "ReplayDataset",
    "ReplaySampler",
    "ReplayWriter",
    "ResourceExhausted",
    "RunConfig",
    "RunLogger",
    "RunResult",
    "SampledBatch",
    "Score",
    "SelectorConfig",
    "SelectorKind",
    "Signature",
    "TableConfig",
    "TableDescription",
    "TableUpdate",
    "TidemillError",
    "TrainedPolicy",
    "TransferReport",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Update",
    "VectorEnv",
    "VectorStep",
    "Version",
    "WindowSpec",
    "__version__",
    "build_agent",
    "build_policy",
    "copy_tables",
    "export_minari",
    "export_table",
    "import_minari",
    "import_table",
    "load_config",
    "load_policy",
    "make_env",
    "signature_like",
    "signature_of",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Return a public name from the module that holds it (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
