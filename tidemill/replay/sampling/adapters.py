"""Decoded batches as tensors of PyTorch and arrays of JAX. Neither is imported before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.errors import ConfigError
from tidemill.replay.sampling.dataset import ReplayDataset
from tidemill.replay.sampling.replay_batch import ReplayBatch

if TYPE_CHECKING:
    import torch
    from torch.utils.data import IterableDataset


def to_torch(batch: ReplayBatch, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Return the columns and the weights as tensors: over the same memory on a CPU, through pinned memory on a GPU.

    Args:
        batch: A batch; do not use its arrays for something else.
        device: Where the tensors shall be.

    Returns:
        Each column [B, L, ...], the lengths of a column of varying length as `NAME__len` [B, L], and the importance
        weights as `weights` [B], or as `_weights` where a column has that name.

    Raises:
        ConfigError: PyTorch is not installed.
    """
    torch = _imported("torch")
    tensors = {name: torch.from_numpy(array) for name, array in _arrays(batch).items()}
    if torch.device(device).type == "cuda":
        return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def torch_dataset(
    open_dataset: Callable[[], ReplayDataset], *, pin_memory: bool = False
) -> IterableDataset[dict[str, torch.Tensor]]:
    """Return an `IterableDataset` of whole batches, for a `DataLoader(..., batch_size=None)`.

    Args:
        open_dataset: Opens the dataset, such as `functools.partial(ReplayDataset, address, table, 32)`. It is called in
            the process that iterates: workers of a `DataLoader` open one each. With `seed` or `epochs`
            only one is allowed, because several would draw the same items. Start them with
            `multiprocessing_context="spawn"`, for which it must be picklable: a lambda is not.
        pin_memory: Whether tensors come in pinned memory, from which copies to a GPU run beside the host.

    Raises:
        ConfigError: PyTorch is not installed.
        TypeError: `open_dataset` is a dataset already.
    """
    if not callable(open_dataset):
        raise TypeError(
            f"open_dataset is a {type(open_dataset).__name__}, must be a function that opens a ReplayDataset, such as "
            "functools.partial(ReplayDataset, address, table, 32)"
        )
    _imported("torch")
    from tidemill.replay.sampling.torch_batches import TorchBatches

    return TorchBatches(open_dataset, pin_memory)


def to_jax(batch: ReplayBatch) -> dict[str, Any]:
    """Return the columns and the weights as arrays of JAX, by DLPack: on a CPU without a copy where JAX allows it.

    Returns:
        Each column [B, L, ...], the lengths of a column of varying length as `NAME__len` [B, L], and the importance
        weights as `weights` [B], or as `_weights` where a column has that name.

    Raises:
        ConfigError: JAX is not installed.
    """
    jax = _imported("jax")
    return {name: jax.dlpack.from_dlpack(array) for name, array in _arrays(batch).items()}


def _arrays(batch: ReplayBatch) -> dict[str, Any]:
    lengths = {f"{name}__len": sizes for name, sizes in batch.sizes.items()}
    weights = "_weights" if "weights" in batch.columns else "weights"  # no column's name begins with an underscore
    return batch.columns | lengths | {weights: batch.weights}


def _imported(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ConfigError(f"{package} is not installed: pip install {package}") from error
