"""The mean of gradients over ranks whose processors lay out images in different orders."""

from __future__ import annotations

import pytest
import torch

from tidemill.services.learner.distributed.learner_group import RankInfo, TorchLearnerGroup


def test_ranks_on_cpus_exchange_gradients_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """`agent.channels_last: auto` goes by the number format, and that by the processor of a rank's machine."""
    group, sent = TorchLearnerGroup(RankInfo(size=2), torch.device("cpu"), timeout_s=1.0), []
    monkeypatch.setattr(group, "add_up", lambda flat: sent.append(flat.clone()))
    gradient = torch.randn(4, 3, 2, 5)
    for order in (torch.contiguous_format, torch.channels_last):
        (mean,) = group.mean([gradient.contiguous(memory_format=order)])
        torch.testing.assert_close(mean, gradient / 2)
    first, second = sent
    torch.testing.assert_close(first, second, rtol=0, atol=0)
