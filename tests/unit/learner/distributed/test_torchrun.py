"""How many learners a machine starts."""

from __future__ import annotations

import pytest
import torch

from tidemill.services.learner.torchrun import rank_count


@pytest.mark.parametrize("gpus, ranks", [(0, 1), (1, 1), (4, 4)])
def test_one_learner_is_started_on_each_gpu(monkeypatch: pytest.MonkeyPatch, gpus: int, ranks: int) -> None:
    """`gpu` counts the GPUs the process sees, one learner without any; a number is taken as it is."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert rank_count("gpu") == ranks
    assert rank_count("3") == 3
