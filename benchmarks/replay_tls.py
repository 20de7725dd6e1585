"""What TLS and a token cost the replay service: rates over loopback TCP with both, beside those without, in turns.

Each figure is measured with and without within the same turn, which of the two comes first changing from turn to turn,
so that a drift of the machine meets both. Insert: one writer's transitions. Sample: batches that are decoded, with
updates of their priorities.

    python -m benchmarks.replay_tls [--turns 9] [--seconds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.replay import Row, insert, machine, mixed, sampled
from benchmarks.replay_contenders import Contender, Tidemill
from benchmarks.replay_frames import cached_steps
from tidemill.rpc.client_security import CA, TOKEN_FILE
from tidemill.services.launcher.commands.certs import make

_RESULTS = Path(__file__).parent / "results" / "replay_tls.json"

Figure = Callable[[Contender], tuple[float, ...]]


class Secured:
    """Makes certificates, and measures with and without them."""

    def __init__(self, folder: Path) -> None:
        """Write the files into a folder."""
        make(folder)
        options = {"tls-cert": "server.pem", "tls-key": "server.key", "tokens": "tokens.txt"}
        words = [word for name, file in options.items() for word in (f"--replay.server.{name}", str(folder / file))]
        self._secured, self._plain = Tidemill(*words), Tidemill()
        self._environment = {CA: str(folder / "ca.pem"), TOKEN_FILE: str(folder / "operator.token")}

    def turn(self, figure: Figure, *, secured_first: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return a figure with TLS and a token, and without."""
        found = {}
        for is_secured in (secured_first, not secured_first):
            with _environment(self._environment if is_secured else {}):
                found[is_secured] = figure(self._secured if is_secured else self._plain)
        return found[True], found[False]


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Let this process and those that it starts have some variables, and not the others that secure a client."""
    before = {name: os.environ.pop(name) for name in (CA, TOKEN_FILE) if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def measure(contenders: Secured, turns: int, seconds: float) -> Iterator[Row]:
    """Yield a row per figure: medians with and without, and the ratio of the two within each turn."""
    figures: dict[tuple[str, ...], Figure] = {
        ("insert, 1 writer",): lambda contender: (insert(contender, 1, seconds),),
        ("sample, batch 256",): lambda contender: (sampled(contender, 256, seconds),),
        ("both at once, inserted", "both at once, sampled"): lambda contender: mixed(contender, seconds),
    }
    for names, figure in figures.items():
        pairs = [contenders.turn(figure, secured_first=turn % 2 == 0) for turn in range(turns)]
        for place, name in enumerate(names):
            secured, plain = ([pair[which][place] for pair in pairs] for which in (0, 1))
            yield row(name, secured, plain)


def row(name: str, secured: list[float], plain: list[float]) -> Row:
    """Return the medians, the median ratio of the turns with its quartiles, and the least and the greatest."""
    ratios = sorted(ours / theirs for ours, theirs in zip(secured, plain, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "name": name,
        "unit": "transitions/s",
        "tls": round(statistics.median(secured)),
        "plain": round(statistics.median(plain)),
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "range": [round(ratios[0], 3), round(ratios[-1], 3)],
        "turns": len(ratios),
    }


def main() -> None:
    """Measure, print a table and write benchmarks/results/replay_tls.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=9, help="measurements of each figure, with and without")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    options = parser.parse_args()
    cached_steps()  # recorded now rather than in the first measurement
    described, rows = machine(), []
    with tempfile.TemporaryDirectory(prefix="tidemill-certs-") as folder:
        for result in measure(Secured(Path(folder)), options.turns, options.seconds):
            rows.append(result)
            print(json.dumps(result), flush=True)
    _RESULTS.write_text(json.dumps({"machine": described, "seconds": options.seconds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
