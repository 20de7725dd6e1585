"""Learners that train together, as real processes over gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.process.rank_updates import trained
from tests.support.batches import CASES
from tidemill.services.learner.distributed.learner_group import SingleLearner

_WAIT_S = 500.0


def _start(place: int, size: int, port: int, words: list[str]) -> subprocess.Popen[str]:
    torchrun = {"RANK": place, "WORLD_SIZE": size, "LOCAL_RANK": place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": "examples"} | {
        k: str(v) for k, v in torchrun.items()
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.process.rank_updates", *words],
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def _train_together(size: int, folder: Path, updates: int, cases: list[str]) -> list[dict[str, Tensor]]:
    """Return what each rank wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [_start(place, size, port, [str(folder), str(updates), *cases]) for place in range(size)]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=_WAIT_S)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return [safetensors.torch.load_file(folder / f"rank-{place}.safetensors") for place in range(size)]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_stay_equal_and_agree(size: int, tmp_path: Path) -> None:
    """After 50 updates all ranks hold the same bits; what one says all hear, and what rank 0 shares all get."""
    cases = ["dqn", "sac", "sac_crossq", "ppo", "ppo_normalized", "ppo_lstm", "impala", "pqn"]
    first, *others = _train_together(size, tmp_path, 50, cases)
    assert len(first) > 20
    for other in others:
        assert other.keys() == first.keys()
        for name, tensor in first.items():
            assert torch.equal(other[name], tensor), name
    assert first["agreed"].tolist() == [False, True, False, size - 1]
    assert first["shared"].numpy().tobytes() == b"from 0"


def test_every_agent_learns_from_shares_what_it_learns_from_the_whole(tmp_path: Path) -> None:
    """Two ranks with half of each batch end where one process with all of it ends, up to the rounding of sums.

    Clipping, weights, targets, schedules and the noise in updates are part of it. Not so PPO, PQN and CrossQ, of which
    each rank shuffles or normalises its own part: of them the test above shows that ranks stay equal.
    """
    cases = [case for case in CASES if not case.startswith(("ppo", "pqn", "sac_crossq"))]
    first, _ = _train_together(2, tmp_path, 12, cases)
    for case in cases:
        expected = trained(case, 12, SingleLearner())
        for name, tensor in expected.items():
            assert torch.allclose(first[name].float(), tensor.float(), rtol=1e-3, atol=2e-5), name
