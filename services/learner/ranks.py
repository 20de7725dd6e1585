"""The processes that train together: which of them this is, and all that they tell one another.

Started by torchrun there are several, and torch.distributed carries what passes between them: gradients over NCCL
between GPUs, everything else over gloo. Started by itself a learner is the only rank and nothing is sent.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from tidemill.errors import ConfigError, Unavailable
from tidemill.rl.process_group import ProcessGroup, SingleProcess
from tidemill.services.learner.roll_call import RollCall

_ROLL_CALL_S = 0.1  # between two looks at the store


@dataclass(frozen=True)
class Place:
    """Which of the ranks this process is."""

    index: int = 0
    """Its number, from 0; rank 0 publishes, writes checkpoints and serves the control API."""
    size: int = 1
    """How many there are."""
    local_index: int = 0
    """Its number among those of this machine, from 0: the GPU it takes."""
    machines: int = 1
    """Over how many machines they are spread, or more exactly how many torchruns have started them."""

    @property
    def is_first(self) -> bool:
        """Whether it is the rank that callers, parameter server and disk know."""
        return self.index == 0

    def share_of(self, batch_size: int) -> int:
        """Return how many of a batch's items this rank takes; raises ConfigError if the ranks cannot share it."""
        if batch_size % self.size:
            raise ConfigError(
                f"agent.batch_size is {batch_size}, which {self.size} learners cannot share evenly: "
                f"choose a multiple of {self.size}"
            )
        return batch_size // self.size


def place_of(environ: Mapping[str, str] = os.environ) -> Place:
    """Return the place that torchrun wrote into the environment; the only one without it."""
    if "WORLD_SIZE" not in environ:
        return Place()
    machines = int(environ.get("GROUP_WORLD_SIZE", "1"))
    return Place(int(environ["RANK"]), int(environ["WORLD_SIZE"]), int(environ["LOCAL_RANK"]), machines)


class Word(NamedTuple):
    """What a rank has to say before a step, and what all of them say together."""

    stop: bool
    """Whether one must end."""
    pause: bool
    """Whether one must take no step for now."""
    lacks_batch: bool
    """Whether one has no batch yet."""
    largest_weight: float
    """The largest importance weight of the batch before any scaling; 0 without one."""


class Ranks(ProcessGroup, Protocol):
    """All ranks of a learner, as the training thread of one of them sees them."""

    def agree(self, word: Word) -> Word:
        """Return what is true of any rank, and the largest weight of all; waits until every rank has asked.

        Raises:
            Unavailable: Another rank ended or was silent for too long.
        """

    def share(self, data: bytes) -> bytes:
        """Return what rank 0 gave; what the others give is ignored. Waits and raises as `agree` does."""


class OneRank(SingleProcess):
    """A learner without others."""

    def agree(self, word: Word) -> Word:
        """Return the word."""
        return word

    def share(self, data: bytes) -> bytes:
        """Return the data."""
        return data


class TorchRanks:
    """The ranks of a torch.distributed process group, which must exist."""

    def __init__(self, place: Place, device: torch.device, timeout_s: float) -> None:
        """Make the group for what passes between hosts; every rank must do so at the same time.

        Args:
            place: Which rank this is.
            device: Where gradients are.
            timeout_s: Longest wait for the others, in seconds.
        """
        self._place, self._timeout_s = place, timeout_s
        with self._explained():
            # On GPUs words are not gradients: they must not wait for the device, so gloo carries them.
            self._hosts = dist.new_group(backend="gloo", timeout=_span(timeout_s)) if device.type == "cuda" else None

    @property
    def index(self) -> int:
        """Which rank this is."""
        return self._place.index

    @property
    def size(self) -> int:
        """How many there are."""
        return self._place.size

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean of each gradient over all ranks: one collective on one flat bucket."""
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        with self._explained():
            dist.all_reduce(flat)
        flat.div_(self._place.size)
        parts = flat.split([gradient.numel() for gradient in gradients])
        return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]

    def agree(self, word: Word) -> Word:
        """Return what is true of any rank, and the largest weight of all."""
        numbers = torch.tensor(word, dtype=torch.float64)
        with self._explained():
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._hosts)
        stop, pause, lacks_batch, largest_weight = numbers.tolist()
        return Word(bool(stop), bool(pause), bool(lacks_batch), largest_weight)

    def share(self, data: bytes) -> bytes:
        """Return what rank 0 gave."""
        length = torch.tensor([len(data)], dtype=torch.int64)
        with self._explained():
            dist.broadcast(length, src=0, group=self._hosts)
            buffer = torch.empty(int(length), dtype=torch.uint8)
            if self._place.is_first:
                buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(buffer, src=0, group=self._hosts)
        return buffer.numpy().tobytes()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with explained(self._place, self._timeout_s):
            yield


@contextmanager
def joined_ranks(place: Place, device: torch.device, timeout_s: float) -> Iterator[Ranks]:
    """Join the other ranks, if there are any, and leave them at the end.

    Args:
        place: Which rank this is.
        device: Where gradients are; NCCL carries those of a GPU, gloo those of a CPU.
        timeout_s: Longest wait for the others, here and later, in seconds.

    Raises:
        Unavailable: The others did not come in time.
    """
    if place.size == 1:
        yield OneRank()
        return
    with explained(place, timeout_s):
        _join(place, device, timeout_s)
    try:
        yield TorchRanks(place, device, timeout_s)
    finally:
        dist.destroy_process_group()


def _join(place: Place, device: torch.device, timeout_s: float) -> None:
    on_gpu = device.type == "cuda"
    store, _, _ = next(rendezvous("env://", timeout=_span(timeout_s)))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        # Under a name of their own, or they would find the addresses of the ranks before them.
        store=PrefixStore(_life(store, place, timeout_s), store),
        rank=place.index,
        world_size=place.size,
        timeout=_span(timeout_s),
        device_id=device if on_gpu else None,
    )


def _life(store: Store, place: Place, timeout_s: float) -> str:
    """Wait until all ranks are there; return the name they have for their life together."""
    roll_call, deadline = RollCall(store, place.index, place.size), time.monotonic() + timeout_s
    while (life := roll_call.poll()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(roll_call.missing())
        time.sleep(_ROLL_CALL_S)
    return life


@contextmanager
def explained(place: Place, timeout_s: float) -> Iterator[None]:
    """Turn what torch.distributed raises into one line."""
    try:
        yield
    except (RuntimeError, ValueError, TimeoutError) as error:  # its own errors derive from the first two
        first_line = str(error).strip().partition("\n")[0]
        raise Unavailable(
            f"learner rank {place.index} of {place.size} lost the others, or they were silent for {timeout_s:g} s: "
            f"{first_line}"
        ) from error


def _span(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
