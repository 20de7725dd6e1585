"""What `tidemill doctor` says of GPUs: of machines as a driver, a build of torch or an engine would describe them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.waiting import crowd
from tests.unit.tools.test_doctor import _program
from tidemill.services.tools.doctor import gpu
from tidemill.services.tools.doctor.finding import Finding

_TORCH = """
    import os, sys, warnings
    class version: cuda = "13.0"
    __version__ = "2.13.0"
    float32, bfloat16 = "float32", "bfloat16"
    class Value:
        def __init__(self, value): self.value = value
        def __matmul__(self, other): return Value(self.value * 64)
        def __eq__(self, other): return Value(self.value == getattr(other, "value", other))
        def all(self): return self
        def __bool__(self): return bool(self.value)
    def ones(*shape, device, dtype):
        if device + dtype == os.environ.get("BROKEN"): raise RuntimeError("CUDA error: uncorrectable ECC error\\nmore")
        if device == os.environ.get("ENDS"): os._exit(7)
        return Value(1)
    def full(shape, value, device): return Value(value)
    class distributed:
        is_available = is_nccl_available = staticmethod(lambda: True)
"""
_CUDA = """
    import os, warnings
    def device_count():
        if "BROKEN_DRIVER" not in os.environ: return int(os.environ["GPUS"])
        warnings.warn("CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 803")
        return 0
    def is_available():
        if "OLD" in os.environ:
            warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old (found version 12040).")
        return "OLD" not in os.environ and device_count() > 0
    def init(): pass
    def get_arch_list(): return ["sm_75", "sm_90"]
    def get_device_capability(index): return (7, 0) if str(index) == os.environ.get("V100") else (9, 0)
    def get_device_name(index): return "Tesla V100" if str(index) == os.environ.get("V100") else "NVIDIA H100"
    def mem_get_info(index): return (20 if str(index) == os.environ.get("SHARED") else 79) << 30, 80 << 30
"""
_NCCL = """
    def all_reduce(vectors):
        total = sum(vector.value for vector in vectors)
        for vector in vectors: vector.value = total
"""


@pytest.fixture(name="machine")
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return the variables of a machine with two H100, where a torch that pretends is found first."""
    modules = {"torch/__init__.py": _TORCH, "torch/cuda/__init__.py": _CUDA, "torch/cuda/nccl.py": _NCCL}
    for name, source in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(source))
    (tmp_path / "torch" / "__init__.py").write_text(dedent(_TORCH) + "from . import cuda\n")
    _program(tmp_path, "nvidia-smi", "echo 'NVIDIA H100, 580.95.05'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GPUS", "2")
    return monkeypatch


def _said(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.mark, finding.text) for finding in findings]


