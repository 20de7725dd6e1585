"""Samples decoded as a learner's dataset decodes them, without a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.support.clock import Clock
from tidemill.config.table import TableSettings
from tidemill.replay.batch import SampledBatch
from tidemill.replay.sampling.corrupt_items import CorruptItemFilter, Delete
from tidemill.replay.sampling.mirror import TableMirror
from tidemill.replay.sampling.sample_decoder import SampleDecoder
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.rl.agents.interface import Agent
from tidemill.services.learner.data.dataset import importance_sampling_exponent
from tidemill.services.learner.data.decoder import STATE_DTYPE, Batch, ToDevice, decoded_later
from tidemill.services.learner.data.device_rows import DeviceRows
from tidemill.types import Signature

_CPU = torch.device("cpu")


@dataclass
class LearnerDecoder:
    """Decodes samples of any size into `splits` batches.

    Attributes:
        agent: Says what batches are like.
        signature: The table's columns.
        delete: Takes the keys of corrupt items.
        settings: How the table samples.
        splits: Batches of a sample.
        learner_steps: Updates so far.
        mirror: Keeps the rows; None if samples bring them.
        on_device: Observations that are on the device.
        device: Where batches go.
        clock: Of the log of corrupt items.
        options: Further arguments of `SampleDecoder`.
    """

    agent: Agent
    signature: Signature
    delete: Delete
    settings: TableSettings = field(default_factory=TableSettings)
    splits: int = 1
    learner_steps: int = 0
    mirror: TableMirror | None = None
    on_device: DeviceRows | None = None
    device: torch.device = _CPU
    clock: Callable[[], float] = field(default_factory=Clock)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make what lasts from one sample to the next."""
        self.corrupt = CorruptItemFilter(self.delete, self.clock)
        self.transform = ToDevice(self.agent, self.device, lambda: self.on_device)

    def decode(self, sample: SampledBatch, received_at: float = 0.0) -> list[Batch]:
        """Return the batches of a sample."""
        table = TableConfig(
            "t",
            self.signature,
            SelectorConfig(SelectorKind.UNIFORM),
            max_items=1_000_000,
            max_item_steps=self.agent.window.length,
            payload_bytes=self.agent.recurrent_state_size * STATE_DTYPE.itemsize,
        )
        decoder = SampleDecoder(
            table,
            len(sample.keys) // self.splits,
            self.splits,
            self.corrupt,
            lambda: importance_sampling_exponent(self.settings, self.learner_steps),
            mirror=self.mirror,
            transform=self.transform,
            encoded=decoded_later(self.agent, self.signature),
            history=self.agent.window.history,
            **self.options,
        )
        return [Batch(batch) for batch in decoder.decode(replace(sample, received_at=received_at))]
