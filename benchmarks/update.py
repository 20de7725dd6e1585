"""One update under each setting of its step, in turns: number format, order in memory, compiler, and Rainbow's parts.

All variants of a case live in one process, on one thread, and take turns, so that a drift of the machine meets all. On
a CPU a round is processor time; on a GPU it is time by the clock, after the device has finished.

    python -m benchmarks.update [--cases nature_dueling_dqn_32 ...] [--rounds 15]
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.learner import batches_in_memory
from benchmarks.learner_cases import CASES, Case
from benchmarks.rows import Row, row, write
from tidemill.envs.make import spec_of
from tidemill.errors import ConfigError
from tidemill.process import keep_freed_memory
from tidemill.rl.agents.build import build_agent
from tidemill.rl.agents.interface import Agent
from tidemill.rl.settings.deterministic import D4PGConfig, DDPGConfig, TD3Config
from tidemill.rl.settings.on_policy import PPOConfig
from tidemill.rl.settings.q_learning import DQNConfig, R2D2Config

_WARM_UP = 3
_UNTIL_RECORDED = 6  # updates until most of a CUDA graph's kinds are recorded
_BLOCK_S = 0.05  # at least; small updates are timed several at once
_ON_GPU = torch.cuda.is_available()
_PER = "s" if _ON_GPU else "core second"
_DEVICE = torch.device("cuda" if _ON_GPU else "cpu")


def _vectors(batch_size: int) -> Case:
    agent = DQNConfig(network="mlp", hidden_sizes=(256, 256), batch_size=batch_size)
    return Case(f"dqn_256_256_{batch_size}", agent, "LunarLander-v3")


_SEQUENCES = Case(
    "r2d2_64_64",
    R2D2Config(network="mlp", hidden_sizes=(64,), lstm_size=64, head_sizes=(64,), burn_in=4, unroll=8, n_step=3),
    "CartPole-v1",
)
_CONTINUOUS = tuple(
    Case(f"{agent.algorithm}_256", dataclasses.replace(agent, batch_size=256), "LunarLanderContinuous-v3")
    for agent in (TD3Config(), DDPGConfig(), D4PGConfig())
)
_ROLLOUTS = Case(
    "ppo_nature_8_128",
    PPOConfig(network="nature", encoder_sizes=(512,), hidden_sizes=(), activation="relu", unroll=128, batch_size=8),
    "ALE/Pong-v5",
)
_IMAGES = [CASES["nature_dueling_dqn_32"], CASES["nature_dueling_dqn_256"]]
_RAINBOW = [dataclasses.replace(case, name=f"parts_of_{case.name}") for case in (_vectors(256), *_IMAGES)]
_PARTS: dict[str, dict[str, Any]] = {
    "without them": {},
    "noisy layers": {"noisy": True},
    "51 quantiles": {"distribution": "qr"},
    "51 atoms": {"distribution": "c51"},
    "noisy layers and 51 atoms": {"noisy": True, "distribution": "c51"},
}
"""Switches of Rainbow; double Q-learning and a dueling head all of them have."""
_ON_A_CPU = (*_IMAGES, _ROLLOUTS, _vectors(32), _vectors(256), _SEQUENCES, *_RAINBOW)
_ON_A_GPU = (
    CASES["nature_dueling_dqn_512"],
    CASES["sac_256_256_256"],
    Case("r2d2_nature_32", R2D2Config(network="nature", batch_size=32), "ALE/Pong-v5"),
    *_CONTINUOUS,
)
_ALL = {case.name: case for case in (*_ON_A_CPU, *_ON_A_GPU)}


def main() -> None:
    """Measure and print; write benchmarks/results/update.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cases",
        nargs="*",
        default=[case.name for case in _ON_A_CPU],
        choices=list(_ALL),
        help="networks and batch sizes",
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each variant")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = _ON_GPU
    keep_freed_memory()  # both as the learner does
    write("update", [each for name in arguments.cases for each in _measure(_ALL[name], arguments.rounds)])


