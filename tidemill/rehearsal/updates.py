"""An agent's updates on a pretended GPU: what they would have the host wait for, and how many kernels they launch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tidemill.rehearsal.pretended_cuda import PretendedCuda
from tidemill.rehearsal.watch import Note
from tidemill.rl.agents.blank_batch import blank_batch
from tidemill.rl.agents.build import build_agent
from tidemill.rl.process_group import ProcessGroup
from tidemill.rl.settings.registry import AgentConfig
from tidemill.types import EnvSpec

GRAPHS = "cuda-graphs"
UPDATES = 2
"""That an eager agent makes: the first is measured, as is every fiftieth, and the second is as most are."""
_OF_A_KIND = 4
"""Two updates of a kind as they are, a third that is recorded, a fourth repeated."""
_DEVICE = "cuda:0"
_LONGEST_PERIOD = 3
"""Kinds that come less often are not waited for."""


@dataclass
class Rehearsed:
    """Observations of an agent's updates.

    Attributes:
        launches: Kernels and copies of each update, in their order.
        notes: What an update should not do on a GPU, and how often all of them did it; the first one may wait.
        undetermined: Operations for which torch refuses a deterministic run on a GPU.
        error: What ended them; empty if nothing did.
    """

    launches: list[int] = field(default_factory=list)
    notes: Counter[Note] = field(default_factory=Counter)
    undetermined: set[str] = field(default_factory=set)
    error: str = ""


def recorded_updates(config: AgentConfig) -> int:
    """Return after how many recorded updates of an agent each kind that comes often has been repeated, the last two.

    The first update is measured, which is a kind by itself. A delayed policy or target makes updates of two kinds, and
    bounds that end a warm-up begin others.
    """
    periods = (getattr(config, name, 0) for name in ("policy_delay", "target_update_period"))
    period = max([each for each in periods if each <= _LONGEST_PERIOD], default=1)
    return 2 + _OF_A_KIND * max(period, 1) + (getattr(config, "crossq_warmup_updates", 0) if _warms_up(config) else 0)


def _warms_up(config: AgentConfig) -> bool:
    return bool(getattr(config, "crossq", False)) and getattr(config, "crossq_warmup_updates", 0) <= 2 * _OF_A_KIND


def recorded(config: AgentConfig) -> AgentConfig:
    """Return settings whose updates are recorded as CUDA graphs."""
    changed: AgentConfig = dataclasses.replace(config, compile=GRAPHS)  # type: ignore[type-var]
    return changed


def rehearse_updates(
    cuda: PretendedCuda,
    config: AgentConfig,
    env_spec: EnvSpec,
    *,
    items: int = 0,
    group: ProcessGroup | None = None,
) -> Rehearsed:
    """Make updates of an agent on a pretended GPU, enough to see each kind that comes at once.

    Args:
        cuda: The GPUs.
        config: The agent's settings.
        env_spec: Shapes of the environment.
        items: Of a batch; 0: as many as the settings say.
        group: The ranks that update together; none if not given.
    """
    found = Rehearsed()
    items = items or config.batch_size
    updates = recorded_updates(config) if getattr(config, "compile", "") == GRAPHS else UPDATES
    with cuda.rehearsing() as watch:
        agent = build_agent(config, env_spec, _DEVICE, 1)
        if group is not None:
            agent.set_process_group(group)
        host = blank_batch(agent, config, env_spec, items)
        batch = {name: tensor.to(_DEVICE) for name, tensor in host.items()}
        weight = torch.ones(items).to(_DEVICE)
        watch.undetermined.clear()
        try:
            for number in range(updates):
                watch.reset()
                agent.update(batch, weight)
                found.launches.append(watch.launches)
                if number:  # the first may fetch what the others find there
                    found.notes += watch.notes
            agent.policy_state()
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            found.notes += watch.notes
            found.error = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        found.undetermined |= watch.undetermined
    return found


def lines(name: str, found: Rehearsed, *, allowed: Sequence[Note] = ()) -> list[str]:
    """Return the faults found in a rehearsal, a line each; none if there are none."""
    said = [f"{name}: {note}" for note in found.notes if note not in allowed]
    return said + ([f"{name}: {found.error}"] if found.error else [])
