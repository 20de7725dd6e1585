"""Decoded batches as tensors of PyTorch and arrays of JAX. Neither is imported before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidemill.errors import ConfigError
from tidemill.replay.sampling.dataset import ReplayBatch, ReplayDataset

if TYPE_CHECKING:
    import torch
    from torch.utils.data import IterableDataset


def to_torch(batch: ReplayBatch, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Return the columns and the weights as tensors: over the same memory on a CPU, through pinned memory on a GPU.

    Args:
        batch: A batch; do not use its arrays for something else.
        device: Where the tensors shall be.

    Returns:
        Each column [B, L, ...], the lengths of a column of varying length as `NAME__len` [B, L], and `weights` [B].

    Raises:
        ConfigError: PyTorch is not installed.
    """
    torch = _imported("torch")
    tensors = {name: torch.from_numpy(array) for name, array in _arrays(batch).items()}
    if torch.device(device).type == "cuda":
        tensors = {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}
    return tensors


def torch_dataset(
    open_dataset: Callable[[], ReplayDataset], *, pin_memory: bool = False
) -> IterableDataset[dict[str, torch.Tensor]]:
    """Return an `IterableDataset` of whole batches, for a `DataLoader(..., batch_size=None)`.

    Args:
        open_dataset: Opens the dataset; called in the process that iterates, so that it works in the workers of a
            `DataLoader` too, if these are started with `multiprocessing_context="spawn"`.
        pin_memory: Whether tensors come in pinned memory, from which copies to a GPU run beside the host.

    Raises:
        ConfigError: PyTorch is not installed.
    """
    base = _imported("torch.utils.data").IterableDataset

    class Batches(base):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            with open_dataset() as dataset:
                for batch in dataset:
                    tensors = to_torch(batch)
                    yield {name: tensor.pin_memory() for name, tensor in tensors.items()} if pin_memory else tensors

    return Batches()


def to_jax(batch: ReplayBatch) -> dict[str, Any]:
    """Return the columns and the weights as arrays of JAX, by DLPack: on a CPU without a copy where JAX allows it.

    Returns:
        Each column [B, L, ...], the lengths of a column of varying length as `NAME__len` [B, L], and `weights` [B].

    Raises:
        ConfigError: JAX is not installed.
    """
    jax = _imported("jax")
    return {name: jax.dlpack.from_dlpack(array) for name, array in _arrays(batch).items()}


def _arrays(batch: ReplayBatch) -> dict[str, Any]:
    lengths = {f"{name}__len": sizes for name, sizes in batch.sizes.items()}
    return batch.columns | lengths | {"weights": batch.weights}


def _imported(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ConfigError(f"{package} is not installed: pip install {package}") from error
