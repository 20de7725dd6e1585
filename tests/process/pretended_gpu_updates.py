"""Makes updates on a CPU and on a pretended GPU, eager and recorded, and writes how far the parameters are apart.

python -m tests.process.pretended_gpu_updates CASE [CASE ...], with the environment of `benchmarks.pretended_gpus`
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from torch import Tensor

from tests.support.batches import CASES, sampled_batch
from tidemill.process import leave
from tidemill.rehearsal.updates import recorded
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.capture_trial import can_record
from tidemill.rl.settings.registry import AgentConfig
from tidemill.types import EnvSpec

ITEMS, UPDATES = 6, 4
DEVICE = "cuda:1"


def trained(config: AgentConfig, env_spec: EnvSpec, device: str) -> dict[str, Tensor]:
    """Return the policy's state after some updates from made-up batches."""
    agent = build_agent(config, env_spec, device, seed=1)
    batch = sampled_batch(agent, config, env_spec, ITEMS, torch.Generator().manual_seed(0))
    on_device = {name: tensor.to(device) for name, tensor in batch.items()}
    weight = torch.ones(ITEMS).to(device)
    for _ in range(UPDATES):
        agent.update(on_device, weight)
    return {name: torch.as_tensor(value).cpu().float() for name, value in agent.policy_state().items()}


def _apart(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def main() -> None:
    """Write a line of JSON for each case: how far eager is from the CPU, and recorded from eager."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        config, env_spec = CASES[name]
        eager = trained(config, env_spec, DEVICE)
        found = {"eager": _apart(trained(config, env_spec, "cpu"), eager)}
        if can_record(config):
            found["recorded"] = _apart(eager, trained(recorded(config), env_spec, DEVICE))
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main()
    leave(0)  # as services do: torch's threads for GPUs may end the interpreter's teardown with an abort
