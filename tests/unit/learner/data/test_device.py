"""Arrays to tensors, and the names of devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from structlog.testing import capture_logs

from tests.support.naming import naming
from tidemill import container_limits
from tidemill.config.load import from_document
from tidemill.config.sections import LearnerConfig
from tidemill.devices import named_device
from tidemill.errors import ConfigError
from tidemill.services.learner.data.device import (
    DevicePrefetcher,
    copied,
    learner_device,
    resolve_device,
    torch_threads,
    why_gpu,
)
from tidemill.services.learner.distributed.learner_group import RankInfo
from tidemill.types import EnvSpec, ObservationPart, WindowSpec

BUSY_CYCLES = 100_000_000
"""Of a GPU: a twentieth of a second and more."""


def test_arrays_on_a_cpu_are_shared_not_copied() -> None:
    """The decoder's arrays become the batch without another copy."""
    array = np.zeros(2, np.float32)
    transferred = DevicePrefetcher(torch.device("cpu")).start({"reward": array})
    transferred.wait()
    array[0] = 3.0
    assert transferred.tensors["reward"].tolist() == [3.0, 0.0]


def test_columns_that_travel_together_arrive_as_they_left() -> None:
    """Whatever their types, shapes and order in memory are; columns of no elements, too."""
    rng = np.random.default_rng(3)
    arrays: dict[str, NDArray[Any]] = {
        "action": rng.integers(5, size=7),
        "discount": rng.random(7, np.float32),
        "terminated": rng.random(7) < 0.5,
        "mean": rng.random((3, 7)).T,
        "observation": rng.integers(256, size=(7, 2, 3), dtype=np.uint8),
        "state": np.empty((7, 0), np.float32),
    }
    found = copied(arrays, torch.device("cpu"))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].numpy(), array)
        assert found[name].numpy().dtype == array.dtype


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_machine_without_a_gpu_computes_on_its_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` needs no setting to run anywhere."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(name) == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_gpu_that_is_not_there_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the setting and how many there are."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=naming("learner.device", f"'{name}'", "0 GPUs")):
        resolve_device(name)


@pytest.mark.parametrize(
    "name, rank, expected",
    [
        ("auto", None, "cuda:0"),
        ("cuda", None, "cuda:0"),
        ("cuda:1", None, "cuda:1"),
        ("auto", RankInfo(0, 1, 0), "cuda:0"),
        ("auto", RankInfo(3, 8, 3), "cuda:3"),
        ("cuda", RankInfo(9, 16, 1), "cuda:1"),
    ],
)
def test_gpu_always_has_its_index(
    name: str, rank: RankInfo | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.cuda.set_device` refuses one without."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert str(resolve_device(name, rank)) == expected
    assert str(named_device("inference.device", "auto")) == "cuda:0"


_VECTORS = EnvSpec((4,), "float32", num_actions=2)
_IMAGES = EnvSpec((84, 84), "uint8", frame_stack=4, num_actions=6)
_CAMERA = (ObservationPart("camera", "uint8", (64, 64, 3)), ObservationPart("speed", "float32", (2,)))
_PARTS = EnvSpec((64 * 64 * 3 + 8,), "uint8", num_actions=6, observation_parts=_CAMERA)


@pytest.mark.parametrize(
    "agent, spec, why",
    [
        ({"algorithm": "dqn"}, _VECTORS, "one CUDA graph"),
        ({"algorithm": "dqn", "compile": "none"}, _VECTORS, ""),
        ({"algorithm": "dqn", "compile": "none"}, _IMAGES, "images"),
        ({"algorithm": "sac", "compile": "none"}, _VECTORS, "17 million multiplications"),
        ({"algorithm": "sac", "compile": "none", "hidden_sizes": [64, 64]}, _VECTORS, ""),
        ({"algorithm": "ppo"}, _VECTORS, ""),
        ({"algorithm": "ppo"}, _PARTS, "images"),
        ({"algorithm": "ppo", "batch_size": 64, "hidden_sizes": [256, 256]}, _VECTORS, "134 million"),
        ({"algorithm": "ppo", "batch_size": 64, "lstm_size": 128}, _VECTORS, "268 million"),
        ({"algorithm": "impala", "network": "math:sqrt"}, _VECTORS, "agent.network is math:sqrt"),
        ({"algorithm": "pqn"}, _VECTORS, ""),
    ],
)
def test_learner_takes_a_gpu_by_itself_where_that_pays(
    agent: dict[str, Any], spec: EnvSpec, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says why in one line; where several learners train, or the GPU is asked for, each has one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config = from_document(LearnerConfig, {"env": {"id": "CartPole-v1"}, "agent": agent})
    with capture_logs() as logs:
        device = learner_device(config, spec, RankInfo())
    assert device == torch.device("cuda:0" if why else "cpu")
    (line,) = logs
    assert why in line["why"]
    assert line["event"] == ("training on the GPU" if why else "training on the CPU although there is a GPU")
    asked = replace(config, learner=replace(config.learner, device="cuda"))
    with capture_logs() as logs:
        assert learner_device(asked, spec, RankInfo()) == torch.device("cuda:0")
        assert learner_device(config, spec, RankInfo(3, 8, 3)) == torch.device("cuda:3")
    assert logs == []


@dataclass(frozen=True)
class _Own:
    """Settings of a user's algorithm: what `AgentConfig` promises, and fields of another meaning."""

    algorithm: str = "own:Own"
    batch_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 256)
    group_sizes: int = 3
    lstm_size: int | None = None

    def window(self, frame_stack: int) -> WindowSpec:
        """Return 32 transitions."""
        return WindowSpec(frame_stack, 32)

    def validate_env(self, env_spec: EnvSpec) -> None:
        """Take every environment."""


