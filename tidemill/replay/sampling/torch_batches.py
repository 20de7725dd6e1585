"""Batches of a dataset for PyTorch's `DataLoader`; importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tidemill.errors import InvalidArgument
from tidemill.replay.sampling.adapters import to_torch
from tidemill.replay.sampling.dataset import ReplayDataset


class TorchBatches(IterableDataset[dict[str, torch.Tensor]]):
    """Opens a dataset in the process that iterates, and closes it when the iteration ends."""

    def __init__(self, open_dataset: Callable[[], ReplayDataset], pin_memory: bool) -> None:
        self._open_dataset, self._pin_memory = open_dataset, pin_memory

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        self._check_workers()
        with self._open_dataset() as dataset:
            for batch in dataset:
                tensors = to_torch(batch)
                yield {name: tensor.pin_memory() for name, tensor in tensors.items()} if self._pin_memory else tensors

    def _check_workers(self) -> None:
        """Raise InvalidArgument if several workers would draw the same items; a function may tell them apart itself."""
        opened, worker = self._open_dataset, get_worker_info()
        if worker is None or not isinstance(opened, partial) or opened.func is not ReplayDataset:
            return
        repeated = [name for name in ("seed", "epochs", "schedule") if opened.keywords.get(name) is not None]
        if repeated and worker.num_workers > 1:
            raise InvalidArgument(
                f"num_workers is {worker.num_workers}, must be at most 1 with {' and '.join(repeated)}: each worker "
                "would draw the same items"
            )
