"""Updates of the sizes that `benchmarks.gpu_rehearsal` counts, timed on a real GPU from random batches in its memory.

It needs numpy and torch alone, and a GPU. Each algorithm is measured eager and as CUDA graphs; those of images also in
float32 and with images laid channels last, where `auto` is bfloat16. FILE is written after each row, and an error is a
row: a capture that fails leaves the process without memory, so measure what follows by another call with its names.

    python -m benchmarks.gpu_updates FILE [ALGORITHM ...]
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu_sizes import sizes
from tidemill.rl.agents.blank_batch import blank_batch
from tidemill.rl.agents.build import build_agent
from tidemill.rl.settings.registry import AgentConfig
from tidemill.types import EnvSpec

_WARM_UPS, _UPDATES, _FEWEST = 9, 40, 8
_SECONDS = 1.5
"""Of a way to make updates, if `_FEWEST` take less."""
_DEVICE = "cuda:0"


def ways(config: AgentConfig, env_spec: EnvSpec) -> dict[str, AgentConfig]:
    """Return settings to measure, by what they are called."""
    changes: dict[str, dict[str, object]] = {"eager": {"compile": "none"}, "graphs": {"compile": "cuda-graphs"}}
    if env_spec.is_image:
        changes["eager, float32"] = {"compile": "none", "update_precision": "float32"}
        changes["graphs, float32"] = {"compile": "cuda-graphs", "update_precision": "float32"}
        changes["graphs, channels last"] = {"compile": "cuda-graphs", "channels_last": True}
        changes = {name: {"channels_last": False} | change for name, change in changes.items()}
    return {name: dataclasses.replace(config, **change) for name, change in changes.items()}  # type: ignore[type-var]


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
    for _ in range(_WARM_UPS - 1):
        agent.update(batch, weight)
    torch.cuda.synchronize()
    started = time.perf_counter()
    agent.update(batch, weight)
    torch.cuda.synchronize()
    updates = max(_FEWEST, min(_UPDATES, round(_SECONDS / (time.perf_counter() - started))))
    started = time.perf_counter()
    for _ in range(updates):
        agent.update(batch, weight)
    host_s = time.perf_counter() - started
    torch.cuda.synchronize()
    found = {"ms": (time.perf_counter() - started) / updates * 1e3, "host_ms": host_s / updates * 1e3}
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
    file, algorithms = Path(sys.argv[1]), sys.argv[2:]
    machine = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}
    found: dict[str, dict[str, dict[str, float | str]]] = {}
    for name, (config, env_spec) in sizes().items():
        if algorithms and config.algorithm not in algorithms:
            continue
        found[name] = {}
        for way, changed in ways(config, env_spec).items():
            found[name][way] = _measured_or_error(changed, env_spec, counts=way.startswith("eager"))
            sys.stdout.write(f"{name}, {way}: {found[name][way]}\n")
            sys.stdout.flush()
            document = {"machine": machine, "updates": found}
            file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _measured_or_error(config: AgentConfig, env_spec: EnvSpec, *, counts: bool) -> dict[str, float | str]:
    try:
        return dict(measured(config, env_spec, counts=counts))
    except Exception as error:  # of CUDA: other rows are measured still
        return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}


if __name__ == "__main__":
    main()
