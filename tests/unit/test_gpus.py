"""Which driver and which GPUs a build of torch needs, and what is said of a machine that has others."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from structlog.testing import capture_logs

from tests.support.naming import naming
from tidemill import gpus
from tidemill.devices import named_device
from tidemill.errors import ConfigError, FatalError
from tidemill.services.learner.checkpoint.resume import fits_devices, load_rng_state, rng_state
from tidemill.services.learner.data.device import resolve_device
from tidemill.services.learner.distributed.learner_group import RankInfo

_BROKEN = "CUDA initialization: Unexpected error from cudaGetDeviceCount(): Error 803: unsupported driver combination"
_TOO_OLD = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)."


@pytest.fixture(name="cuda_13")
def _cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch for CUDA 13, as its wheels are."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_75", "sm_90a", "sm_120", "compute_120"])


@pytest.fixture(name="old_driver")
def _old_driver(monkeypatch: pytest.MonkeyPatch, cuda_13: None) -> None:
    """Eight GPUs that NVML lists, of a driver that CUDA refuses as torch does: with a warning."""

    def is_available() -> bool:
        warnings.warn(_TOO_OLD, stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(gpus, "driver_version", lambda: "550.54.15")


@pytest.fixture(name="broken_driver")
def _broken_driver(monkeypatch: pytest.MonkeyPatch, cuda_13: None) -> None:
    """A driver that was updated under a running kernel, so that NVML fails: torch counts 0 and warns."""

    def device_count() -> int:
        warnings.warn("Can't initialize NVML", stacklevel=2)
        warnings.warn(f"{_BROKEN}\n(Triggered internally)", stacklevel=2)
        return 0

    monkeypatch.setattr(torch.cuda, "device_count", device_count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    "first_line, version",
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs)", "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54", "535.54"),
        ("something else", ""),
    ],
)
def test_version_of_the_driver_is_the_kernels(first_line: str, version: str, tmp_path: Path) -> None:
    """Both kinds of kernel module say it; the next line, of the compiler, is not taken for it."""
    loaded = tmp_path / "version"
    loaded.write_text(f"{first_line}\nGCC version:  gcc version 122.333.1\n")
    assert gpus.driver_version(loaded) == version
    assert gpus.driver_version(tmp_path / "none") == ""


def test_need_is_what_the_build_was_compiled_for(cuda_13: None) -> None:
    """The driver follows from the version of CUDA, the capability from the oldest GPU with kernels."""
    assert (gpus.needed_driver(), gpus.needed_capability()) == (580, (7, 5))
    assert gpus.needs().endswith("with CUDA 13.0 needs driver 580 or newer and compute capability 7.5 or newer")


@pytest.mark.parametrize(
    "cuda, driver, capability",
    [("11.8", 450, (3, 5)), ("12.8", 525, (5, 0)), ("13.1", 580, (7, 5)), ("99.0", None, None), (None, None, None)],
)
def test_need_without_a_list_of_kernels_is_that_of_the_cuda_version(
    cuda: str | None, driver: int | None, capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is claimed of a version that is not known, nor of a build for CPUs."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    assert (gpus.needed_driver(), gpus.needed_capability()) == (driver, capability)


@pytest.mark.parametrize("name", ["cuda", "cuda:3"])
def test_gpu_under_an_old_driver_is_refused(name: str, old_driver: None) -> None:
    """With the driver's version, what is needed, torch's own reason, and what to do."""
    with pytest.raises(ConfigError) as refused:
        named_device("inference.device", name)
    message = str(refused.value)
    assert message.startswith(f"inference.device is {name!r}, but torch can use none of the 8 GPUs here: the driver is")
    for part in ("550.54.15", "driver 580 or newer", "capability 7.5", _TOO_OLD, "update the driver", "to cpu"):
        assert part in message


def test_several_learners_do_not_train_on_the_cpu_in_silence(old_driver: None) -> None:
    """`auto` is the CPU where there is no GPU, not where there are eight that cannot be used."""
    with pytest.raises(ConfigError, match=naming("8 CPU 550.54.15 580")):
        resolve_device("auto", RankInfo(5, 8, 5))
    assert resolve_device("cpu", RankInfo(5, 8, 5)) == torch.device("cpu")


def test_one_learner_warns_of_an_old_driver(old_driver: None) -> None:
    """A laptop continues on its CPU; the log says why."""
    with capture_logs() as logs:
        assert resolve_device("auto") == torch.device("cpu")
    (line,) = logs
    assert line["event"] == "cannot use the GPU, computing on the CPU"
    assert "550.54.15" in line["why"]


def test_broken_driver_is_not_taken_for_no_gpu(broken_driver: None) -> None:
    """What torch says of it is in the refusal of a learner that asks for a GPU, and in the log of any other."""
    why = f"torch finds no GPU: {_BROKEN}"
    with pytest.raises(ConfigError, match=naming("inference.device 'cuda'", why, "reboot", "to cpu")):
        named_device("inference.device", "cuda")
    with pytest.raises(ConfigError, match=naming("8 learners", why)):
        resolve_device("auto", RankInfo(5, 8, 5))
    with capture_logs() as logs:
        assert resolve_device("auto") == torch.device("cpu")
    assert [(line["event"], line["why"]) for line in logs] == [("cannot use the GPU, computing on the CPU", why)]


def test_machine_without_a_gpu_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to update."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpus.why_unusable() == ""


@pytest.fixture(name="slices")
def _slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cards in slices, as NVML lists them; CUDA, once initialised, has one slice."""
    cards = [8]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards[-1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: cards.append(1))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def test_process_has_one_slice_of_a_gpu(slices: None) -> None:
    """A second learner is refused with the count of CUDA, and every inference service takes the slice that is there."""
    with pytest.raises(ConfigError, match=naming("learner.device 'cuda' 1 GPUs cuda:1")):
        resolve_device("cuda", RankInfo(1, 2, 1))
    assert str(named_device("inference.device", "auto", gpu=3, wraps=True)) == "cuda:0"


