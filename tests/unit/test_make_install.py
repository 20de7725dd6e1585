"""What `make` does before it installs: the Python, the machine and the build of torch that it takes or refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.install_torch import INDEX_VARIABLE, install

ROOT = Path(__file__).resolve().parents[2]


class RecordedPip:
    """Stands for `pip install`: keeps what it was called with, and has one build or none."""

    def __init__(self, *found: str) -> None:
        """Succeed where an argument is among those that are given."""
        self.found = set(found)
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, hidden: bool = False) -> bool:
        """Note a call."""
        self.calls.append(arguments)
        return bool(self.found & set(arguments))


def venv(folder: Path, **told: str) -> str:
    """Return the output of `make` for an interpreter that reports another version or machine."""
    says = (
        f"import platform, sys; sys.version_info = ({told.get('version', '3, 11')}, 0, 'final', 0)\n"
        f"platform.system = lambda: {told.get('system', 'Linux')!r}\n"
        f"platform.machine = lambda: {told.get('machine', 'x86_64')!r}\n"
        "sys.modules['ensurepip'] = None\n"  # so that none is made
    )
    (folder / "sitecustomize.py").write_text(says)
    command = ["make", f"VENV={folder}/none", f"PYTHON={sys.executable}", f"{folder}/none/bin/python"]
    environment = os.environ | {"PYTHONPATH": str(folder), "MAKEFLAGS": ""}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    return ended.stderr.splitlines()[0]


@pytest.mark.parametrize("version", ["3, 9", "3, 10", "3, 15"])
def test_python_that_is_not_supported_is_refused_in_a_line(version: str, tmp_path: Path) -> None:
    """It says which are, and what to type."""
    said = f"is {version.replace(', ', '.')}: make PYTHON=python3.13 ..."
    line = venv(tmp_path, version=version)
    assert line.startswith("Python 3.11, 3.12, 3.13 or 3.14 is needed")
    assert line.endswith(said)


def test_apple_silicon_is_taken(tmp_path: Path) -> None:
    """What is looked at next is whether a virtual environment can be made."""
    assert "has no venv module" in venv(tmp_path, system="Darwin", machine="arm64")


@pytest.mark.parametrize("system, machine", [("Linux", "riscv64"), ("Darwin", "x86_64"), ("Windows", "AMD64")])
def test_machine_that_is_not_supported_is_refused_in_a_line(system: str, machine: str, tmp_path: Path) -> None:
    """It says which are, and what to do."""
    line = venv(tmp_path, system=system, machine=machine)
    wanted = "Linux on x86_64 or aarch64, or macOS on arm64, is needed"
    assert line.startswith(f"{wanted}, this is {system} on {machine}: use one, or the containers")


def test_cpu_build_is_taken_from_where_pip_looks_before_another_index_is_asked() -> None:
    """A machine with a private mirror asks no other index, and CUDA's packages are never fetched."""
    own = RecordedPip("torch==2.13.0+cpu")
    assert install("cpu", own) == ""
    assert own.calls == [("--no-deps", "torch==2.13.0+cpu")]


def test_cpu_build_comes_from_the_index_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither has one, the line says how large each build is and what to type."""
    monkeypatch.setenv(INDEX_VARIABLE, "https://mirror.example/cpu")
    pip = RecordedPip("https://mirror.example/cpu")
    assert install("cpu", pip) == ""
    assert len(pip.calls) == 2
    reason = install("cpu", RecordedPip())
    assert "0.2 GB" in reason
    assert "3 GB" in reason
    assert "make TORCH=cuda" in reason


def test_build_with_cuda_is_the_one_of_the_lock() -> None:
    """With the versions of CUDA's packages that cuda.txt pins."""
    pip = RecordedPip("-r")
    assert install("cuda", pip) == ""
    assert pip.calls == [("-r", str(ROOT / "requirements" / "torch.txt"))]


def test_no_build_installs_nothing_and_another_name_is_refused() -> None:
    """Replay and its clients do without torch."""
    pip = RecordedPip()
    assert install("none", pip) == ""
    assert install("rocm", pip) == "TORCH is 'rocm', allowed: cpu, cuda, none"
    assert pip.calls == []


@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_macos_gets_the_one_build_that_there_is(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where pip looks, without the name of a build."""
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    pip = RecordedPip("torch==2.13.0")
    assert install(build, pip) == ""
    assert pip.calls == [("--no-deps", "torch==2.13.0")]
    assert "pip says why" in install(build, RecordedPip())
