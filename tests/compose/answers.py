"""What the services of a stack say of themselves, and what they have left on their volumes."""

from __future__ import annotations

import json
from typing import Any

from tests.compose.stack import Stack, until


def stored_steps(stack: Stack, shard: str) -> float:
    """Return how many steps a replay shard holds, by its own word."""
    lines = [
        line for line in metrics_of(stack, shard).splitlines() if line.startswith("tidemill_replay_env_steps_total")
    ]
    return float(lines[0].split()[-1])


def growing_shard(stack: Stack) -> tuple[str, float]:
    """Return a shard that stores steps, and how many it held before it was seen to.

    The names of all actors may prefer one shard, and may have preferred the other before they were replaced.
    """
    before = {shard: stored_steps(stack, shard) for shard in ("replay-0", "replay-1")}
    growing: list[str] = []

    def is_found() -> bool:
        growing[:] = [shard for shard, steps in before.items() if stored_steps(stack, shard) > steps]
        return bool(growing)

    until(is_found, "a shard stores more steps", stack.describe)
    return growing[0], before[growing[0]]


def image_size(stack: Stack, image: str) -> int:
    """Return the bytes of an image."""
    return int(stack.engine.docker("inspect", "--format", "{{.Size}}", image))


def metrics_of(stack: Stack, service: str) -> str:
    """Return the metrics of a service."""
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9400/metrics').read().decode())"
    return stack.inside(service, "python", "-c", ask)


def newest_version(stack: Stack) -> int:
    """Return the newest parameter version on the disk."""
    find = "import os, re; print(max(int(n) for f in os.listdir('/runs/short/params') for n in re.findall(r'\\d+', f)))"
    return int(_on_volume(stack, find))


def scores(stack: Stack) -> int:
    """Return the rows of scores.csv."""
    return int(_on_volume(stack, "print(sum(1 for _ in open('/runs/short/scores.csv')) - 1)"))


def result_of(stack: Stack) -> dict[str, Any]:
    """Return the content of result.json of a run that has ended."""
    result: dict[str, Any] = json.loads(_on_volume(stack, "print(open('/runs/short/result.json').read())"))
    return result


def _on_volume(stack: Stack, code: str) -> str:
    mounted = ["--rm", "--network", "none", "--entrypoint", "python", "--volume", f"{stack.project}_runs:/runs"]
    return stack.engine.docker("run", *mounted, stack.image("evaluator"), "-c", code)
