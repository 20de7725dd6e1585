"""What `tidemill.replay` offers, each name once."""

__all__: list[str]

from tidemill.errors import AlreadyExists as AlreadyExists
from tidemill.errors import DataLoss as DataLoss
from tidemill.errors import FailedPrecondition as FailedPrecondition
from tidemill.errors import InvalidArgument as InvalidArgument
from tidemill.errors import NotFound as NotFound
from tidemill.errors import ResourceExhausted as ResourceExhausted
from tidemill.errors import TidemillError as TidemillError
from tidemill.errors import Unavailable as Unavailable
from tidemill.replay.client import ReplayClient as ReplayClient
from tidemill.replay.sampling.batch import SampledBatch as SampledBatch
from tidemill.replay.sampling.dataset import ReplayDataset as ReplayDataset
from tidemill.replay.sampling.replay_batch import ReplayBatch as ReplayBatch
from tidemill.replay.sampling.sampler import ReplaySampler as ReplaySampler
from tidemill.replay.table_config import RateLimiterConfig as RateLimiterConfig
from tidemill.replay.table_config import SelectorConfig as SelectorConfig
from tidemill.replay.table_config import SelectorKind as SelectorKind
from tidemill.replay.table_config import TableConfig as TableConfig
from tidemill.replay.table_config import TableDescription as TableDescription
from tidemill.replay.table_config import TableUpdate as TableUpdate
from tidemill.replay.transfer.copying import copy_tables as copy_tables
from tidemill.replay.transfer.exporting import TransferReport as TransferReport
from tidemill.replay.transfer.exporting import export_table as export_table
from tidemill.replay.transfer.importing import import_table as import_table
from tidemill.replay.transfer.minari import MinariReport as MinariReport
from tidemill.replay.transfer.minari import export_minari as export_minari
from tidemill.replay.transfer.minari import import_minari as import_minari
from tidemill.replay.writing.steps import signature_like as signature_like
from tidemill.replay.writing.stream_items import ItemWindow as ItemWindow
from tidemill.replay.writing.writer import ReplayWriter as ReplayWriter
from tidemill.services.replay.embedded import Server as Server
from tidemill.types import Codec as Codec
from tidemill.types import ColumnSpec as ColumnSpec
from tidemill.types import Signature as Signature
