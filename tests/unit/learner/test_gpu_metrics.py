"""What a learner reports of its GPU."""

from __future__ import annotations

import pytest
import torch

from tidemill.services.learner.status.metrics import GpuCollector, GpuUtilisation


@pytest.mark.requires_cuda  # there is nothing to tell without one
def test_gpu_says_how_full_and_how_busy_it_is() -> None:
    """A tensor of 64 MiB is seen as allocated, reserved, and gone from what is free; work makes the GPU busy."""
    device = torch.device("cuda", torch.cuda.current_device())
    collector = GpuCollector(device, GpuUtilisation(device))
    tensor = torch.ones(2**24, device=device)
    square = torch.ones(4096, 4096, device=device)
    for _ in range(200):
        square = square @ square
    seen = {metric.name: metric.samples[0].value for metric in collector.collect()}
    torch.cuda.synchronize()
    prefix = "tidemill_learner_gpu_"
    assert seen[f"{prefix}allocated_bytes"] >= tensor.nbytes
    assert seen[f"{prefix}reserved_bytes"] >= seen[f"{prefix}allocated_bytes"]
    assert seen[f"{prefix}free_bytes"] + tensor.nbytes <= seen[f"{prefix}size_bytes"]
    assert 0 <= seen[f"{prefix}utilisation_ratio"] <= 1
