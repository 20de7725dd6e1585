"""`tidemill doctor --network`: a user's own network is rehearsed on a pretended GPU, in a separate process."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.compiler import require_compiler
from tidemill.services.tools.doctor.command import doctor

_NETWORKS = """
    import torch
    from torch import nn

    print("{'greeting': 1}")

    class Good(nn.Module):
        def __init__(self, env_spec, rng, width):
            super().__init__()
            self.layer, self.outputs = nn.Linear(3, width), width
            self.constant = torch.ones(width)

        def forward(self, observation):
            return self.layer(observation)

    class Bad(Good):
        def forward(self, observation):
            features = self.layer(observation)
            factor = 2.0 if features.sum().item() > 0 else 1.0  # reads
            return factor * features * self.constant  # mixes
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where the networks are; they are rehearsed with a C++ compiler."""
    require_compiler()
    (tmp_path / "of_mine.py").write_text(dedent(_NETWORKS))
    monkeypatch.chdir(tmp_path)


def test_network_that_a_gpu_takes_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    """Every algorithm's updates are rehearsed with it."""
    options = ("--observations", "3", "--network-settings", "width=5")
    assert doctor(["--network", "of_mine:Good", *options]) == 0
    said = capsys.readouterr().out
    assert "d4pg, ddpg, dqn, impala, ppo, pqn, r2d2, sac, sac_discrete, td3 with of_mine:Good" in said
    assert said.endswith("ready to train with it on a GPU\n")


def test_network_that_reads_a_number_back_and_mixes_devices_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each fault is named by its line, once for all algorithms."""
    source = (tmp_path / "of_mine.py").read_text().splitlines()
    reads, mixes = (1 + next(i for i, line in enumerate(source) if f"# {what}" in line) for what in ("reads", "mixes"))
    options = ("--observations", "3", "--network-settings", "width=5")
    assert doctor(["--network", "of_mine:Bad", *options]) == 1
    faults = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert [f"of_mine.py:{line}" in fault for line, fault in zip((reads, mixes), faults, strict=True)] == [True, True]
    assert "waits: _local_scalar_dense" in faults[0]
    assert "found at least two devices, cuda:0 and cpu" in faults[1]


@pytest.mark.parametrize(
    "option, value", [("--observations", "3,4"), ("--frame-stack", "0"), ("--network-settings", "width")]
)
def test_option_that_means_nothing_is_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the value."""
    with pytest.raises(SystemExit):
        doctor(["--network", "of_mine:Good", option, value])
    assert value in capsys.readouterr().err
