"""The output of every benchmark: rows of figures, the machine they are from, and what else that machine was doing."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.processes import busy_s

Row = dict[str, object]
"""`name`, `unit`, `ours`, `peer` (a ceiling or another program, named in `name`), `ratio`, `runs`, `spread`."""


def row(name: str, unit: str, ours: Sequence[float], peer: Sequence[float] | None = None) -> Row:
    """Return medians and spread of what was measured in turns; the ratio is the median of each turn's own."""
    ratios = sorted(a / b for a, b in zip(ours, peer, strict=True)) if peer else []
    return {
        "name": name,
        "unit": unit,
        "ours": round(statistics.median(ours), 3),
        "peer": round(statistics.median(peer), 3) if peer else None,
        "ratio": round(statistics.median(ratios), 3) if ratios else None,
        "runs": len(ours),
        "spread": {
            "ours": [round(min(ours), 3), round(max(ours), 3)],
            "ratio": [round(ratio, 3) for ratio in ratios],
        },
    }


def machine() -> Row:
    """The hardware and software that figures depend on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none: not measured",
    }


FOLDER_VARIABLE = "TIDEMILL_RESULTS"
"""Names another folder than benchmarks/results for what `write` writes."""

_QUIET_CORES = 0.1
"""Processor time that others may take beside a benchmark whose figures are published, in cores."""


def write(name: str, rows: Sequence[Row]) -> None:
    """Print the rows and write them to NAME.json in benchmarks/results, with what others took of the processors.

    A result of a machine that was not quiet says so in `machine.quiet`; it is not for publishing.
    """
    for each in rows:
        print(json.dumps(each))
    found = load()
    if not found["quiet"]:
        print(
            f"{name}: other programs took {found['others_cores']} cores meanwhile; measure again when they rest",
            file=sys.stderr,
        )
    document = {"machine": machine() | found, "rows": list(rows)}
    path = Path(os.environ.get(FOLDER_VARIABLE, "benchmarks/results")) / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load() -> Row:
    """Processor cores that other programs used since this module was loaded, and if few enough to call it quiet."""
    others = _busy_of_others()
    return {"others_cores": round(others, 3), "quiet": others <= _QUIET_CORES}


def _own_s() -> float:
    """Return the seconds of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


_STARTED = (time.monotonic(), busy_s(), _own_s())


def _busy_of_others() -> float:
    """Return how many cores others kept busy since this module was loaded."""
    elapsed, busy, own = (
        now - then for now, then in zip((time.monotonic(), busy_s(), _own_s()), _STARTED, strict=True)
    )
    return max(busy - own, 0.0) / elapsed


def _cpu() -> str:
    """Return the processor's name and what it has for short products."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    said = dict(line.partition(":")[::2] for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in said.items()}
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in fields.get("flags", "").split()]
    return f"{fields.get('model name', platform.machine())} ({', '.join(flags)})"
