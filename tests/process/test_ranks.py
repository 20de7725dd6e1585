"""Learners that train together, as real processes over gloo."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.process.rank_updates import trained
from tests.support.batches import DISTINCT_CASES
from tests.support.forked_service import fork_service
from tests.support.free_ports import free_address, free_port
from tests.support.launched import ROOT
from tidemill.process import GPU_LOST
from tidemill.programs.fork_client import ForkedPopen
from tidemill.programs.fork_server import Order
from tidemill.services.learner.distributed.learner_group import SingleLearner

pytestmark = pytest.mark.timeout(3600)

_WAIT_S = 1500.0
_UPDATES = 12
_EXAMPLES = str(ROOT / "examples")
"""Where the ranks work: their networks are found there, as a user's are."""


def _start(place: int, size: int, port: int, words: list[str], log: IO[bytes]) -> ForkedPopen:
    torchrun = {"RANK": place, "WORLD_SIZE": size, "LOCAL_RANK": place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | {k: str(v) for k, v in torchrun.items()}
    return fork_service(Order("tests.process.rank_updates", words, os.environ | environment, _EXAMPLES), log)


def _train_together(size: int, folder: Path, cases: Sequence[str]) -> list[dict[str, Tensor]]:
    """Return the output of each rank."""
    port, log = free_port(), folder / "log"
    with log.open("wb") as output:
        ranks = [_start(place, size, port, [str(folder), str(_UPDATES), *cases], output) for place in range(size)]
        try:
            for rank in ranks:
                assert rank.wait(_WAIT_S) == 0, log.read_text()
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait(_WAIT_S)
    return [safetensors.torch.load_file(folder / f"rank-{place}.safetensors") for place in range(size)]


def _assert_equal(first: dict[str, Tensor], *others: dict[str, Tensor]) -> None:
    """Compare what ranks hold, and what one said to all."""
    assert len(first) > 20
    for other in others:
        assert other.keys() == first.keys()
        for name, tensor in first.items():
            assert torch.equal(other[name], tensor), name
    assert first["agreed"].tolist() == [False, True, False, len(others), True, True]
    assert first["shared"].numpy().tobytes() == b"from 0"


def test_four_ranks_stay_equal_and_agree(tmp_path: Path) -> None:
    """After 12 updates all ranks hold the same bits; what one says all hear, and what rank 0 shares all get."""
    cases: tuple[str, ...] = ("dqn", "sac", "sac_crossq", "sac_lstm", "td3_lstm", "ppo", "ppo_normalized", "ppo_lstm")
    cases = (*cases, "impala", "pqn", "sac_normalized", "dqn_normalized", "ppo_continuous", "sac_crossq_quantiles")
    _assert_equal(*_train_together(4, tmp_path, cases))


def test_every_agent_learns_from_shares_what_it_learns_from_the_whole(tmp_path: Path) -> None:
    """Two ranks with half of each batch end with the same bits: those of one process with all of it, up to rounding.

    Clipping, weights, targets, schedules and the noise in updates are part of it. Not so PPO, PQN and CrossQ, of which
    each rank shuffles or normalises its own part: that their ranks stay equal is tested above.
    """
    cases = tuple(case for case in DISTINCT_CASES if not case.startswith(("ppo", "pqn", "sac_crossq")))
    first, second = _train_together(2, tmp_path, cases)
    _assert_equal(first, second)
    for case in cases:
        for name, tensor in trained(case, _UPDATES, SingleLearner()).items():
            assert torch.allclose(first[name].float(), tensor.float(), rtol=1e-3, atol=2e-5), name


@pytest.mark.parametrize(
    "device, code, why", [("cuda:99", 2, "refused its settings"), ("cuda", GPU_LOST, "has lost its GPU")]
)
def test_ranks_that_refuse_their_settings_or_have_lost_their_gpu_are_not_started_again(
    device: str, code: int, why: str, tmp_path: Path
) -> None:
    """They would end again, so that the restarts that are left are of no help; the line before says why."""
    file = tmp_path / "run.yaml"
    file.write_text(f"run: {{root: {tmp_path}, name: ranks}}\nagent: {{batch_size: 64}}\n")
    (tmp_path / "ranks/checkpoints").mkdir(parents=True)
    words = ["2", "3", "--config", str(file), "--learner.device", device, "--learner.server.address", free_address()]
    log = tmp_path / "log"
    with log.open("wb") as output:
        torchrun = fork_service(
            Order("tidemill.services.learner.torchrun", words, os.environ | {"CUDA_VISIBLE_DEVICES": ""}), output
        )
        try:
            assert torchrun.wait(_WAIT_S) == code, log.read_text()
        finally:
            torchrun.kill()
            torchrun.wait(_WAIT_S)
    said = log.read_text()
    assert re.search(rf"learner: rank [01] {why}", said), said
    assert 1 <= len(re.findall(f"learner: learner.device is '{device}'", said)) <= 2, said
