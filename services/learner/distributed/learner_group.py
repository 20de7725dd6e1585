"""The learner processes that train together: their ranks and what they exchange.

Started by torchrun there are several, and torch.distributed carries what passes between them: gradients over NCCL
between GPUs, everything else over gloo. Started by itself a learner is the only rank and nothing is sent.
"""

from __future__ import annotations

import datetime
import faulthandler
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store, _abort_process_group
from torch.distributed.rendezvous import rendezvous

from tidemill.config.learners import check_queue, local_batch_size
from tidemill.config.sections import LearnerConfig
from tidemill.errors import Unavailable
from tidemill.rl.process_group import ProcessGroup, SingleProcess, flat_mean
from tidemill.services.learner.distributed.membership import GroupMembership

_INTERFACE = "GLOO_SOCKET_IFNAME"
_ADVICE = (  # gloo announces the address of the machine's name
    f"; where a machine's own name resolves to 127.0.1.1 or 127.0.0.1, as on Debian and Ubuntu, set {_INTERFACE} to "
    "the network interface that reaches the others, such as eth0"
)
_POLL_S = 0.1  # between two polls of the store
LEAVE_S = 4
"""Longest time that a rank takes to end once it has failed or lost the others, in seconds."""


@dataclass(frozen=True)
class RankInfo:
    """Place of this process among the ranks."""

    index: int = 0
    """Its number, from 0; rank 0 publishes, writes checkpoints and serves the control API."""
    size: int = 1
    """How many there are."""
    local_index: int = 0
    """Its number among those of this machine, from 0: the GPU it takes."""
    machines: int = 1
    """Over how many machines they are spread, or more exactly how many torchruns have started them."""
    machine: int = 0
    """The number of this one, from 0."""
    on_machine: int = 0
    """How many of the ranks this machine has; 0: as many as the others."""

    @property
    def local_size(self) -> int:
        """How many of the ranks this machine has: they share its memory."""
        return self.on_machine or -(-self.size // self.machines)

    @property
    def is_first(self) -> bool:
        """Whether it is the rank that callers, parameter server and disk know."""
        return self.index == 0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> RankInfo:
        """Return the rank that torchrun wrote into the environment; a single rank without it."""
        if "WORLD_SIZE" not in environ:
            return cls()
        machines, machine, on_machine = (
            int(environ.get(name, default))
            for name, default in (("GROUP_WORLD_SIZE", "1"), ("GROUP_RANK", "0"), ("LOCAL_WORLD_SIZE", "0"))
        )
        rank, size, local_rank = (int(environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return cls(rank, size, local_rank, machines, machine, on_machine)

    def local_batch_size(self, config: LearnerConfig) -> int:
        """Return the number of items of each update that this rank takes.

        Raises:
            ConfigError: The ranks cannot share a batch; see `check_queue` and `local_batch_size` of
                `tidemill.config.learners`.
        """
        check_queue(config, self.size)
        return local_batch_size(config.agent, config.learner.sources, self.size)


class StepVote(NamedTuple):
    """The vote of one rank before a step, or the combined vote of all."""

    stop: bool
    """Whether any rank must end."""
    pause: bool
    """Whether any rank is paused."""
    lacks_batch: bool
    """Whether any rank has no batch yet."""
    largest_weight: float
    """The largest importance weight of the batch before any scaling; 0 without one."""
    is_over: bool = False
    """Whether any rank ends for another reason than a signal to its machine, which returns."""
    at_limit: bool = False
    """Whether any rank has reached a limit of the run by its own counts."""


class LearnerGroup(ProcessGroup, Protocol):
    """All ranks of a learner, as the training thread of one of them sees them."""

    def all_agree(self, vote: StepVote) -> StepVote:
        """Combine the votes of all ranks: flags by "or", weights by their maximum; waits until every rank has voted.

        Raises:
            Unavailable: Another rank ended or was silent for too long.
        """

    def begin_vote(self, vote: StepVote) -> Callable[[], StepVote]:
        """Vote as `all_agree` does; what is returned waits for the others, and is called before anything else here."""

    def broadcast(self, data: bytes) -> bytes:
        """Return the value that rank 0 passed; values of the others are ignored. Waits and raises like `all_agree`."""


class SingleLearner(SingleProcess):
    """A learner without others."""

    def all_agree(self, vote: StepVote) -> StepVote:
        """Return the vote."""
        return vote

    def begin_vote(self, vote: StepVote) -> Callable[[], StepVote]:
        """Return a function that waits for the vote and returns it."""
        return partial(self.all_agree, vote)

    def broadcast(self, data: bytes) -> bytes:
        """Return the data."""
        return data


class TorchLearnerGroup:
    """The ranks of a torch.distributed process group, which must exist."""

    def __init__(self, rank: RankInfo, device: torch.device, timeout_s: float) -> None:
        """Make the group for what passes between hosts; every rank must do so at the same time.

        Args:
            rank: Which rank this is.
            device: Where gradients are.
            timeout_s: Longest wait for the others, in seconds.
        """
        self._rank, self._timeout_s = rank, timeout_s
        with self._translated():
            # On GPUs votes are not gradients: they must not wait for the device, so gloo carries them.
            self._host_group = (
                dist.new_group(backend="gloo", timeout=_span(timeout_s)) if device.type == "cuda" else None
            )

    @property
    def index(self) -> int:
        """Which rank this is."""
        return self._rank.index

    @property
    def size(self) -> int:
        """How many there are."""
        return self._rank.size

    def mean(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the mean of each gradient over all ranks: one collective on one flat bucket."""
        if self._host_group is None:  # which of two orders a CPU lays images in depends on what it multiplies fast
            gradients = [gradient.contiguous() for gradient in gradients]
        return flat_mean(gradients, self._rank.size, self.add_up)

    def add_up(self, flat: Tensor) -> None:
        """Replace every number by its sum over all ranks."""
        with self._translated():
            dist.all_reduce(flat)

    def all_agree(self, vote: StepVote) -> StepVote:
        """Combine the votes of all ranks: flags by "or", weights by their maximum; waits until every rank has voted."""
        return self.begin_vote(vote)()

    def begin_vote(self, vote: StepVote) -> Callable[[], StepVote]:
        """Give this rank's vote; return what waits for those of the others."""
        numbers = torch.tensor(vote, dtype=torch.float64)
        with self._translated():
            exchange = dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._host_group, async_op=True)

        def agreed() -> StepVote:
            with self._translated():
                exchange.wait()
            stop, pause, lacks_batch, largest_weight, is_over, at_limit = numbers.tolist()
            return StepVote(bool(stop), bool(pause), bool(lacks_batch), largest_weight, bool(is_over), bool(at_limit))

        return agreed

    def broadcast(self, data: bytes) -> bytes:
        """Return the value that rank 0 passed."""
        length = torch.tensor([len(data)], dtype=torch.int64)
        with self._translated():
            dist.broadcast(length, src=0, group=self._host_group)
            buffer = torch.empty(int(length), dtype=torch.uint8)
            if self._rank.is_first:
                buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(buffer, src=0, group=self._host_group)
        return buffer.numpy().tobytes()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with _errors_translated(self._rank, self._timeout_s):
                yield
        except Unavailable:
            _abandon()  # first of all: what closes next may wait for the device, and that for the others
            raise


@contextmanager
def joined_group(rank: RankInfo, device: torch.device, timeout_s: float) -> Iterator[LearnerGroup]:
    """Join the other ranks, if there are any, and leave them at the end.

    Args:
        rank: Which rank this is.
        device: Where gradients are; NCCL carries those of a GPU, gloo those of a CPU.
        timeout_s: Longest wait for the others, here and later, in seconds.

    A rank that fails, or loses the others, aborts what is in flight, and its process ends within `LEAVE_S`.

    Raises:
        Unavailable: The others did not come in time.
    """
    if rank.size == 1:
        yield SingleLearner()
        return
    with _errors_translated(rank, timeout_s):
        _join(rank, device, timeout_s)
    try:
        yield TorchLearnerGroup(rank, device, timeout_s)
    except BaseException:
        _abandon()
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _abandon() -> None:
    """Leave the others without waiting for exchanges that are in flight; end the process if that takes too long.

    NCCL waits for the device, and gloo's abort for an exchange with a silent rank. Python cannot interrupt either.
    """
    if not dist.is_initialized():
        return
    faulthandler.dump_traceback_later(LEAVE_S, exit=True)
    with suppress(RuntimeError):  # not every backend can abort
        _abort_process_group()


def _join(rank: RankInfo, device: torch.device, timeout_s: float) -> None:
    on_gpu = device.type == "cuda"
    store, _, _ = next(rendezvous("env://", timeout=_span(timeout_s)))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        # Under their own prefix, or they would find the addresses of the ranks before them.
        store=PrefixStore(_agreed_incarnation(store, rank, timeout_s), store),
        rank=rank.index,
        world_size=rank.size,
        timeout=_span(timeout_s),
        device_id=device if on_gpu else None,
    )


def _agreed_incarnation(store: Store, rank: RankInfo, timeout_s: float) -> str:
    """Wait until all ranks are there; return the name of this incarnation of the group."""
    membership, deadline = GroupMembership(store, rank.index, rank.size), time.monotonic() + timeout_s
    while (incarnation := membership.poll()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(membership.missing())
        time.sleep(_POLL_S)
    return incarnation


@contextmanager
def _errors_translated(rank: RankInfo, timeout_s: float) -> Iterator[None]:
    """Turn what torch.distributed raises into one line."""
    try:
        yield
    except (RuntimeError, ValueError, TimeoutError) as error:  # its own errors derive from the first two
        first_line = str(error).strip().partition("\n")[0]
        has_no_interface = "connectFullMesh" in first_line and _INTERFACE not in os.environ
        raise Unavailable(
            f"learner rank {rank.index} of {rank.size} lost the others, or they were silent for {timeout_s:g} s: "
            f"{first_line}{_ADVICE if has_no_interface else ''}"
        ) from error


def _span(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
