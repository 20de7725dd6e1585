"""The public surface, each name once, in the order and under the titles of docs/api.md."""

__version__: str
__all__: list[str]

# Running a cluster
from tidemill.programs.train import train as train
from tidemill.programs.cluster import Cluster as Cluster
from tidemill.programs.result import RunResult as RunResult
from tidemill.programs.result import LearningCurve as LearningCurve
from tidemill.config.sections import RunConfig as RunConfig
from tidemill.config.load import load_config as load_config

# Replay
from tidemill.replay.client import ReplayClient as ReplayClient
from tidemill.replay.writing.writer import ReplayWriter as ReplayWriter
from tidemill.replay.writing.stream_items import ItemWindow as ItemWindow
from tidemill.replay.writing.steps import signature_like as signature_like
from tidemill.replay.sampling.dataset import ReplayDataset as ReplayDataset
from tidemill.replay.sampling.dataset import Decoding as Decoding
from tidemill.replay.sampling.mirror_memory import HostRows as HostRows
from tidemill.replay.sampling.mixture import TableAt as TableAt
from tidemill.replay.shards.directory import ShardDirectory as ShardDirectory
from tidemill.replay.sampling.replay_batch import ReplayBatch as ReplayBatch
from tidemill.replay.sampling.sample_decoder import ItemRows as ItemRows
from tidemill.replay.sampling.sample_decoder import Whole as Whole
from tidemill.replay.sampling.priorities import PrioritySender as PrioritySender
from tidemill.replay.sampling.sampler import ReplaySampler as ReplaySampler
from tidemill.replay.batch import SampledBatch as SampledBatch
from tidemill.replay.table_config import TableConfig as TableConfig
from tidemill.replay.table_config import TableDescription as TableDescription
from tidemill.replay.table_config import TableUpdate as TableUpdate
from tidemill.replay.table_config import SelectorConfig as SelectorConfig
from tidemill.replay.table_config import SelectorKind as SelectorKind
from tidemill.replay.table_config import RateLimiterConfig as RateLimiterConfig
from tidemill.types import Signature as Signature
from tidemill.types import ColumnSpec as ColumnSpec
from tidemill.types import Codec as Codec
from tidemill.types import WindowSpec as WindowSpec
from tidemill.types import signature_of as signature_of
from tidemill.replay.transfer.exporting import export_table as export_table
from tidemill.replay.transfer.importing import import_table as import_table
from tidemill.replay.transfer.copying import copy_tables as copy_tables
from tidemill.replay.transfer.exporting import TransferReport as TransferReport
from tidemill.replay.transfer.lerobot import import_lerobot as import_lerobot
from tidemill.replay.transfer.lerobot import LeRobotReport as LeRobotReport
from tidemill.replay.transfer.minari import export_minari as export_minari
from tidemill.replay.transfer.minari import import_minari as import_minari
from tidemill.replay.transfer.minari import MinariReport as MinariReport

# Parameters
from tidemill.params.client import ParamsClient as ParamsClient
from tidemill.params.watcher import ParamsWatcher as ParamsWatcher
from tidemill.params.version import Params as Params
from tidemill.params.version import ParamsMetadata as ParamsMetadata
from tidemill.params.version import Precision as Precision
from tidemill.params.version import Version as Version

# The learner
from tidemill.learner.client import LearnerClient as LearnerClient
from tidemill.learner.status import LearnerStatus as LearnerStatus
from tidemill.learner.status import LearnerState as LearnerState

# Simulators
from tidemill.simulator.client import SimulatorClient as SimulatorClient

# Environments
from tidemill.envs.make import make_env as make_env
from tidemill.envs.settings import EnvSettings as EnvSettings
from tidemill.envs.interface import VectorEnv as VectorEnv
from tidemill.envs.interface import MasksActions as MasksActions
from tidemill.envs.interface import VectorStep as VectorStep
from tidemill.envs.interface import EpisodeSummary as EpisodeSummary
from tidemill.types import EnvSpec as EnvSpec
from tidemill.envs.declared import declared_spec as declared_spec
from tidemill.types import ObservationPart as ObservationPart

# Algorithms
from tidemill.rl.agents.build import build_agent as build_agent
from tidemill.rl.agents.build import build_policy as build_policy
from tidemill.rl.agents.interface import Agent as Agent
from tidemill.rl.agents.interface import Update as Update
from tidemill.rl.agents.interface import Policy as Policy
from tidemill.rl.agents.interface import PolicyContext as PolicyContext
from tidemill.rl.policy_io import PolicyInput as PolicyInput
from tidemill.rl.policy_io import PolicyOutput as PolicyOutput
from tidemill.rl.settings.registry import AgentConfig as AgentConfig

# A trained policy
from tidemill.bundle.policy import load_policy as load_policy
from tidemill.bundle.policy import TrainedPolicy as TrainedPolicy

# Callbacks
from tidemill.loggers.callbacks import Callback as Callback
from tidemill.loggers.callbacks import CallbackContext as CallbackContext
from tidemill.scores import Score as Score

# Loggers
from tidemill.loggers.interface import RunLogger as RunLogger
from tidemill.loggers.interface import LoggedRun as LoggedRun

# Errors
from tidemill.errors import TidemillError as TidemillError
from tidemill.errors import AlreadyExists as AlreadyExists
from tidemill.errors import ConfigError as ConfigError
from tidemill.errors import DataLoss as DataLoss
from tidemill.errors import FailedPrecondition as FailedPrecondition
from tidemill.errors import FatalError as FatalError
from tidemill.errors import InvalidArgument as InvalidArgument
from tidemill.errors import NotFound as NotFound
from tidemill.errors import PermissionDenied as PermissionDenied
from tidemill.errors import Reason as Reason
from tidemill.errors import ResourceExhausted as ResourceExhausted
from tidemill.errors import Unauthenticated as Unauthenticated
from tidemill.errors import Unavailable as Unavailable
from tidemill.errors import Unimplemented as Unimplemented
