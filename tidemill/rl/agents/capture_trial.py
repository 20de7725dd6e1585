"""Trial whether an agent's updates can be recorded as CUDA graphs, in a separate program.

After a capture that failed, CUDA's allocator refuses its process any more memory. So a copy of the agent makes, records
and repeats updates of every kind from a blank batch in a child process, and a learner whose child fails makes its
updates as they are.

`python -m tidemill.rl.agents.capture_trial` reads settings as JSON from standard input. It ends with 0 if it
recorded all.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tidemill.logger import LateLogger
from tidemill.rl.settings.registry import AgentConfig, config_class
from tidemill.settings.overlay import overlay, to_document
from tidemill.types import EnvSpec

if TYPE_CHECKING:
    import torch

_TIMEOUT_S = 60.0
"""Importing torch and opening a GPU takes some ten seconds; a hang is a failure.

The learner that waits must then still start within `launcher.start_timeout_s` and `learner.ranks_timeout_s`.
"""
_UPDATES_OF_A_KIND = 4
"""Two as they are, one that is recorded, one that repeats it."""
_MEASURE_PERIOD, *_PERIODS = 2, 3, 5
"""Updates from one of a rare kind to the next, instead of up to hours; any two kinds also come together."""

_log = LateLogger()


def can_record(config: AgentConfig) -> bool:
    """True if updates of these settings can be recorded as CUDA graphs: the host decides nothing during an update."""
    return hasattr(config, "compile") and not getattr(config, "target_kl", 0.0)


def with_chosen_compile(config: AgentConfig, env_spec: EnvSpec, device: torch.device, items: int) -> AgentConfig:
    """Return the settings, `compile` being what `auto` means on a device, or `none` where recording fails.

    Args:
        config: Of any algorithm; one without the setting is returned as it is.
        env_spec: Shapes of the environment.
        device: Where the agent will be.
        items: Of a batch.
    """
    how = getattr(config, "compile", "none")
    if how not in ("auto", "cuda-graphs") or (how == "cuda-graphs" and device.type != "cuda"):
        return config
    records = device.type == "cuda" and can_record(config)
    if records:
        _log.info("trying in another process whether updates can be recorded as CUDA graphs", timeout_s=_TIMEOUT_S)
    if records and (why := failure(config, env_spec, device, items)):
        _log.warning("cannot record updates as CUDA graphs; running them without", reason=why)
        records = False
    chosen: AgentConfig = dataclasses.replace(config, compile="cuda-graphs" if records else "none")  # type: ignore[type-var]
    return chosen


def failure(config: AgentConfig, env_spec: EnvSpec, device: torch.device, items: int) -> str:
    """Return why a child process cannot record updates; empty if it can. See `with_chosen_compile`."""
    asked = {
        "algorithm": config.algorithm,
        "agent": to_document(config),
        "env_spec": dataclasses.asdict(env_spec),
        "device": str(device),
        "items": items,
    }
    command = [sys.executable, "-P", "-W", "ignore", "-m", "tidemill.rl.agents.capture_trial"]
    try:
        ended = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error).partition("\n")[0]
    if ended.returncode == 0:
        return ""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"the process ended with code {ended.returncode}"


def main() -> int:
    """Make updates of every kind; what fails is the last line of standard error."""
    asked = json.load(sys.stdin)
    config = overlay(config_class(asked["algorithm"])(), asked["agent"])
    try:
        _record(config, EnvSpec.from_document(asked["env_spec"]), asked["device"], asked["items"])
    except Exception as error:  # of CUDA, torch or the user's network
        sys.stderr.write(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}\n")
        return 1
    return 0


def _record(config: AgentConfig, env_spec: EnvSpec, device: str, items: int) -> None:
    import torch

    from tidemill.rl import train_state
    from tidemill.rl.agents.blank_batch import blank_batch
    from tidemill.rl.agents.build import build_agent

    config, updates = _with_every_kind_soon(config)
    train_state.MEASURE_PERIOD = _MEASURE_PERIOD  # in this process alone
    torch.cuda.set_device(torch.device(device))
    torch.backends.cudnn.benchmark = True  # as in a learner
    agent = build_agent(config, env_spec, device, 1)
    batch = {name: tensor.to(device) for name, tensor in blank_batch(agent, config, env_spec, items).items()}
    weight = torch.ones(items, device=device)
    for _ in range(updates):
        agent.update(batch, weight)
    torch.cuda.synchronize()


def _with_every_kind_soon(config: AgentConfig) -> tuple[AgentConfig, int]:
    """Return the settings with recorded updates whose rare kinds come often, and how many updates reach all of them."""
    changed: dict[str, Any] = {"compile": "cuda-graphs"}
    updates, periods = _UPDATES_OF_A_KIND * _MEASURE_PERIOD, iter(_PERIODS)
    for name in ("policy_delay", "target_update_period"):
        if getattr(config, name, 1) > 1:
            changed[name] = next(periods)
            updates *= changed[name]
    if getattr(config, "crossq", False):
        changed["crossq_warmup_updates"] = updates
        updates *= 2
    return dataclasses.replace(config, **changed), updates  # type: ignore[type-var]


if __name__ == "__main__":
    sys.exit(main())
