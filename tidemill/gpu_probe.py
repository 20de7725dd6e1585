"""Probe of torch's abilities on this machine's GPUs: a separate program, for `tidemill doctor`.

`python -m tidemill.gpu_probe` prints each answer as a line of JSON at once. If the driver hangs or ends the process,
the lines before stay, and the last one names the step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PEER_SIZE = 1024


def main() -> int:
    """Ask step by step; stop where what follows could only repeat the same error."""
    _begin("import torch")
    import torch

    from tidemill import gpus

    needed = gpus.needed_capability()
    _say(torch=torch.__version__, cuda=torch.version.cuda, needs=gpus.needs() if torch.version.cuda else "")
    _begin("CUDA's answer")
    why = gpus.why_unusable()
    count = 0 if why else gpus.count()
    _say(why_unusable=why, count=count, nccl=torch.distributed.is_available() and torch.distributed.is_nccl_available())
    for index in range(count):
        _begin(f"GPU {index}")
        has = torch.cuda.get_device_capability(index)
        answer: dict[str, object] = {"gpu": index, "name": torch.cuda.get_device_name(index), "capability": list(has)}
        if needed is None or has >= needed:
            answer["free_bytes"], answer["total_bytes"] = torch.cuda.mem_get_info(index)
            answer["float32"] = _error_of(partial(_product, index, torch.float32))
            answer["bfloat16"] = _error_of(partial(_product, index, torch.bfloat16))
        _say(**answer)
    if count > 1 and torch.distributed.is_nccl_available():
        _begin("NCCL all-reduce over all GPUs")
        _say(nccl_sum=_error_of(partial(_sum_over, count)))
    return 0


def _product(index: int, dtype: torch.dtype) -> None:
    """Multiply two matrices of ones: each entry is their width, which both formats hold exactly."""
    import torch

    ones = torch.ones(64, 64, device=f"cuda:{index}", dtype=dtype)
    if not bool(((ones @ ones) == 64).all()):
        raise RuntimeError("a product of two matrices of ones is wrong")


def _sum_over(count: int) -> None:
    import torch
    from torch.cuda import nccl

    vectors = [torch.full((_PEER_SIZE,), float(index), device=f"cuda:{index}") for index in range(count)]
    nccl.all_reduce(vectors)
    if not all(bool((vector == sum(range(count))).all()) for vector in vectors):
        raise RuntimeError("the sum of one vector of each GPU is wrong")


def _error_of(step: Callable[[], None]) -> str:
    """Return the first line of the error of a step; empty if it has none."""
    try:
        step()
    except Exception as error:
        return f"{error}".partition("\n")[0] or type(error).__name__
    return ""


def _begin(step: str) -> None:
    _say(begins=step)


def _say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
