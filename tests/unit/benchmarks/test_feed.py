"""The benchmark of a learner's feed makes batches as a learner on the machine does."""

from __future__ import annotations

import pytest
import torch

from benchmarks import feed
from benchmarks.learner_cases import CASES


class _BuiltError(Exception):
    """Ends the benchmark where it has its agent."""


@pytest.mark.parametrize("on_gpu", [True, False])
def test_agent_is_where_batches_go(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent on a GPU leaves the stacking of frames to it, so that the host neither stacks nor sends any twice."""
    devices: list[torch.device] = []

    def build_agent(config: object, env_spec: object, device: str = "cpu", seed: int = 0) -> None:
        devices.append(torch.device(device))
        raise _BuiltError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(feed, "build_agent", build_agent)
    with pytest.raises(_BuiltError), feed.feed(CASES["nature_dueling_dqn_32"].config(), "", feed.Feed(), 1):
        pass
    assert [device.type for device in devices] == ["cuda" if on_gpu else "cpu"]
