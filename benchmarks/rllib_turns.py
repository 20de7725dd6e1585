"""RLlib's env runner as a peer of the actor: its processes, started by turns with the actor's, on the same core."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field

from tidemill.config.sections import RunConfig
from tidemill.errors import ConfigError
from tidemill.rl.settings.q_learning import DQNConfig
from tidemill.rl.settings.soft_actor_critic import SACConfig

_NUM_ENVS = (8, 16, 32)
_START_S = 120.0  # of a process that imports Ray for the first time, and its warm-up


@dataclass(frozen=True)
class RllibTurn:
    """One way to run RLlib's env runner, and what was measured of it."""

    name: str
    command: tuple[str, ...]
    rates: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> None:
        """Append one more figure, in steps/s."""
        self.rates.append(float(_output(self.command, seconds, seconds)))


def rllib_turns(python: str, config: RunConfig, seconds: float) -> list[RllibTurn]:
    """Return the ways to measure, each with its fastest number of environments; no figure is taken yet.

    Args:
        python: Interpreter of an environment with RLlib.
        config: Where environment and networks are taken from.
        seconds: Length of one measurement; the search for the fastest number takes as long.
    """
    ways = {"": "RLlib's env runner"}
    if config.env.is_atari:
        ways = {
            "wrapper": "RLlib's env runner on its Atari wrapper",
            "vector": "RLlib's env runner on ale-py's vector environment",
        }
    return [_turn((python, *_peer(config, emulator)), name, seconds) for emulator, name in ways.items()]


def _turn(command: tuple[str, ...], name: str, seconds: float) -> RllibTurn:
    numbers = tuple(map(str, _NUM_ENVS))
    fastest = _output((*command, "--fastest-of", *numbers), seconds / len(numbers), seconds).strip()
    tried = ", ".join(numbers)
    return RllibTurn(f"{name} ({fastest} environments, the fastest of {tried})", (*command, "--num-envs", fastest))


def _peer(config: RunConfig, emulator: str) -> tuple[str, ...]:
    """Return the arguments that make RLlib's networks and environment those of the run."""
    agent = config.agent
    if not isinstance(agent, DQNConfig | SACConfig):
        raise ConfigError(f"agent.algorithm is {agent.algorithm!r}, the peer has: dqn, sac")
    hidden = ("--hidden", *map(str, agent.hidden_sizes))
    dueling = ("--dueling",) if isinstance(agent, DQNConfig) and agent.dueling else ()
    way = ("--emulator", emulator) if emulator else ()
    return ("-m", "benchmarks.rllib_peer", "--env", config.env.id, *way, *hidden, *dueling)


def _output(command: tuple[str, ...], seconds: float, in_all: float) -> str:
    """Run a peer on core 0 and return its output; `in_all` is the time of its measurements in seconds."""
    pinned = ["taskset", "-c", "0", *command, "--seconds", str(seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.check_output(pinned, text=True, timeout=in_all + _START_S, env=environment)
