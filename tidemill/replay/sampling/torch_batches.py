"""Batches of a dataset for PyTorch's `DataLoader`; importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import IterableDataset

from tidemill.replay.sampling.adapters import to_torch
from tidemill.replay.sampling.dataset import ReplayDataset


class TorchBatches(IterableDataset[dict[str, torch.Tensor]]):
    """Opens a dataset in the process that iterates, and closes it when the iteration ends."""

    def __init__(self, open_dataset: Callable[[], ReplayDataset], pin_memory: bool) -> None:
        self._open_dataset, self._pin_memory = open_dataset, pin_memory

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        with self._open_dataset() as dataset:
            for batch in dataset:
                tensors = to_torch(batch)
                yield {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._pin_memory else tensors
