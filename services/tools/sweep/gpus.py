"""Assignment of GPUs to the runs of a sweep, so that simultaneous runs do not all take the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.services.tools.doctor.finding import says

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(environment: Mapping[str, str]) -> list[str]:
    """Return the visible GPUs, by CUDA_VISIBLE_DEVICES or else by nvidia-smi."""
    if (named := environment.get(VARIABLE)) is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    listed = (says("nvidia-smi", "-L") or "").splitlines()
    return [str(index) for index, _ in enumerate(line for line in listed if line.startswith("GPU "))]


def of_slot(gpus: Sequence[str], slot: int, slots: int, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable that gives a run its GPUs; nothing if it has to see all of them.

    Args:
        gpus: Those that the sweep may use.
        slot: Number of the run among simultaneous runs, from 0.
        slots: Number of simultaneous runs; with more runs than GPUs some share one.
        config: The run's config document. A run whose learners need more than its share sees all GPUs, as does one
            that takes a GPU by its number.
    """
    if not gpus:
        return {}
    share = gpus[slot % len(gpus) :: slots]
    learners = (config.get("launcher") or {}).get("learners", 1)
    by_number = any(
        str((config.get(service) or {}).get("device", "")).startswith("cuda:") for service in ("learner", "inference")
    )
    return {} if by_number or learners > len(share) else {VARIABLE: ",".join(share)}
