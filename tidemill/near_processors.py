"""Processor affinity: keeps a process on the NUMA node of its GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tidemill import linux
from tidemill.logger import LateLogger

LEAST = 4
"""Processors that a process keeps at least: its threads train, decode, receive and publish at the same time."""

_log = LateLogger()


def near_processors(bus_id: str, devices: Path = linux.PCI_DEVICES) -> frozenset[int]:
    """Return the processors of the node that a device is attached to; empty if the system does not say.

    Args:
        bus_id: Of the device, as 0000:3b:00.0.
        devices: Folder with a folder for each device of the PCI bus.
    """
    try:
        node = int((devices / bus_id / "numa_node").read_text(encoding="ascii"))
        listed = (devices / bus_id / "local_cpulist").read_text(encoding="ascii").strip()
        ranges = [part.partition("-") for part in listed.split(",") if part]
        found = frozenset(number for first, _, last in ranges for number in range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return frozenset()
    return found if node >= 0 else frozenset()


def use_near_processors(device: torch.device, devices: Path = linux.PCI_DEVICES) -> None:
    """Pin this process's threads, and those that they start, to the processors beside a GPU.

    Pinned memory is then of the same node, and batches do not cross from one to the other. Nothing changes where all
    processors that the process may use are near, or fewer than `LEAST`.

    Args:
        device: A GPU.
        devices: As `near_processors` takes it.
    """
    facts = torch.cuda.get_device_properties(device)
    place: list[Any] = [getattr(facts, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in place:
        return
    domain, bus, slot = map(int, place)
    bus_id = f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    allowed = linux.allowed_processors()
    near = near_processors(bus_id, devices) & allowed
    if not LEAST <= len(near) < len(allowed):
        return
    linux.pin_threads(near)
    _log.info("using the processors closest to the GPU", device=str(device), bus_id=bus_id, processors=len(near))
