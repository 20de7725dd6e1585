"""A process with a GPU stays on the processors of its NUMA node, as a made-up /sys tells them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tidemill.near_processors import near_processors, use_near_processors

_GPU = "0000:3b:00.0"
_ALLOWED = frozenset(range(32))


def _sys(folder: Path, node: str, cpus: str, bus_id: str = _GPU) -> Path:
    """Write what /sys has of a device of the PCI bus."""
    device = folder / bus_id
    device.mkdir()
    (device / "numa_node").write_text(f"{node}\n")
    (device / "local_cpulist").write_text(f"{cpus}\n")
    return folder


@pytest.fixture(name="pinned")
def _pinned(monkeypatch: pytest.MonkeyPatch) -> dict[int, frozenset[int]]:
    """The processors that threads are pinned to, by thread, of a process that may use 32."""
    pinned: dict[int, frozenset[int]] = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(_ALLOWED))
    monkeypatch.setattr(os, "sched_setaffinity", lambda it, processors: pinned.update({it: frozenset(processors)}))
    facts = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    return pinned


@pytest.mark.parametrize(
    "node, cpus, near",
    [
        ("0", "0-3,8-9", {0, 1, 2, 3, 8, 9}),
        ("1", "5", {5}),
        ("-1", "0-31", set()),  # one node, or the firmware does not say
        ("0", "", set()),
        ("0", "0-x", set()),
    ],
)
def test_near_processors_are_those_of_the_devices_node(node: str, cpus: str, near: set[int], tmp_path: Path) -> None:
    """As the kernel lists them; a device that it does not know has none."""
    folder = _sys(tmp_path, node, cpus)
    assert near_processors(_GPU, folder) == near
    assert near_processors("0000:ff:00.0", folder) == set()


@pytest.mark.requires_linux
def test_every_thread_is_pinned_beside_the_gpu(pinned: dict[int, frozenset[int]], tmp_path: Path) -> None:
    """Among the processors that the process may use: a container may have fewer than the node."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        use_near_processors(torch.device("cuda", 0), _sys(tmp_path, "1", "24-63"))
    finally:
        done.set()
        other.join()
    assert set(pinned.values()) == {frozenset(range(24, 32))}
    assert pinned.keys() >= {threading.get_native_id(), other.native_id}


@pytest.mark.parametrize("cpus", ["0-31", "0-63", "29-63", "64-95"])
def test_process_without_a_choice_is_left_alone(cpus: str, pinned: dict[int, frozenset[int]], tmp_path: Path) -> None:
    """All of its processors are near, or too few."""
    use_near_processors(torch.device("cuda", 0), _sys(tmp_path, "0", cpus))
    assert not pinned


def test_build_that_names_no_bus_is_left_alone(
    pinned: dict[int, frozenset[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older builds of torch do not say where a GPU is."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="GPU"))
    use_near_processors(torch.device("cuda", 0), _sys(tmp_path, "1", "24-31"))
    assert not pinned
