"""GPUs that are pretended with real numbers, so that a run's real processes can be rehearsed on a machine without one.

Tensors say `cuda:N`, their memory is the host's, and each operation is the CPU's on that memory; a CUDA graph is a list
of operations that are repeated, and gloo answers for NCCL. Nothing in the processes knows of it: whoever starts them
gives them the environment of `environment`, by which each finds the GPUs when it imports torch.

What cannot be pretended: speed, the order of streams (all is done when a call returns), memory that runs out, what NCCL
and a driver do when they fail, and cuDNN's LSTM. A generator of a GPU has 16 bytes of state as a real one, and draws
other numbers than the CPU's.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.rehearsal import library

_FOLDER = Path(__file__).parent


def build(folder: Path) -> Path:
    """Build the library that pretends; a core needs ten seconds.

    Args:
        folder: Where it is written; the processes need it as long as they run.

    Raises:
        FailedPrecondition: torch is not installed, or there is no C++ compiler that can build it.
    """
    return library.build(_FOLDER / "cuda.cpp", folder)


def environment(built: Path, gpus: int) -> dict[str, str]:
    """Return the environment of processes that find so many GPUs.

    Args:
        built: What `build` returned.
        gpus: How many; with 0 they find a build of torch for CUDA, and none.
    """
    inherited = os.environ.get("PYTHONPATH")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(_FOLDER / "site"), *([inherited] if inherited else [])]),
        "TIDEMILL_PRETENDED_GPUS": str(gpus),
        "TIDEMILL_PRETENDED_LIBRARY": str(built),
        "OMP_NUM_THREADS": "1",
    }
