"""Updates of the sizes that `benchmarks.gpu_rehearsal` counts, timed on a real GPU from random batches in its memory.

It needs numpy and torch alone, and a GPU.

    python -m benchmarks.gpu_updates FILE
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from tidemill.rehearsal.sizes import sizes
from tidemill.rehearsal.updates import can_record, recorded
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.registry import AgentConfig
from tidemill.rl.blank_batch import blank_batch
from tidemill.types import EnvSpec

_WARM_UPS, _UPDATES = 9, 40
_DEVICE = "cuda:0"


def measured(config: AgentConfig, env_spec: EnvSpec, *, counts: bool) -> dict[str, float]:
    """Return milliseconds of an update, `ms`, and of the host to launch it, `host_ms`.

    Args:
        config: The agent's settings.
        env_spec: Shapes of the environment.
        counts: Whether to return also `kernels`, copies among them, and the milliseconds that they run, `gpu_ms`.
    """
    agent = build_agent(config, env_spec, _DEVICE, 1)
    rng = torch.Generator().manual_seed(0)
    batch = {
        name: _random(tensor, rng).to(_DEVICE)
        for name, tensor in blank_batch(agent, config, env_spec, config.batch_size).items()
    }
    weight = torch.ones(config.batch_size, device=_DEVICE)
    for _ in range(_WARM_UPS):
        agent.update(batch, weight)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(_UPDATES):
        agent.update(batch, weight)
    host_s = time.perf_counter() - started
    torch.cuda.synchronize()
    found = {"ms": (time.perf_counter() - started) / _UPDATES * 1e3, "host_ms": host_s / _UPDATES * 1e3}
    if counts:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            agent.update(batch, weight)
            torch.cuda.synchronize()
        events = [event for event in profile.events() if str(event.device_type).endswith("CUDA")]
        found |= {"kernels": len(events), "gpu_ms": sum(event.device_time for event in events) / 1e3}
    return {name: round(value, 3) for name, value in found.items()}


def _random(tensor: Tensor, rng: torch.Generator) -> Tensor:
    """Return random pixels in the place of bytes: on zeros a GPU is faster than on images."""
    return (
        torch.randint(256, tensor.shape, dtype=tensor.dtype, generator=rng) if tensor.dtype is torch.uint8 else tensor
    )


def main() -> None:
    """Measure, and write a file."""
    torch.backends.cudnn.benchmark = True  # as in a learner
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, (config, env_spec) in sizes().items():
        eager = dataclasses.replace(config, compile="none") if can_record(config) else config  # type: ignore[type-var]
        found[name] = {"eager": measured(eager, env_spec, counts=True)}
        if can_record(config):
            found[name]["graphs"] = measured(recorded(config), env_spec, counts=False)
        sys.stdout.write(f"{name}: {found[name]}\n")
        sys.stdout.flush()
    machine = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    Path(sys.argv[1]).write_text(json.dumps({"machine": machine, "updates": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
