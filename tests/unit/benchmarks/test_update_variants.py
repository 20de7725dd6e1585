"""The benchmark of updates measures what can be computed on the machine."""

from __future__ import annotations

import sys
from typing import Never
from unittest import mock

import pytest
import torch

from benchmarks import update
from benchmarks.rows import Row
from tidemill.errors import ConfigError
from tidemill.rl.agents import q_learning


def test_update_that_cannot_be_compiled_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The other updates of the case are measured, and a line gives the reason."""

    def cannot_compile(device: torch.device) -> Never:
        raise ConfigError(f"no compiler for {device}")

    with mock.patch.object(q_learning, "_try_out", cannot_compile):
        rows = update._measure(update._SEQUENCES, rounds=1)
    names = [str(row["name"]) for row in rows]
    assert names
    assert not [name for name in names if "default" in name]
    assert "left out: r2d2_64_64, float32, compiled (default): no compiler for" in capsys.readouterr().out


@pytest.mark.parametrize("on_gpu", [True, False])
def test_convolutions_are_chosen_on_a_gpu_as_in_a_learner(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuDNN tries its algorithms at the first update of each shape."""
    chosen: list[bool] = []

    def measure(*_: object) -> list[Row]:
        chosen.append(torch.backends.cudnn.benchmark)
        return []

    monkeypatch.setattr(update, "_ON_GPU", on_gpu)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not on_gpu)
    monkeypatch.setattr(update, "_measure", measure)
    monkeypatch.setattr(update, "write", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["update", "--cases", "td3_256"])
    update.main()
    assert chosen == [on_gpu]
