"""The contents of a checkpoint and their encoding: one safetensors file whose header carries the rest as JSON.

Nothing in it is code. `tidemill/formats.py` has the number of the format.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from tidemill import formats
from tidemill.errors import DataLoss
from tidemill.learner.checkpoint_header import KEY, read_header
from tidemill.rl.state_tree import Tree, flatten, unflatten


@dataclass(frozen=True)
class Checkpoint:
    """The state of a learner between two updates."""

    algorithm: str
    """Name of the agent's algorithm, e.g. `sac`."""
    network: dict[str, list[int]]
    """Shapes of the policy's tensors by name."""
    config_digest: str
    """Digest of the settings of agent and environment."""
    counters: dict[str, int]
    """`Counters.state()`."""
    agent: Tree
    """`Agent.state_dict()`: weights, target, optimizer, schedules."""
    rng: Tree
    """`rng_state()`."""
    written_by: Mapping[str, str] = field(default_factory=dict)
    """The writer: `tidemill`, `torch` and `device` by version or name, `learners` by number."""
    fencing_token: int = 0
    """Fencing token of the learner as a publisher."""
    priorities: Tree = field(default_factory=dict)
    """`RoundPriorities.state()` of a run in lock-step on a prioritized table; empty in all others."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`training_settings` of the run, by name; empty if an early version wrote it."""
    table: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the table that it trained on; empty if an early version wrote it."""


def encode(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint's bytes."""
    state = {"agent": checkpoint.agent, "rng": checkpoint.rng}
    if checkpoint.priorities:
        state["priorities"] = checkpoint.priorities
    document, tensors = flatten(state)
    header = {
        formats.KEY: formats.NEWEST[formats.CHECKPOINT],
        "algorithm": checkpoint.algorithm,
        "network": checkpoint.network,
        "config_digest": checkpoint.config_digest,
        "counters": checkpoint.counters,
        "written_by": dict(checkpoint.written_by),
        "fencing_token": checkpoint.fencing_token,
        "settings": dict(checkpoint.settings),
        "table": dict(checkpoint.table),
        "state": document,
    }
    return safetensors.torch.save(tensors, metadata={KEY: json.dumps(header)})


def decode(data: bytes, source: object) -> Checkpoint:
    """Return the contents that `encode` encoded.

    Args:
        data: The bytes.
        source: Where they are from, for messages.

    Raises:
        DataLoss: They are not a checkpoint.
        FatalError: They are of a format this version does not know.
    """
    try:
        header = read_header(io.BytesIO(data))
        formats.check_format(formats.CHECKPOINT, header.get(formats.KEY), source)
        tensors = safetensors.torch.load(data)
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"not a checkpoint: {error}") from error
    state = unflatten(header["state"], tensors)
    return Checkpoint(
        algorithm=header["algorithm"],
        network=header["network"],
        config_digest=header["config_digest"],
        counters=header["counters"],
        agent=state["agent"],
        rng=state["rng"],
        written_by=header["written_by"],
        fencing_token=header["fencing_token"],
        priorities=state.get("priorities", {}),
        settings=header.get("settings", {}),
        table=header.get("table", {}),
    )
