"""The output of every benchmark: rows of figures, and the machine they are from."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

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
    """Return what the figures depend on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none: not measured",
    }


def write(name: str, rows: Sequence[Row]) -> None:
    """Print the rows and write them to benchmarks/results/NAME.json."""
    for each in rows:
        print(json.dumps(each))
    document = {"machine": machine(), "rows": list(rows)}
    Path(f"benchmarks/results/{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _cpu() -> str:
    """Return the processor's name and what it has for short products."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    said = dict(line.partition(":")[::2] for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in said.items()}
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in fields.get("flags", "").split()]
    return f"{fields.get('model name', platform.machine())} ({', '.join(flags)})"
