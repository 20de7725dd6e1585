"""Kernels that an update launches, counted on pretended GPUs: into benchmarks/results/gpu_rehearsal.json and the docs.

It counts and measures nothing, so any machine with a C++ compiler gives the same numbers. A test fails where an update
launches more than the file says.

    python -m benchmarks.gpu_rehearsal
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from tidemill.rehearsal import library

_ROOT = Path(__file__).parent.parent
RESULTS = _ROOT / "benchmarks" / "results" / "gpu_rehearsal.json"
_DOCUMENT = _ROOT / "docs" / "performance.md"
_HEAD = (
    "| Update | Eager | Eager, a gradient step | in a CUDA graph | Eager, of several ranks "
    "| in CUDA graphs, of several ranks |"
)
_PER_STEP = "eager, a gradient step"
_WAYS = ("eager", _PER_STEP, "graphs", "eager, of several ranks", "graphs, of several ranks")


def counted() -> dict[str, dict[str, int]]:
    """Return the launches of each update, by how it is made."""
    library.load()
    warnings.simplefilter("ignore")  # torch warns of a CPU build that is asked about CUDA
    from benchmarks.gpu_sizes import launches, sizes
    from tidemill.rehearsal.pretended_cuda import PretendedCuda

    cuda, found = PretendedCuda(8), {}
    for name, (config, env_spec) in sizes().items():
        found[name] = launches(cuda, config, env_spec)
        print(f"{name}: {found[name]}", flush=True)
    return found


def table(found: dict[str, dict[str, int]]) -> list[str]:
    """Return the lines of the table in docs/performance.md."""
    rows = [_HEAD, "|---|---|---|---|---|---|"]
    for name, launched in found.items():
        ways = launched | {_PER_STEP: round(launched["eager"] / _gradient_steps(name))}
        rows.append(f"| {' | '.join([name, *(f'{ways[way]:,}' if way in ways else '–' for way in _WAYS)])} |")
    return rows


def _gradient_steps(name: str) -> int:
    """Return how many gradient steps one update of a batch makes: PPO and PQN go over it in minibatches."""
    from benchmarks.gpu_sizes import sizes

    config = sizes()[name][0]
    return int(getattr(config, "epochs", 1) * getattr(config, "minibatches", 1))


def main() -> None:
    """Count, and write both."""
    found = counted()
    RESULTS.write_text(json.dumps({"launches": found}, indent=1) + "\n", encoding="utf-8")
    lines = _DOCUMENT.read_text(encoding="utf-8").splitlines()
    first = lines.index(_HEAD)
    after = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    _DOCUMENT.write_text("\n".join([*lines[:first], *table(found), *lines[after:]]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