def test_two_gpus_that_work_are_each_multiplied_on_and_summed_over(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child process is the real one, and so is all that it asks torch for."""
    found = _said(gpu.gpus(shm=tmp_path))
    card = "NVIDIA H100, compute capability 9.0, float32 and bfloat16 matmuls are correct, 79.0 of 80.0 GiB free"
    needs = "torch 2.13.0 with CUDA 13.0 needs driver 580 or newer and compute capability 7.5 or newer"
    assert found[:4] == [
        ("ok", f"2 GPUs, driver 580.95.05; {needs}"),
        ("ok", f"GPU 0: {card}"),
        ("ok", f"GPU 1: {card}"),
        ("ok", "NCCL all-reduce over 2 GPUs is correct"),
    ]
    assert found[4][1].startswith(f"{tmp_path} holds")


@pytest.mark.parametrize(
    "variable, value, mark, parts",
    [
        ("OLD", "1", "FAIL", ("none of the 2 GPUs", "driver 580 or newer", "too old (found version 12040)")),
        ("BROKEN_DRIVER", "1", "FAIL", ("torch finds no GPU: CUDA initialization", "Error 803")),
        ("V100", "1", "FAIL", ("GPU 1: Tesla V100, compute capability 7.0", "no kernels")),
        ("BROKEN", "cuda:1bfloat16", "FAIL", ("GPU 1", "a bfloat16 matmul fails", "uncorrectable ECC error")),
        ("ENDS", "cuda:1", "FAIL", ("did not get past GPU 1", "it ended with code 7")),
        ("SHARED", "0", "note", ("GPU 0", "20.0 of 80.0 GiB free")),
        ("GPUS", "0", "note", ("the driver sees a GPU (NVIDIA H100, 580.95.05), torch 2.13.0 does not",)),
        ("GPUS", "many", "FAIL", ("did not get past CUDA's answer", "invalid literal for int() with base 10: 'many'")),
    ],
)
def test_gpu_that_fails_is_named_with_its_reason(
    machine: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, mark: str, parts: tuple[str, ...]
) -> None:
    """A GPU that the driver lists may still fail; each fault has its own remedy, and what was found before stays."""
    machine.setenv(variable, value)
    found = [finding for finding in gpu.gpus(shm=tmp_path) if finding.mark != "ok"]
    assert found[0].mark == mark
    assert [part for part in parts if part not in found[0].text] == []
    assert found[0].advice


def test_driver_that_hangs_is_named_by_the_step(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Links between GPUs that are set up wrongly let NCCL wait for ever."""
    (tmp_path / "torch" / "cuda" / "nccl.py").write_text("import threading\nthreading.Event().wait(600)\n")
    for timeout_s in (1.5, 10.0 * crowd()):  # the longer one where Python needs more than the first to start
        if len(found := gpu.gpus(timeout_s=timeout_s)) > 1:
            break
    assert [finding.mark for finding in found[:3]] == ["ok", "ok", "FAIL"]
    late = f"no answer within {timeout_s:.0f} s"
    assert found[2].text == f"torch did not get past NCCL all-reduce over all GPUs: {late}"
    assert "NCCL_P2P_DISABLE=1" in found[2].advice


def test_torch_that_is_not_installed_fails(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the last line of the error: it may be installed and lack a library."""
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open')")
    assert _said(gpu.gpus(shm=tmp_path)) == [
        ("FAIL", "torch cannot be imported: ImportError: libcudart.so.13: cannot open"),
    ]


def test_build_for_cpus_is_named_only_where_there_is_a_gpu(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the usual reason for slow training; without a GPU it is the right build."""
    (tmp_path / "torch" / "__init__.py").write_text(
        dedent(_TORCH).replace('cuda = "13.0"', "cuda = None") + "from . import cuda\n"
    )
    machine.setenv("GPUS", "0")
    (finding,) = gpu.gpus(shm=tmp_path)
    assert finding.text == "the driver sees a GPU (NVIDIA H100, 580.95.05), but torch 2.13.0 is a build for CPUs"
    (tmp_path / "nvidia-smi").unlink()
    assert _said(gpu.gpus(shm=tmp_path)) == [("note", "no GPU: learning runs on the CPU")]


@pytest.mark.parametrize(
    "runtimes, described, mark, part",
    [
        ('{"nvidia":{},"runc":{}}', False, "ok", "Docker's runtime nvidia"),
        ('{"runc":{}}', True, "ok", "by CDI"),
        ('{"runc":{}}', False, "note", "neither runtime nvidia nor CDI"),
    ],
)
def test_containers_get_gpus_by_runtime_or_cdi(
    machine: pytest.MonkeyPatch, tmp_path: Path, runtimes: str, described: bool, mark: str, part: str
) -> None:
    """Only where both a GPU and an engine are there is anything said."""
    assert gpu.containers() == []
    _program(tmp_path, "docker", f"echo '{runtimes}'")
    (tmp_path / "cdi").mkdir()
    if described:
        (tmp_path / "cdi" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    (finding,) = gpu.containers((tmp_path / "none", tmp_path / "cdi"))
    assert finding.mark == mark
    assert part in finding.text
    (tmp_path / "nvidia-smi").unlink()
    assert gpu.containers() == []


def test_little_shared_memory_is_noted(tmp_path: Path) -> None:
    """A container has 64 MiB unless it is given more; without any, NCCL fails."""
    assert gpu.shared_memory(tmp_path / "none")[0].mark == "FAIL"
    (finding,) = gpu.shared_memory(tmp_path)
    size_gib = float(finding.text.split()[-2])
    assert finding.mark == ("ok" if size_gib >= 1 else "note")
