"""One rank of several that update agents together; `tests.process.test_ranks` starts it and reads what it writes.

python -m tests.process.rank_updates FOLDER UPDATES CASE [CASE ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from tests.support.batches import CASES, sampled_batch
from tidemill.rl.agents.build import build_agent
from tidemill.services.learner.distributed.learner_group import LearnerGroup, RankInfo, StepVote, joined_group

BATCH = 8
"""Items of the whole batch."""
TIMEOUT_S = 300.0


def main() -> None:
    """Update every case as often as asked for and write its parameters, and what the ranks agreed on."""
    folder, updates, cases = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    place = RankInfo.from_env()
    with joined_group(place, torch.device("cpu"), TIMEOUT_S) as ranks:
        found = words(ranks, place)
        for case in cases:
            found |= trained(case, updates, ranks)
    safetensors.torch.save_file(found, folder / f"rank-{place.index}.safetensors")


def words(ranks: LearnerGroup, place: RankInfo) -> dict[str, Tensor]:
    """Return the ranks' agreement when only the last one has something to say, and what rank 0 shares."""
    is_last = place.index == place.size - 1
    agreed = ranks.all_agree(
        StepVote(
            stop=False,
            pause=is_last,
            lacks_batch=False,
            largest_weight=float(place.index),
            is_over=place.index == 0,
            at_limit=is_last,
        )
    )
    shared = ranks.broadcast(f"from {place.index}".encode())
    return {
        "agreed": torch.tensor(agreed, dtype=torch.float64),
        "shared": torch.frombuffer(bytearray(shared), dtype=torch.uint8),
    }


def trained(case: str, updates: int, ranks: LearnerGroup) -> dict[str, Tensor]:
    """Return an agent's whole state after some updates from this rank's share of made-up batches."""
    config, env_spec = CASES[case]
    agent = build_agent(config, env_spec, seed=1)
    agent.set_process_group(ranks)
    rng, share = torch.Generator().manual_seed(5), BATCH // ranks.size
    own = slice(ranks.index * share, (ranks.index + 1) * share)
    for _ in range(updates):
        batch = sampled_batch(agent, config, env_spec, BATCH, rng)
        weight = torch.rand(BATCH, generator=rng)
        agent.update({name: column[own].contiguous() for name, column in batch.items()}, weight[own])
    return dict(_leaves(agent.state_dict(), case))


def _leaves(tree: object, path: str) -> list[tuple[str, Tensor]]:
    """Return the tensors of a nested state by their paths."""
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in _leaves(value, f"{path}/{key}")]
    return [(path, tree.clone(memory_format=torch.contiguous_format))] if isinstance(tree, Tensor) else []


if __name__ == "__main__":
    main()
