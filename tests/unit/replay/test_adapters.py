"""Decoded batches as tensors: the same numbers over the same memory, and a clear error without the library."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.support.replay_service import local_server
from tests.support.waiting import WAIT_S
from tidemill.errors import ConfigError
from tidemill.replay import (
    ItemWindow,
    ReplayBatch,
    ReplayDataset,
    ReplayWriter,
    SelectorConfig,
    SelectorKind,
    TableConfig,
    signature_like,
)
from tidemill.replay.sampling.adapters import to_jax, to_torch, torch_dataset

_TABLE = TableConfig(
    "t",
    signature_like({"number": 0, "tokens": [0.5]}, max_lengths={"tokens": 3}),
    SelectorConfig(SelectorKind.FIFO),
    max_items=100,
    max_item_steps=2,
    max_times_sampled=1,
)


@contextmanager
def _filled() -> Iterator[str]:
    """Yield the address of a server with eleven items of two steps."""
    with local_server() as server:
        with ReplayWriter(server.address, _TABLE, windows=ItemWindow(2)) as writer:
            for number in range(12):
                writer.append({"number": number, "tokens": [float(number)] * (number % 4)})
        yield server.address


def _open(address: str) -> ReplayDataset:
    return ReplayDataset(address, _TABLE, 4, timeout_s=WAIT_S, prefetch=1)


def _batch() -> ReplayBatch:
    with _filled() as address, _open(address) as dataset:
        return next(dataset)


def test_tensors_have_the_batch() -> None:
    """Each column, the lengths of the one that varies, and the weights; on a CPU without a copy."""
    batch = _batch()
    tensors = to_torch(batch)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "number": (4, 2),
        "tokens": (4, 2, 3),
        "tokens__len": (4, 2),
        "weights": (4,),
    }
    assert tensors["number"][:, 1].tolist() == [1, 2, 3, 4]
    assert tensors["tokens__len"][:, 1].tolist() == [1, 2, 3, 0]
    assert np.shares_memory(tensors["number"].numpy(), batch["number"])


@pytest.mark.requires_cuda
def test_tensors_on_a_gpu() -> None:
    """Go there through pinned memory."""
    batch = _batch()
    tensors = to_torch(batch, "cuda")
    assert all(tensor.is_cuda for tensor in tensors.values())
    assert tensors["tokens"].cpu().numpy().tolist() == batch["tokens"].tolist()


def test_data_loader_iterates_over_batches() -> None:
    """With `batch_size=None`, each of its batches is one of the table's."""
    with _filled() as address:
        batches = iter(DataLoader(torch_dataset(lambda: _open(address)), batch_size=None))
        assert [next(batches)["number"][:, 0].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        del batches


def test_library_that_is_not_installed() -> None:
    """Says which one, and how to have it; with JAX its arrays have the numbers."""
    batch = _batch()
    if importlib.util.find_spec("jax") is None:
        with pytest.raises(ConfigError, match="jax is not installed: pip install jax"):
            to_jax(batch)
    else:
        assert np.asarray(to_jax(batch)["number"]).tolist() == batch["number"].tolist()
    assert "torch" in sys.modules