class _OwnOnPolicy(_Own):
    """The same, with which each item is learned from once."""

    rollout_rows = 33


@pytest.mark.parametrize(
    "agent, why", [(_Own(), ""), (_Own(lstm_size=128), "268 million"), (_OwnOnPolicy(), "134 million")]
)
def test_algorithm_of_a_user_is_weighed_by_its_window(agent: _Own, why: str) -> None:
    """Its settings need no field that only those of the project have."""
    said = why_gpu(agent, _VECTORS, is_deterministic=False)
    assert said.startswith(why) if why else not said


@pytest.mark.parametrize("how, device", [("auto", "cpu"), ("cuda-graphs", "cuda:0")])
def test_deterministic_learner_takes_a_gpu_for_updates_that_are_recorded(
    how: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `auto` such a run records none, so that small layers are those of a core."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    document = {"agent": {"algorithm": "dqn", "compile": how}, "run": {"deterministic": True}}
    config = from_document(LearnerConfig, {"env": {"id": "CartPole-v1"}, **document})
    assert learner_device(config, _VECTORS, RankInfo()) == torch.device(device)


def test_learner_without_a_gpu_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to choose."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = from_document(LearnerConfig, {"env": {"id": "CartPole-v1"}, "agent": {"algorithm": "ppo"}})
    with capture_logs() as logs:
        assert learner_device(config, _VECTORS, RankInfo()) == torch.device("cpu")
    assert logs == []


@pytest.mark.parametrize(
    "asked, spec, device, rank, threads",
    [
        (-1, _IMAGES, "cpu", RankInfo(), 6),
        (-1, _PARTS, "cpu", RankInfo(), 6),
        (-1, _VECTORS, "cpu", RankInfo(), 1),
        (-1, _IMAGES, "cuda:0", RankInfo(), 1),
        (-1, _IMAGES, "cpu", RankInfo(0, 2, 0), 1),
        (0, _VECTORS, "cpu", RankInfo(), 6),
        (3, _IMAGES, "cpu", RankInfo(0, 2, 0), 3),
    ],
)
def test_learner_alone_takes_every_processor_for_images(
    asked: int, spec: EnvSpec, device: str, rank: RankInfo, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless their number is given; many more processors than a batch can use stay free."""
    monkeypatch.setattr(container_limits, "cpus", lambda: 6)
    config = from_document(LearnerConfig, {"env": {"id": "CartPole-v1"}, "learner": {"threads": asked}})
    assert torch_threads(config, spec, torch.device(device), rank) == threads
    monkeypatch.setattr(container_limits, "cpus", lambda: 96)
    assert (torch_threads(config, spec, torch.device(device), rank) <= 8) == (asked != 0)


def test_misspelt_device_is_told() -> None:
    """With the names that are allowed."""
    with pytest.raises(ConfigError, match=naming("learner.device 'gpu' auto cpu cuda cuda:N")):
        resolve_device("gpu")


@pytest.mark.requires_cuda  # only there is anything copied
def test_arrays_on_a_gpu_are_copied_beside_the_computing_stream() -> None:
    """After `wait` they are whole, although the copying stream was still busy with what it had before."""
    device = torch.device("cuda", torch.cuda.current_device())
    transfer = DevicePrefetcher(device)

    def arrays(number: int) -> dict[str, NDArray[np.float32]]:
        return {"reward": np.full(1 << 20, number, np.float32), "discount": np.full(7, number, np.float32)}

    later = [arrays(number) for number in range(8)]
    before = [transfer.start(arrays(-1)) for _ in later]  # whoever does not wait sees this
    torch.cuda.synchronize()
    del before  # memory is there now: to ask CUDA for more might wait for the stream
    assert transfer._stream is not None
    with torch.cuda.stream(transfer._stream):
        torch.cuda._sleep(BUSY_CYCLES)
    started = [transfer.start(later[0])]
    assert started[0].event is not None
    assert not started[0].event.query()
    started += [transfer.start(each) for each in later[1:]]
    for number, transferred in enumerate(started):
        transferred.wait()
        for values in transferred.tensors.values():
            assert values.device == device
            assert bool((values == number).all())