def test_generators_are_saved_of_the_slice_alone(slices: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA, which a learner on a GPU has initialised, has no others."""
    torch.cuda.init()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.zeros(16)] * torch.cuda.device_count())
    assert len(rng_state()["cuda"]) == 1


def test_learner_on_the_cpu_leaves_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its checkpoints nor a restart ask CUDA, which never answers where a GPU is broken."""

    def hang(*_: object) -> NoReturn:
        raise AssertionError("CUDA was asked")

    for asked in ("is_available", "init", "device_count", "get_rng_state_all", "set_rng_state_all"):
        monkeypatch.setattr(torch.cuda, asked, hang)
    assert resolve_device("cpu") == torch.device("cpu")
    state = rng_state()
    assert state["cuda"] == []
    assert fits_devices(state)
    load_rng_state(state)
    load_rng_state(state | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 8})  # of a run that was on GPUs


def test_machine_without_a_gpu_has_none_to_initialise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a build for CPUs nor a missing driver raises, nor one that is too old and lists eight."""
    assert torch.cuda.is_available() or gpus.count() == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert gpus.count() == 0


@pytest.mark.parametrize("gpu, device", [(1, "cuda:1"), (4, "cuda:0")])
def test_services_are_counted_around_the_gpus(gpu: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that names its GPU has that one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert str(named_device("inference.device", "cuda", gpu=gpu, wraps=True)) == device
    assert str(named_device("inference.device", "cuda:2", gpu=gpu, wraps=True)) == "cuda:2"


@pytest.mark.parametrize("capability, is_refused", [((7, 0), True), ((7, 5), False), ((9, 0), False), ((12, 0), False)])
def test_gpu_without_kernels_is_refused(
    capability: tuple[int, int], is_refused: bool, cuda_13: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A V100 is listed by torch, and the first operation on it fails. `auto` is then the CPU of a learner alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    if not is_refused:
        assert str(named_device("learner.device", "cuda")) == "cuda:0"
        return
    with pytest.raises(ConfigError, match=naming("'cuda' cuda:0 V100 7.0 7.5")):
        named_device("learner.device", "cuda")
    with pytest.raises(ConfigError, match=naming("'auto' cuda:0 V100 7.0 7.5")):
        resolve_device("auto", RankInfo(0, 8, 0))
    with capture_logs() as logs:
        assert named_device("learner.device", "auto") == torch.device("cpu")
    (line,) = logs
    assert line["event"] == "cannot use the GPU, computing on the CPU"
    assert re.search(naming("cuda:0 V100 7.0 7.5"), line["why"])


def test_gpu_without_room_for_cuda_itself_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its free memory cannot be read. Other errors of CUDA stay as they are."""

    def refuse(device: object = None) -> tuple[int, int]:
        raise RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    with pytest.raises(FatalError, match=naming("full agent.batch_size another GPU")), gpus.full_gpu_explained():
        torch.cuda.mem_get_info()
    with pytest.raises(RuntimeError, match="illegal memory access"), gpus.full_gpu_explained():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