def _variants(case: Case) -> dict[str, dict[str, Any]]:
    """Return settings by name; the first is what the others are compared with."""
    if case in _RAINBOW:
        return _PARTS
    compilers = ["default"] if isinstance(case.agent, DQNConfig | R2D2Config) else []
    compilers += ["cuda-graphs"] if _ON_GPU else []
    images = case in (*_IMAGES, _ROLLOUTS, *_ON_A_GPU[:1])
    variants: dict[str, dict[str, Any]] = {}
    for precision in ("float32", "bfloat16") if images else ("float32",):
        base: dict[str, Any] = {"update_precision": precision} if hasattr(case.agent, "update_precision") else {}
        if images:
            base |= {"channels_last": False}
        variants[precision] = base
        if images:
            variants[f"{precision}, channels last"] = base | {"channels_last": True}
        variants |= {f"{precision}, compiled ({how})": base | {"compile": how} for how in compilers}
    return variants


def _measure(case: Case, rounds: int) -> list[Row]:
    updates: dict[str, Callable[[], object]] = {}
    batches, rows = _batches(case), []
    for name, settings in _variants(case).items():
        config = dataclasses.replace(case.agent, **settings)  # type: ignore[type-var]  # every settings' class is one
        try:
            agent = build_agent(config, spec_of(case.config().env), str(_DEVICE), seed=1)
        except ConfigError as error:
            if settings.get("compile") != "default":
                raise
            print(f"left out: {case.name}, {name}: {error}", flush=True)  # without a compiler, for one
            continue
        updates[name] = _update(agent, batches)
        started = time.monotonic()
        for _ in range(_UNTIL_RECORDED):
            updates[name]()
        if _ON_GPU:
            torch.cuda.synchronize()
        rows.append(row(f"first updates, {case.name}, {name}", "s", [time.monotonic() - started]))
    rates = _in_turns(updates, rounds)
    torch.compiler.reset()  # it keeps no more than a few variants of one function
    base = next(iter(rates))
    return [
        row(f"updates per {_PER}, {case.name}, {name} against {base}", "1/s", found, rates[base])
        for name, found in rates.items()
    ] + rows


def _batches(case: Case) -> list[dict[str, Tensor]]:
    config = case.config()
    batches = batches_in_memory(config, build_agent(case.agent, spec_of(config.env), str(_DEVICE)), _DEVICE)
    if not isinstance(case.agent, R2D2Config):
        return batches
    recurrent_state = torch.zeros((case.agent.batch_size, 2 * case.agent.lstm_size), device=_DEVICE)
    return [batch | {"recurrent_state": recurrent_state} for batch in batches]


def _update(agent: Agent, batches: list[dict[str, Tensor]]) -> Callable[[], object]:
    """Create a function that updates the agent with the next batch at each call."""
    weight, number = torch.ones(len(batches[0]["action"]), device=_DEVICE), 0

    def update() -> None:
        nonlocal number
        agent.update(batches[number % len(batches)], weight)
        number += 1

    return update


def _in_turns(updates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return updates per second of each round; a round is a block of updates."""
    first = next(iter(updates.values()))
    block = max(1, round(_BLOCK_S / min(_seconds(first, 1) for _ in range(_WARM_UP))))
    rates: dict[str, list[float]] = {name: [] for name in updates}
    for number in range(-1, rounds):  # the first warms up
        names = list(updates) if number % 2 else list(updates)[::-1]
        for name in names:
            seconds = _seconds(updates[name], block)
            if number >= 0:
                rates[name].append(1.0 / seconds)
    return rates


def _seconds(update: Callable[[], object], count: int) -> float:
    """Return the seconds of one of `count` updates."""
    clock = time.monotonic if _ON_GPU else time.process_time
    started = clock()
    for _ in range(count):
        update()
    if _ON_GPU:
        torch.cuda.synchronize()
    return (clock() - started) / count


if __name__ == "__main__":
    main()
