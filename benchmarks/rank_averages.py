"""Rate at which the ranks of one machine average gradients: one per GPU over NCCL, two on a CPU over Gloo.

Two ranks share a GPU that is the only one; NCCL may refuse that, and then its reason is printed and the exit
code is 0: what was to be learnt is whether it does.

    python -m benchmarks.rank_averages [--bytes 7000000] [--rounds 20]
"""

from __future__ import annotations

import argparse
import datetime
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.processes import free_port
from benchmarks.rows import row, write
from tidemill import gpus

_WAIT_S = 60


@dataclass(frozen=True)
class Sizes:
    """What is averaged, and how often."""

    size_bytes: int
    rounds: int


def main() -> None:
    """Measure and print; write benchmarks/results/rank_averages.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--bytes", type=int, default=7_000_000, help="of the gradients; a dueling network of Atari has 7 MB"
    )
    parser.add_argument("--rounds", type=int, default=20, help="averages measured")
    arguments = parser.parse_args()
    context = mp.get_context("spawn")
    times: mp.SimpleQueue[list[float] | str] = context.SimpleQueue()
    sizes, port = Sizes(arguments.bytes, arguments.rounds), free_port()
    ranks = [context.Process(target=_rank, args=(rank, port, sizes, times)) for rank in range(_ranks())]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(2 * _WAIT_S)
        if process.is_alive():
            process.kill()
            process.join()
    found = None if times.empty() else times.get()
    if isinstance(found, list):
        count = gpus.count()
        where = "Gloo" if count == 0 else "NCCL, one GPU" if count == 1 else f"NCCL, {count} GPUs"
        name = f"average of {sizes.size_bytes / 1e6:g} MB over {_ranks()} ranks, {where}"
        write("rank_averages", [row(name, "ms", found)])
    else:
        print(f"no average: {found or 'a rank ended without a word'}")


def _rank(rank: int, port: int, sizes: Sizes, times: mp.SimpleQueue[list[float] | str]) -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank % gpus.count()) if on_gpu else torch.device("cpu")
    try:
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=_ranks(),
            timeout=datetime.timedelta(seconds=_WAIT_S),
        )
        gradients = torch.ones(sizes.size_bytes // 4, device=device)
        found = [_average_ms(gradients) for _ in range(sizes.rounds + 1)][1:]  # the first connects
        dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:  # torch's own errors are RuntimeErrors
        if rank == 0:
            times.put(" ".join(str(error).split())[:500])
        return
    if rank == 0:
        times.put(found)


def _average_ms(gradients: torch.Tensor) -> float:
    started = time.perf_counter()
    dist.all_reduce(gradients)
    gradients /= _ranks()
    if gradients.is_cuda:
        torch.cuda.synchronize(gradients.device)
    return 1000 * (time.perf_counter() - started)


def _ranks() -> int:
    return max(gpus.count(), 2)


if __name__ == "__main__":
    main()
