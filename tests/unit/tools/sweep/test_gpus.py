"""How the runs of a sweep are spread over the GPUs of a machine, whose number is pretended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.services.tools.sweep.gpus import of_slot, visible


def _seen(count: int, slots: int, config: dict[str, Any] | None = None) -> list[str]:
    gpus = [str(index) for index in range(count)]
    given = (of_slot(gpus, slot, slots, config or {}) for slot in range(slots))
    return [each.get("CUDA_VISIBLE_DEVICES", "all") for each in given]


@pytest.mark.parametrize(
    "count, slots, seen",
    [
        (0, 2, ["all", "all"]),
        (4, 1, ["0,1,2,3"]),
        (8, 3, ["0,3,6", "1,4,7", "2,5"]),
        (4, 4, ["0", "1", "2", "3"]),
        (2, 5, ["0", "1", "0", "1", "0"]),
    ],
)
def test_runs_share_the_gpus_out(count: int, slots: int, seen: list[str]) -> None:
    """None is left idle, and none has two runs while another has none."""
    assert _seen(count, slots) == seen


def test_run_that_needs_more_than_its_share_sees_all() -> None:
    """Several learners have a GPU each, and a GPU that a config names by its number has to be there."""
    assert _seen(8, 4, {"launcher": {"learners": 2}}) == ["0,4", "1,5", "2,6", "3,7"]
    assert _seen(8, 8, {"launcher": {"learners": 2}}) == ["all"] * 8
    for service in ("learner", "inference"):
        assert _seen(2, 2, {service: {"device": "cuda:1"}}) == ["all"] * 2


def test_gpus_are_those_of_nvidia_smi_unless_fewer_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a GPU are not counted; a user's own choice is what is shared out, as it is written."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: GPU-a)\n  MIG 1g.10gb Device 0: (UUID: MIG-a)\nGPU 1: B'\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible({}) == []  # it cannot be run yet
    program.chmod(0o755)
    assert visible({}) == ["0", "1"]
    assert visible({"CUDA_VISIBLE_DEVICES": "3, GPU-b"}) == ["3", "GPU-b"]
    assert visible({"CUDA_VISIBLE_DEVICES": ""}) == visible({"CUDA_VISIBLE_DEVICES": "-1"}) == []
