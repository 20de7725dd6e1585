"""Where the mirror's observations lie: by the setting, the agent, and the memory there is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.feeder import SPEC, TABLE
from tests.support.learner_fakes import FakeAgent
from tests.support.naming import naming
from tidemill.config.load import from_document, load
from tidemill.config.sections import LearnerConfig
from tidemill.errors import ConfigError
from tidemill.replay.sampling.source import SampleShape
from tidemill.replay.table_config import SelectorConfig, SelectorKind, TableConfig
from tidemill.services.learner.data import sampling
from tidemill.services.learner.data.sampling import LearnerRows, mirror_device
from tidemill.services.learner.distributed.learner_group import RankInfo, SingleLearner
from tidemill.types import signature_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
CONFIG = TableConfig(
    TABLE, signature_of(SPEC), SelectorConfig(SelectorKind.UNIFORM), max_items=10_000, max_item_steps=2
)
SHAPE = SampleShape(batch_size=8, in_flight=2, hold=4)
STEP_BYTES = sum(column.step_bytes for column in CONFIG.signature)


class _Gathering(FakeAgent):
    observation_columns = ("observation",)


def _config(*settings: str) -> LearnerConfig:
    return load(LearnerConfig, list(settings), prog="learner", description="")


def _rows(asked: str, device: torch.device | None = CPU) -> LearnerRows:
    config = _config("--learner.mirror-device", asked)
    return LearnerRows(config, RankInfo(), SingleLearner(), stride=1, device=device)


@pytest.mark.parametrize(
    "asked, device, found",
    [("auto", GPU, GPU), ("auto", CPU, None), ("device", CPU, CPU), ("device", GPU, GPU), ("host", GPU, None)],
)
def test_device_is_by_the_setting(asked: str, device: torch.device, found: torch.device | None) -> None:
    """`auto` is a GPU; a CPU is one to try it out."""
    assert mirror_device(_config("--learner.mirror-device", asked), _Gathering(), device) == found


def test_without_a_mirror_nothing_is_on_the_device() -> None:
    """A mirror of 0 bytes is whole batches, whatever else is set."""
    config = _config("--learner.mirror-device", "device", "--learner.mirror-mib", "0")
    assert mirror_device(config, _Gathering(), GPU) is None


def test_agent_that_computes_with_observations_keeps_them_in_the_hosts_memory() -> None:
    """`auto` leaves it at that; a wish that cannot be met is told."""
    assert mirror_device(_config(), FakeAgent(), GPU) is None
    with pytest.raises(ConfigError, match=naming("learner.mirror_device 'device' 'auto' 'host'")):
        mirror_device(_config("--learner.mirror-device", "device"), FakeAgent(), GPU)
    sections = {"learner": {"mirror_device": "device"}, "table": {"hindsight": 0.8}}
    relabelled = from_document(LearnerConfig, sections)  # `load` refuses it
    with pytest.raises(ConfigError, match=naming("table.hindsight")):
        mirror_device(relabelled, FakeAgent(), GPU)


def test_observations_are_on_the_device_and_the_rest_is_not() -> None:
    """Each in separate memory, with rows for the whole table."""
    rows = _rows("device")
    mirror = rows.keep(CONFIG, SHAPE)
    assert mirror is not None
    assert rows.on_device is not None
    assert "observation" not in mirror.columns
    assert rows.on_device.size_bytes + mirror.size_bytes == mirror.size.slots * 16 * STEP_BYTES


@pytest.mark.parametrize("asked, on_device", [("auto", False), ("device", True)])
def test_table_that_does_not_fit_a_gpu(asked: str, on_device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auto` it is kept in the host's memory, with `device` as much of it as half of what is free takes."""
    monkeypatch.setattr(sampling, "free_bytes", lambda: 2 * 5_000 * STEP_BYTES)
    rows = _rows(asked)
    mirror = rows.keep(CONFIG, SHAPE)
    assert mirror is not None
    assert (rows.on_device is not None) == on_device
    assert mirror.size.slots == 5_000 // 16


@pytest.mark.parametrize("asked, device", [("host", None), ("device", CPU)])
def test_learners_of_a_machine_divide_its_memory(
    asked: str, device: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the host is the training device: each sees all of it free at the start."""
    monkeypatch.setattr(sampling, "free_bytes", lambda: 4 * 2 * 5_000 * STEP_BYTES)
    config = _config("--learner.mirror-device", asked)
    rows = LearnerRows(config, RankInfo(1, 4, 1), SingleLearner(), stride=1, device=device)
    mirror = rows.keep(CONFIG, SHAPE)
    assert mirror is not None
    assert mirror.size.slots == 5_000 // 16


def test_room_for_shards_that_are_replaced_counts_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's memory is taken as it is filled, a GPU's whole: half as many rows fit."""
    monkeypatch.setattr(sampling, "free_bytes", lambda: 2 * 5_000 * STEP_BYTES)
    sharded = dataclasses.replace(SHAPE, shards=1, parts=2)
    slots = [
        mirror.size.slots
        for asked, device in (("host", None), ("device", CPU))
        if (mirror := _rows(asked, device).keep(CONFIG, sharded)) is not None
    ]
    assert slots == [5_000 // 16, 5_000 // 32]


def test_device_without_memory_leaves_it_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have taken it since it was asked for."""

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(sampling, "DeviceRows", refuse)
    rows = _rows("device")
    mirror = rows.keep(CONFIG, SHAPE)
    assert rows.on_device is None
    assert mirror is not None
    assert "observation" in mirror.columns
